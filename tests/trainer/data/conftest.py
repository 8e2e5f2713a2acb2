"""Photographs, and shards of them on disk and in a bucket, for the tests of reading."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from rehearsal.gcs import BucketServer
from tests.trainer.tasks.for_tests import image_task
from trainer.data.cursor import SlotRequest
from trainer.data.evaluation import EvaluationBatch, EvaluationLoader
from trainer.data.loader import SlotDataset
from trainer.data.reader import ShardReader
from trainer.tasks.task import Task

BUCKET_SHARDS = "gs://bucket-1/a folder/shards"


def photograph(height: int, width: int, seed: int = 0) -> Image.Image:
    """Return a picture with smooth structure and a little grain."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (7, 9, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.float32)
    return Image.fromarray(np.clip(smooth + random.normal(0, 3, (height, width, 1)), 0, 255).astype(np.uint8))


def request(*samples: int, epoch: int = 0, step: int = 0, slot: int = 0) -> SlotRequest:
    """Return a request of one slot."""
    size = len(samples)
    return SlotRequest(step, epoch, slot, samples, size, counts=True, last_of_step=True)


def dataset(uri: str, *, replace_bad: bool = False, **data: object) -> SlotDataset:
    """Return the training split of shards."""
    manifest = ShardManifest.load(uri)
    section = DataSection.model_validate({"image_size": 16, **data})
    return SlotDataset(ShardReader(uri, manifest, "train"), image_task(manifest, section), 3, replace_bad=replace_bad)


@pytest.fixture
def own_shards(small_shards: str, tmp_path: Path) -> Path:
    """A copy of the small shards that a test may damage."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for path in storage.local_path(small_shards).iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


def upload(folder: Path, uri: str = BUCKET_SHARDS) -> str:
    for path in folder.iterdir():
        if path.is_file():
            storage.replace(storage.join(uri, path.name), path.read_bytes())
    return uri


def data_section(cache: Path | None = None, **fields: object) -> DataSection:
    given: dict[str, object] = {"image_size": 16}
    if cache is not None:
        given |= {"cache_dir": str(cache), "cache_bytes": 64 << 20}
    return DataSection.model_validate({**given, **fields})


def open_reader(uri: str, split: str = "train", cache: Path | None = None, **fields: object) -> ShardReader:
    return ShardReader(uri, ShardManifest.load(uri), split, data_section(cache, **fields))


def evaluation_batches(
    uri: str, manifest: ShardManifest, split: str, task: Task, batch_size: int, **options: Any
) -> Iterator[EvaluationBatch]:
    """Return the batches of a split, read once."""
    reader = ShardReader(uri, manifest, split, fields=tuple(task.fields))
    return EvaluationLoader(reader, task, batch_size, **options).batches()


@pytest.fixture
def bucket_shards(small_shards: str, bucket_server: BucketServer) -> Iterator[str]:
    """The small shards, in a bucket."""
    yield upload(storage.local_path(small_shards))
    gc.collect()


def shard_requests(server: BucketServer) -> list[int]:
    """Return the bytes of each answer with bytes of a shard."""
    return [entry.bytes_out for entry in server.access_log.entries(operation="objects.media", object="*.tar")]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test have a default cache of its own."""
    monkeypatch.setenv("SHARDLINE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
