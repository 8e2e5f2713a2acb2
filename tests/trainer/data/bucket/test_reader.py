"""The same samples from a bucket as from disk, whatever happens to the cache and on the line."""

import fcntl
import gc
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from contracts import storage
from contracts.artifacts import SampleOrder, ShardManifest
from contracts.errors import ConfigError, DataError
from rehearsal.gcs import BucketServer
from rehearsal.gcs.faults import Rule
from tests.trainer.data.conftest import BUCKET_SHARDS, data_section, image_runs, open_reader, shard_requests, upload
from tests.trainer.tasks.for_tests import image_task
from tests.two_versions import write_versions
from trainer.data.bucket.cache_folder import CacheFolder
from trainer.data.bucket.plan import check_working_set
from trainer.data.evaluation import evaluation_batches
from trainer.data.loader import SlotDataset, make_loader, read_slots
from trainer.data.order.cursor import slot_requests, stream_readers
from trainer.data.order.resolve import make_order, resolve_order
from trainer.data.reader import ShardReader

# Google's client drops the connection of an answer that is an error, and leaves it to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

Epoch = list[tuple[tuple[int, ...], torch.Tensor, torch.Tensor]]


def read_epoch(
    uri: str,
    cache: Path | None = None,
    *,
    num_workers: int = 0,
    rank: int = 0,
    ranks: int = 1,
    epochs: int = 1,
    position: int = 0,
    **fields: object,
) -> Epoch:
    """Read what a rank reads, as training does."""
    reader = open_reader(uri, cache=cache, order="blocks", **fields)
    manifest = ShardManifest.load(uri)
    order = make_order(resolve_order(reader.data, uri, manifest, None).order, manifest, seed=1)
    readers = stream_readers(order, global_batch_size=16, slot_size=4, ranks=ranks)
    streams = None if readers is None else readers[rank]
    reader.set_order(order, global_batch_size=16, streams=streams, readers=ranks * max(1, num_workers))
    dataset = SlotDataset(reader, image_task(manifest, reader.data), seed=1)
    ahead = reader.prefetcher(position, epochs=epochs, ranks=ranks)
    requests = slot_requests(
        position, order=order, epochs=epochs, global_batch_size=16, slot_size=4, rank=rank, ranks=ranks
    )
    loader = make_loader(
        dataset, ahead.start_with(requests), num_workers=num_workers, prefetch_factor=2, pin_memory=False
    )
    found = []
    try:
        for slot in read_slots(loader):
            found.append((slot.request.samples, slot.batch["images"], slot.batch["label"]))
            ahead.passed(slot.request)
    finally:
        ahead.stop()
    return found


def assert_equal(found: Epoch, expected: Epoch) -> None:
    assert [samples for samples, _, _ in found] == [samples for samples, _, _ in expected]
    for (_, images, labels), (_, other_images, other_labels) in zip(found, expected, strict=True):
        assert torch.equal(images, other_images) and torch.equal(labels, other_labels)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def split_bytes(uri: str, split: str = "train") -> int:
    return sum(shard.bytes for shard in ShardManifest.load(uri).shards if shard.split == split)


@pytest.fixture
def expected(small_shards: str) -> Epoch:
    """An epoch from disk."""
    return read_epoch(small_shards)


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect what the client dropped before the next test counts it as its own."""
    yield
    gc.collect()


@pytest.mark.parametrize(("cached", "num_workers"), [(False, 0), (True, 2)])
def test_a_bucket_gives_the_samples_and_pixels_of_the_disk(
    bucket_shards: str, bucket_server: BucketServer, expected: Epoch, tmp_path: Path, cached: bool, num_workers: int
) -> None:
    bucket_server.access_log.clear()
    assert_equal(read_epoch(bucket_shards, tmp_path if cached else None, num_workers=num_workers), expected)
    assert sum(shard_requests(bucket_server)) <= 1.05 * image_runs(bucket_shards)


def test_a_warm_cache_asks_the_bucket_for_no_sample(
    bucket_shards: str, bucket_server: BucketServer, expected: Epoch, tmp_path: Path
) -> None:
    read_epoch(bucket_shards, tmp_path)
    bucket_server.access_log.clear()
    assert_equal(read_epoch(bucket_shards, tmp_path), expected)
    assert shard_requests(bucket_server) == []
    assert bucket_server.access_log.entries(operation="objects.media", object="*/index*") == []


def test_a_cache_much_smaller_than_the_data_reads_each_byte_once(
    bucket_shards: str, bucket_server: BucketServer, expected: Epoch, tmp_path: Path
) -> None:
    bucket_server.access_log.clear()
    small = {"cache_bytes": split_bytes(bucket_shards) // 2, "block_bytes": 20000}
    assert_equal(read_epoch(bucket_shards, tmp_path, **small), expected)
    assert sum(shard_requests(bucket_server)) <= 1.05 * image_runs(bucket_shards)
    kept = sum(path.stat().st_size for path in tmp_path.rglob("*-*") if path.parent.name != "index" and path.is_file())
    assert kept <= small["cache_bytes"]


def test_nodes_together_read_every_sample_once(bucket_shards: str, bucket_server: BucketServer, tmp_path: Path) -> None:
    bucket_server.access_log.clear()
    seen: list[int] = []
    for node in range(2):
        for samples, _, _ in read_epoch(bucket_shards, tmp_path / str(node), rank=node, ranks=2):
            seen += samples
    assert sorted(seen) == list(range(ShardManifest.load(bucket_shards).splits["train"].samples))
    assert sum(shard_requests(bucket_server)) <= 1.05 * image_runs(bucket_shards)


FAULTS = {
    "unavailable": Rule(object="*.tar", status=503, probability=0.3, seed=1),
    "quietly": Rule(object="*.tar", truncate_at=700, quietly=True, nth=(1, 3)),
    "corrupted": Rule(object="*.tar", corrupt_at=800, nth=(1, 4)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_line_change_no_sample(
    bucket_shards: str, bucket_server: BucketServer, expected: Epoch, tmp_path: Path, fault: str
) -> None:
    bucket_server.faults.set(FAULTS[fault])
    assert_equal(read_epoch(bucket_shards, tmp_path), expected)
    assert bucket_server.faults.hits()[0] > 0


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete all"])
def test_a_damaged_cache_changes_no_sample(bucket_shards: str, expected: Epoch, tmp_path: Path, damage: str) -> None:
    cache = tmp_path / "cache"
    read_epoch(bucket_shards, cache)
    files = [path for path in cache.glob("*-*/*-*") if path.suffix == ""]
    assert len(files) > 3
    if damage == "delete all":
        shutil.rmtree(cache)
    for path in files if damage != "delete all" else []:
        if damage == "flip":
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        else:
            os.truncate(path, path.stat().st_size // 2)
    assert_equal(read_epoch(bucket_shards, cache), expected)


def test_a_full_disk_is_read_past(
    bucket_shards: str, bucket_server: BucketServer, expected: Epoch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    bucket_server.access_log.clear()
    assert_equal(read_epoch(bucket_shards, tmp_path), expected)
    # Sample by sample, and none twice.
    assert sum(shard_requests(bucket_server)) <= split_bytes(bucket_shards)


@pytest.mark.parametrize(("damage", "cached"), [("flip", True), ("truncate", False), ("delete", False)])
def test_a_bad_shard_in_the_bucket_is_named_with_its_sample(
    bucket_shards: str, tmp_path: Path, damage: str, cached: bool
) -> None:
    manifest = ShardManifest.load(bucket_shards)
    entry = next(shard for shard in manifest.shards if shard.split == "train")
    uri = entry.uri(bucket_shards)
    content = bytearray(storage.read_bytes(uri))
    content[content.index(b"IDAT") + 10] ^= 1
    if damage == "delete":
        storage.delete(uri)
    else:
        storage.replace(uri, bytes(content) if damage == "flip" else bytes(content[:700]))
    words = {"flip": "has crc32c", "truncate": "bytes too early", "delete": "is not there"}
    with pytest.raises(DataError, match=rf"{entry.name}, sample [0-9a-f]{{32}} .*{words[damage]}"):
        read_epoch(bucket_shards, tmp_path if cached else None)


def test_evaluation_reads_each_byte_once(
    bucket_shards: str, small_shards: str, bucket_server: BucketServer, tmp_path: Path
) -> None:
    ranks = 2
    manifest, data = ShardManifest.load(bucket_shards), data_section(tmp_path)
    task = image_task(manifest, data)
    folder = CacheFolder(data)
    bucket_server.access_log.clear()
    for rank in range(ranks):
        found = evaluation_batches(
            bucket_shards, manifest, "test", task, 4, rank=rank, ranks=ranks, data=data, folder=folder
        )
        local = evaluation_batches(small_shards, manifest, "test", task, 4, rank=rank, ranks=ranks)
        for (batch, samples), (other, other_samples) in zip(found, local, strict=True):
            assert samples == other_samples
            assert all(torch.equal(batch[name], other[name]) for name in ("images", "label"))
    assert sum(shard_requests(bucket_server)) <= image_runs(bucket_shards, "test")


def test_evaluation_leaves_ranges_of_other_ranks_alone(
    bucket_shards: str, bucket_server: BucketServer, tmp_path: Path
) -> None:
    manifest, data = ShardManifest.load(bucket_shards), data_section(tmp_path)
    task, folder = image_task(manifest, data), CacheFolder(data)
    for rank in range(13):
        # What it passed while it was on its way would be given up, and fetched again by the rank that reads it.
        bucket_server.access_log.clear()
        found = evaluation_batches(
            bucket_shards, manifest, "test", task, 2, rank=rank, ranks=13, data=data, folder=folder
        )
        assert [samples for _, samples in found] == [2]
        # Two samples lie in one range, or in two neighbours.
        assert len(shard_requests(bucket_server)) <= 2


def test_the_first_batch_does_not_wait_for_blocks(
    bucket_shards: str, bucket_server: BucketServer, tmp_path: Path
) -> None:
    reader = open_reader(bucket_shards, cache=tmp_path, order="blocks")
    manifest = ShardManifest.load(bucket_shards)
    order = make_order(resolve_order(reader.data, bucket_shards, manifest, None).order, manifest, seed=1)
    reader.set_order(order, global_batch_size=16)
    bucket_server.access_log.clear()
    request = next(slot_requests(0, order=order, epochs=1, global_batch_size=16, slot_size=1, rank=0, ranks=1))
    reader.prepare(list(request.samples), request)
    [size] = shard_requests(bucket_server)
    assert size == int(reader.index[request.samples[0]]["size"])


def test_full_order_larger_than_the_cache_reads_samples_alone(
    bucket_shards: str, bucket_server: BucketServer, tmp_path: Path
) -> None:
    reader = open_reader(bucket_shards, cache=tmp_path, order="full", cache_bytes=40_000)
    manifest = ShardManifest.load(bucket_shards)
    order = make_order(resolve_order(reader.data, bucket_shards, manifest, None).order, manifest, seed=1)
    reader.set_order(order, global_batch_size=16)
    bucket_server.access_log.clear()
    # One sample a request: the tenth of the cache that is not filled ahead holds what a reader that is faster fetches.
    requests = list(slot_requests(0, order=order, epochs=1, global_batch_size=16, slot_size=1, rank=0, ranks=1))
    with reader.prefetcher(0, epochs=1, ranks=1, requests=requests) as ahead:
        # Ahead of anybody's asking, as far as the bound allows.
        sizes = [int(reader.index[place]["size"]) for request in requests for place in request.samples]
        expected = sum(total <= 0.9 * 40_000 for total in itertools.accumulate(sizes))
        wait_until(lambda: len(shard_requests(bucket_server)) >= expected)
        assert len(shard_requests(bucket_server)) == expected > 4
        for request in requests:
            reader.prepare(list(request.samples), request)
            for place in request.samples:
                reader.sample(place)
            ahead.passed(request)
    found = shard_requests(bucket_server)
    assert set(found) == set(sizes)
    assert sum(found) <= 1.05 * sum(sizes)


def test_a_working_set_that_does_not_fit_is_refused_with_the_number_that_would(
    bucket_shards: str, small_shards: str
) -> None:
    order = SampleOrder(kind="blocks", streams=48, range_bytes=4096, block_samples=5)
    manifest = ShardManifest.load(bucket_shards)
    data = data_section(memory_bytes=2048, canonical_streams=48)
    with pytest.raises(ConfigError, match=r"data\.memory_bytes = 2048 does not hold") as caught:
        check_working_set(data, bucket_shards, manifest, order)
    number = int(caught.value.allowed.split()[2])
    check_working_set(data.model_copy(update={"memory_bytes": number}), bucket_shards, manifest, order)
    check_working_set(data, small_shards, manifest, order)


def test_what_lies_in_memory_is_deleted_at_the_end(bucket_shards: str) -> None:
    data = data_section()
    folder, other = CacheFolder(data, "one-name"), CacheFolder(data, "one-name")
    assert folder.ranges.folder == other.ranges.folder
    reader = ShardReader(bucket_shards, ShardManifest.load(bucket_shards), "train", data, folder)
    reader.prepare([0])
    folder.close()
    assert other.ranges.held(next(path.name for path in other.ranges.folder.glob("*-*")))
    other.close()
    assert not other.ranges.folder.exists()


def test_what_a_killed_process_left_in_memory_is_deleted_by_the_next(bucket_shards: str) -> None:
    left = CacheFolder(data_section(), "left")
    assert left._close is not None
    left._close.detach()
    path = left.ranges.folder
    for link in list(Path("/proc/self/fd").iterdir()):
        if link.resolve().name == "alive":
            fcntl.flock(int(link.name), fcntl.LOCK_UN)
            os.close(int(link.name))
    CacheFolder(data_section(), "next").close()
    assert not path.exists()


def flip_byte(uri: str, at: int) -> None:
    content = bytearray(storage.read_bytes(uri))
    content[at] ^= 1
    storage.replace(uri, bytes(content))


@pytest.mark.parametrize("column", ["rows", "label"])
def test_an_index_that_changed_is_refused(bucket_shards: str, column: str) -> None:
    """Where rows are fetched by shard, and where whole parts are."""
    part = ShardManifest.load(bucket_shards).index_parts[0]
    flip_byte(f"{BUCKET_SHARDS}/{part.name}", 64 if column == "rows" else 64 + 32 * part.samples)
    reader = open_reader(bucket_shards)
    with pytest.raises(DataError, match=rf"{part.name} has wrong rows for shard train-"):
        reader.sample(0)
    with pytest.raises(DataError, match=rf"{part.name} has .* its manifest says"):
        reader.fetch_index()


def test_an_index_of_version_1_that_changed_is_refused(bucket_server: BucketServer, tmp_path: Path) -> None:
    uri = upload(write_versions(tmp_path)[0])
    open_reader(uri)
    flip_byte(f"{uri}/index.bin", 100)
    with pytest.raises(DataError, match=r"index\.bin has .* its manifest says"):
        open_reader(uri)
