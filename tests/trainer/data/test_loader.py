"""Pixels that depend on the sample alone, read from real shards."""

import multiprocessing
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from contracts.errors import DataError
from records.decode import decode_rgb
from tests.trainer.data.conftest import dataset, request
from tests.trainer.tasks.for_tests import image_task
from trainer.data import evaluation
from trainer.data.evaluation import EvaluationLoader, evaluation_batches
from trainer.data.loader import SlotDataset, make_loader, read_slots
from trainer.data.order.cursor import slot_requests
from trainer.data.order.resolve import FullOrder
from trainer.data.reader import ShardReader
from trainer.tasks.images.transforms import EvaluationTransform, make_transforms


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


def test_pixels_do_not_depend_on_neighbours_or_processes(small_shards: str) -> None:
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


def test_augmentation_changes_with_the_epoch(small_shards: str) -> None:
    data = dataset(small_shards, crop="random_resized")
    images = [data.read(request(5, epoch=epoch)).batch["images"] for epoch in range(3)]
    assert not torch.equal(images[0], images[1])
    assert not torch.equal(images[1], images[2])
    assert torch.equal(images[0], data.read(request(5)).batch["images"])


def test_half_of_the_images_are_mirrored(small_shards: str) -> None:
    plain, flipped = dataset(small_shards), dataset(small_shards, horizontal_flip=True)
    mirrored = 0
    for epoch in range(4):
        for sample in range(50):
            one, other = (
                plain.read(request(sample, epoch=epoch)).batch["images"],
                flipped.read(request(sample, epoch=epoch)).batch["images"],
            )
            assert torch.equal(one, other) or torch.equal(one.flip(2), other)
            mirrored += not torch.equal(one, other)
    # 200 fair coins: outside 70 to 130 once in 60,000.
    assert 70 <= mirrored <= 130


def test_the_loader_keeps_the_order_of_requests(small_shards: str) -> None:
    data = dataset(small_shards)
    requests = list(
        slot_requests(
            0,
            order=FullOrder(len(data.reader), seed=1),
            epochs=2,
            global_batch_size=16,
            slot_size=4,
            rank=0,
            ranks=1,
        )
    )
    loader = make_loader(data, iter(requests), num_workers=2, prefetch_factor=2, pin_memory=False)
    assert [batch.request for batch in read_slots(loader)] == requests


def test_the_evaluation_transform_takes_the_centre_and_normalises() -> None:
    transform = EvaluationTransform(4, mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 1.0))
    image = np.zeros((4, 8, 3), dtype=np.uint8)
    image[:, 2:6] = (255, 128, 51)
    pixels = transform.pixels(image)
    assert pixels.shape == (4, 4, 3)
    assert (pixels == (255, 128, 51)).all()
    normalised = transform.normalise(pixels[None])
    assert normalised.shape == (1, 3, 4, 4)
    assert normalised.dtype == torch.float32
    expected = torch.tensor([1.0, (128 / 255 - 0.25) / 0.25, 0.2])
    assert torch.allclose(normalised[0, :, 1, 1], expected)


def test_mean_and_std_of_the_configuration_win(small_shards: str) -> None:
    manifest = ShardManifest.load(small_shards)
    assert make_transforms(DataSection(), manifest)[1].mean == tuple(manifest.mean)
    assert make_transforms(DataSection(mean=[0.1, 0.2, 0.3]), manifest)[1].mean == (0.1, 0.2, 0.3)
    assert make_transforms(DataSection(mean=[0.1, 0.2, 0.3]), manifest)[1].std == tuple(manifest.std)


@pytest.mark.parametrize(("ranks", "num_workers"), [(1, 0), (3, 0), (2, 1)])
def test_evaluation_counts_every_sample_once(small_shards: str, ranks: int, num_workers: int) -> None:
    manifest = ShardManifest.load(small_shards)
    task = image_task(manifest, DataSection(image_size=16))
    whole = [
        image
        for batch, _ in evaluation_batches(small_shards, manifest, "test", task, 4)
        for image in batch["images"].flatten(1).tolist()
    ]
    shared = [
        image
        for rank in range(ranks)
        for batch, _ in evaluation_batches(
            small_shards, manifest, "test", task, 4, rank=rank, ranks=ranks, num_workers=num_workers
        )
        for image in batch["images"].flatten(1).tolist()
    ]
    assert len(whole) == manifest.splits["test"].samples
    assert sorted(shared) == sorted(whole)


def test_a_flipped_byte_is_found_when_it_is_read(small_shards: str, tmp_path: Path) -> None:
    source = storage.local_path(small_shards)
    for path in source.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    manifest = ShardManifest.load(storage.normalise(tmp_path))
    shard = tmp_path / manifest.shards[0].name
    content = bytearray(shard.read_bytes())
    place = content.index(b"IDAT") + 10
    content[place] ^= 1
    shard.write_bytes(content)
    reader = ShardReader(storage.normalise(tmp_path), manifest, manifest.shards[0].split)
    with pytest.raises(DataError, match="crc32c"):
        for sample in range(manifest.shards[0].samples):
            reader.sample(sample)
    # The same error, with its type and words, comes out of a loader process.
    data = SlotDataset(reader, image_task(manifest, DataSection(image_size=16)), seed=3)
    requests = [request(sample) for sample in range(manifest.shards[0].samples)]
    for num_workers in (0, 1):
        loader = make_loader(data, requests, num_workers=num_workers, prefetch_factor=2, pin_memory=False)
        with pytest.raises(DataError, match="crc32c") as caught:
            list(read_slots(loader))
        assert caught.value.todo


def test_more_shards_than_open_files(small_shards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.reader.MAX_OPEN_SHARDS", 2)
    manifest = ShardManifest.load(small_shards)
    assert len(manifest.shards) > 3
    before = len(list(Path("/proc/self/fd").iterdir()))
    reader = ShardReader(small_shards, manifest, "train")
    for sample in [*range(len(reader)), *range(len(reader))]:
        reader.sample(sample)
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 3


def test_an_evaluation_leaves_no_process_behind(small_shards: str) -> None:
    """It takes as many batches as there are, and never asks for one more."""
    manifest = ShardManifest.load(small_shards)
    task = image_task(manifest, DataSection(image_size=16))
    before = set(multiprocessing.active_children())
    batches = evaluation_batches(small_shards, manifest, "test", task, 4, num_workers=2)
    number = -(-manifest.splits["test"].samples // 4)
    assert len(list(islice(batches, number))) == number > 2
    assert set(multiprocessing.active_children()) <= before
    del batches
    assert evaluation._abandoned == []


def test_the_processes_of_an_evaluation_stay_for_the_next(small_shards: str) -> None:
    manifest = ShardManifest.load(small_shards)
    task = image_task(manifest, DataSection(image_size=16))
    before = set(multiprocessing.active_children())
    reader = ShardReader(small_shards, manifest, "test", fields=tuple(task.fields))
    loader = EvaluationLoader(reader, task, 4, num_workers=2, keeps_processes=True)
    first = [batch["images"] for batch, _ in loader.batches()]
    processes = set(multiprocessing.active_children()) - before
    assert len(processes) == 2
    # One that is left in the middle, as by a stop, spoils nothing.
    next(loader.batches())
    again = [batch["images"] for batch, _ in loader.batches()]
    assert set(multiprocessing.active_children()) - before == processes
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    evaluation._abandoned.clear()
