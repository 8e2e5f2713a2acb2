"""Pixels that depend on the sample alone, read from real shards."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from records.decode import decode_rgb
from tests.trainer.data.conftest import dataset, evaluation_batches, request
from tests.trainer.tasks.for_tests import image_task
from trainer.data.loader import make_loader, read_slots
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


def test_pixels_do_not_depend_on_neighbours_or_processes_but_on_the_epoch(small_shards: str) -> None:
    data = dataset(small_shards, crop="random_resized", horizontal_flip=True, image_size=12)
    alone = {sample: data.read(request(sample)).batch["images"][0] for sample in range(12)}
    together = data.read(request(*range(11, -1, -1))).batch["images"]
    for row, sample in enumerate(range(11, -1, -1)):
        assert torch.equal(together[row], alone[sample])
    requests = [request(*range(start, start + 4)) for start in (0, 4, 8)]
    loader = make_loader(data, requests, num_workers=2, prefetch_factor=2, pin_memory=False)
    for batch in read_slots(loader):
        for row, sample in enumerate(batch.request.samples):
            assert torch.equal(batch.batch["images"][row], alone[sample])
    assert not torch.equal(alone[5], data.read(request(5, epoch=1)).batch["images"][0])


@pytest.mark.parametrize(("ranks", "num_workers"), [(3, 0), (2, 1)])
def test_evaluation_counts_every_sample_once(small_shards: str, ranks: int, num_workers: int) -> None:
    manifest = ShardManifest.load(small_shards)
    task = image_task(manifest, DataSection(image_size=16))
    whole = ShardReader(small_shards, manifest, "test")
    expected = {place: int(whole.sample(place)["label"]) for place in range(len(whole))}
    found: dict[int, int] = {}
    for rank in range(ranks):
        options = {"rank": rank, "ranks": ranks, "num_workers": num_workers}
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


def test_half_of_the_images_are_mirrored(small_shards: str) -> None:
    plain, flipped = dataset(small_shards), dataset(small_shards, horizontal_flip=True)
    mirrored = 0
    for epoch in range(4):
        wanted = request(*range(50), epoch=epoch)
        for one, other in zip(plain.read(wanted).batch["images"], flipped.read(wanted).batch["images"], strict=True):
            assert torch.equal(one, other) or torch.equal(one.flip(1), other)
            mirrored += not torch.equal(one, other)
    # 200 fair coins: outside 70 to 130 once in 60,000.
    assert 70 <= mirrored <= 130


def test_mean_and_std_of_the_configuration_win(small_shards: str) -> None:
    manifest = ShardManifest.load(small_shards)
    assert image_task(manifest).document()["mean"] == manifest.mean
    document = image_task(manifest, DataSection(mean=[0.1, 0.2, 0.3])).document()
    assert document["mean"] == [0.1, 0.2, 0.3] and document["std"] == manifest.std


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
