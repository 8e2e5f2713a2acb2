"""Photographs and shards for the tests of reading."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from trainer.cursor import SlotRequest
from trainer.data.loader import SlotDataset
from trainer.data.reader import ShardReader
from trainer.data.transforms import make_transforms


def photograph(height: int, width: int, seed: int = 0) -> Image.Image:
    """Return a picture with smooth structure and a little grain."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (7, 9, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.float32)
    return Image.fromarray(np.clip(smooth + random.normal(0, 3, (height, width, 1)), 0, 255).astype(np.uint8))


def request(*samples: int, epoch: int = 0, step: int = 0, slot: int = 0) -> SlotRequest:
    """Return a request of one slot."""
    return SlotRequest(step, epoch, slot, samples, len(samples), counts=True, last_of_step=True)


def dataset(uri: str, *, replace_bad: bool = False, **data: object) -> SlotDataset:
    """Return the training split of shards."""
    manifest = ShardManifest.load(uri)
    section = DataSection.model_validate({"image_size": 16, **data})
    transform, _ = make_transforms(section, manifest)
    return SlotDataset(ShardReader(uri, manifest, "train"), transform, 3, replace_bad=replace_bad)


@pytest.fixture
def small_manifest(small_shards: str) -> ShardManifest:
    """The manifest of the small shards."""
    return ShardManifest.load(small_shards)


@pytest.fixture
def own_shards(small_shards: str, tmp_path: Path) -> Path:
    """A copy of the small shards that a test may damage."""
    from contracts import storage

    folder = tmp_path / "shards"
    folder.mkdir()
    for path in storage.local_path(small_shards).iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    return folder
