"""Samples read from real shards, by loader processes too."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from records.decode import decode_rgb
from tests.trainer.data.conftest import evaluation_batches
from tests.trainer.tasks.for_tests import image_task
from trainer.data.reader import ShardReader


def test_a_split_is_the_pictures_of_the_source(small_shards: str, pictures: Path) -> None:
    manifest = ShardManifest.load(small_shards)
    found = set()
    for split in manifest.splits:
        reader = ShardReader(small_shards, manifest, split)
        samples = map(reader.sample, range(len(reader)))
        found |= {(decode_rgb(sample["image"]).tobytes(), sample["label"]) for sample in samples}
    expected = {
        (np.asarray(Image.open(path)).tobytes(), label)
        for label, name in enumerate(manifest.classes)
        for path in (pictures / name).iterdir()
    }
    assert found == expected
    assert len(found) == 120


def test_evaluation_counts_every_sample_once(small_shards: str) -> None:
    manifest = ShardManifest.load(small_shards)
    task = image_task(manifest, DataSection(image_size=16))
    whole = ShardReader(small_shards, manifest, "test")
    expected = {place: int(whole.sample(place)["label"]) for place in range(len(whole))}
    found: dict[int, int] = {}
    for rank in range(2):
        options = {"rank": rank, "ranks": 2, "num_workers": 1}
        for batch, places, _ in evaluation_batches(small_shards, manifest, "test", task, 4, **options):
            assert not found.keys() & set(places)
            found |= dict(zip(places, batch["label"].tolist(), strict=True))
    assert found == expected


def test_more_shards_than_open_files(small_shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.reader.MAX_OPEN_SHARDS", 2)
    manifest = ShardManifest.load(small_shards)
    assert len(manifest.shards) > 3
    before = len(list(Path("/proc/self/fd").iterdir()))
    reader = ShardReader(small_shards, manifest, "train")
    for sample in [*range(len(reader)), *range(len(reader))]:
        reader.sample(sample)
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 3


def test_loader_processes_pass_batches_on_where_tmpdir_is_too_long_for_a_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("t" * 100)
    folder.mkdir()
    program = (
        "import torch; from trainer.data.loader import make_loader, read_slots\n"
        "class Data:\n"
        "    def __getitem__(self, place): return torch.full((3,), place)\n"
        "loader = make_loader(Data(), [1, 2], num_workers=1, prefetch_factor=2, pin_memory=False)\n"
        "print([batch.tolist() for batch in read_slots(loader)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "[[1, 1, 1], [2, 2, 2]]\n", done.stderr
