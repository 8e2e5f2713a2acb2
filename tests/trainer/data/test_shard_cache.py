"""Whole shards of a bucket on a disk: shared, bounded, and right whoever is killed or whatever is damaged."""

import errno
import gc
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.errors import DataError, StorageError
from records.index import DamagedSample
from rehearsal.gcs import BucketServer
from rehearsal.gcs.faults import Rule
from tests.shards import write_random_shards
from tests.trainer.data.conftest import BUCKET_SHARDS, data_section, open_reader, shard_requests
from trainer.data.order import make_order, resolve_order
from trainer.data.reader import ShardReader
from trainer.data.shard_cache import Need, Prefetcher, ShardCache

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

# Of three shards, which have 16,384 bytes and an index of less than 500.
SOME_SHARDS = 52_000


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect what the client dropped before the next test counts it as its own."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def small_shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Shards of equal sizes, of random bytes: nothing is decoded here."""
    folder = tmp_path_factory.mktemp("random") / "shards"
    write_random_shards(folder, shards=20, samples=3, sample_bytes=2500)
    return storage.normalise(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def cache_in(folder: Path, cache_bytes: int = 64 << 20) -> ShardCache:
    data = data_section(folder, cache_bytes=cache_bytes)
    return ShardCache(BUCKET_SHARDS, ShardManifest.load(BUCKET_SHARDS), data)


def fetch(cache: ShardCache, shard: int) -> Path:
    """Have a shard fetched, and return its path."""
    entry = cache._shards[shard]
    os.close(cache.open(entry))
    return cache.path_of(entry)


def kept_bytes(folder: Path) -> int:
    kept = 0
    for path in folder.glob("*-*-*"):
        # A file may be renamed or deleted at any time.
        with suppress(FileNotFoundError):
            kept += path.stat().st_size
    return kept


def assert_same(reader: ShardReader, local: ShardReader) -> None:
    assert [reader.sample(place) for place in range(len(local))] == [local.sample(p) for p in range(len(local))]


def test_the_least_recently_used_goes_and_the_bound_holds(bucket_shards: str, small_shards: str, folder: Path) -> None:
    cache = cache_in(folder, SOME_SHARDS)
    first, second, third = (fetch(cache, shard) for shard in range(3))
    for age, path in ((30, second), (20, third), (10, first)):
        os.utime(path, (time.time() - age,) * 2)
    descriptor = cache.open(cache._shards[1])
    fetch(cache, 3)
    # The second was used just now; an open file can be read after it was deleted.
    assert not third.exists() and second.exists() and first.exists()
    for shard in (4, 5, 6):
        fetch(cache, shard)
    assert not second.exists()
    assert len(os.pread(descriptor, 1 << 20, 0)) == ShardManifest.load(bucket_shards).shards.bytes[1]
    os.close(descriptor)
    assert_same(open_reader(bucket_shards, cache=folder, cache_bytes=SOME_SHARDS), open_reader(small_shards))
    assert 0 < kept_bytes(folder) <= SOME_SHARDS


def fetch_all(folder: Path) -> None:
    cache = cache_in(folder)
    for shard in range(len(ShardManifest.load(BUCKET_SHARDS).shards)):
        fetch(cache, shard)


def test_processes_share_it_and_fetch_no_byte_twice(
    bucket_shards: str, bucket_server: BucketServer, folder: Path
) -> None:
    bucket_server.faults.set(Rule(object="*.tar", latency_s=0.01))
    bucket_server.access_log.clear()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=fetch_all, args=(folder,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(shard_requests(bucket_server)) == len(ShardManifest.load(bucket_shards).shards)


def read_again_and_again(folder: Path) -> None:
    reader = open_reader(BUCKET_SHARDS, cache=folder, cache_bytes=SOME_SHARDS)
    while True:
        for place in range(len(reader)):
            reader.sample(place)


def test_processes_that_are_killed_leave_a_cache_that_is_right(
    bucket_shards: str, bucket_server: BucketServer, small_shards: str, folder: Path
) -> None:
    bucket_server.faults.set(Rule(object="*.tar", latency_s=0.003))
    local = open_reader(small_shards)
    # Forked: no time goes into imports, so that kills land everywhere in the work. The moments are drawn.
    context = multiprocessing.get_context("fork")
    leftovers = 0
    for _ in range(12):
        processes = [context.Process(target=read_again_and_again, args=(folder,)) for _ in range(2)]
        for process in processes:
            process.start()
        deadline = time.monotonic() + 60
        while not kept_bytes(folder) and time.monotonic() < deadline:
            time.sleep(0.005)
        for process in processes:
            time.sleep(random.uniform(0, 0.1))
            assert process.exitcode is None and process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        for process in processes:
            process.join()
        leftovers += len(list(folder.glob("*.part")))
    assert leftovers > 0
    assert_same(open_reader(bucket_shards, cache=folder, cache_bytes=SOME_SHARDS), local)
    assert kept_bytes(folder) <= SOME_SHARDS


@pytest.mark.parametrize("harm", ["flip", "cut", "index", "folder"])
def test_what_is_wrong_in_the_cache_is_fetched_again(
    bucket_shards: str, bucket_server: BucketServer, small_shards: str, folder: Path, harm: str
) -> None:
    reader = open_reader(bucket_shards, cache=folder)
    assert_same(reader, open_reader(small_shards))
    if harm == "folder":
        shutil.rmtree(folder)
    for path in folder.glob("*.npy" if harm == "index" else "*.tar"):
        content = bytearray(path.read_bytes())
        if harm == "cut":
            path.write_bytes(content[: len(content) // 2])
        else:
            content[200:] = bytes(len(content) - 200)
            path.write_bytes(content)
    for _ in range(2):
        # A fresh one has the rows of no index in memory.
        assert_same(open_reader(bucket_shards, cache=folder), open_reader(small_shards))
        assert_same(reader, open_reader(small_shards))
    # Whole again: nothing is asked for any more.
    bucket_server.access_log.clear()
    assert_same(reader, open_reader(small_shards))
    assert not shard_requests(bucket_server)


@pytest.mark.parametrize("harm", ["sample", "gone"])
def test_what_is_wrong_in_the_bucket_ends_reading_by_name(bucket_shards: str, folder: Path, harm: str) -> None:
    manifest = ShardManifest.load(bucket_shards)
    entry, reader = manifest.shards[0], open_reader(bucket_shards, cache=folder)
    uri = entry.uri(bucket_shards)
    if harm == "gone":
        storage.delete(uri)
    else:
        content = bytearray(storage.read_bytes(uri))
        content[1000] ^= 1
        storage.replace(uri, bytes(content))
    words = f"shard .*{entry.name}" + (" cannot be read" if harm == "gone" else ", sample .* has crc32c")
    with pytest.raises(DataError if harm == "gone" else DamagedSample, match=words):
        reader.sample(0)
    if harm == "sample":
        # Those beside it are none the worse.
        assert reader.sample(1)["image"]


def test_a_full_disk_says_what_to_do(bucket_shards: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_in(folder)
    kept = fetch(cache, 0)
    allocate, failures = os.posix_fallocate, [True]

    def fail(descriptor: int, offset: int, size: int) -> None:
        if failures and failures.pop():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", fail)
    # What was used least recently makes room.
    fetch(cache, 1)
    assert not kept.exists()
    failures += [True, True]
    with pytest.raises(StorageError, match=r"train-\w+-00002.tar .* cannot be kept in .* \(No space left") as caught:
        fetch(cache, 2)
    assert "data.cache_bytes lower" in caught.value.todo and not list(folder.glob("*.part"))


def test_shards_are_fetched_ahead_in_the_order_of_need_and_within_the_bound(bucket_shards: str, folder: Path) -> None:
    cache = cache_in(folder, SOME_SHARDS)
    needs = [Need(10 * (shard + 1), shard) for shard in range(8)]
    paths = [cache.path_of(cache._shards[need.shard]) for need in needs]
    with closing(Prefetcher(cache, needs).start()) as ahead:
        for number, _ in enumerate(needs):
            ahead.advance(10 * number)
            deadline = time.monotonic() + 30
            while not all(path.exists() for path in paths[number : number + 3]) and time.monotonic() < deadline:
                time.sleep(0.005)
            # Three fit, and none of them was deleted for what comes later.
            assert [path.exists() for path in paths[number : number + 4]] == [True, True, True, False][: 8 - number]
    assert kept_bytes(folder) <= SOME_SHARDS


@pytest.mark.parametrize("kind", ["full", "blocks"])
def test_each_byte_leaves_the_bucket_once_an_epoch_and_a_resume_fetches_what_is_missing_alone(
    bucket_shards: str, bucket_server: BucketServer, folder: Path, kind: str
) -> None:
    manifest = ShardManifest.load(bucket_shards)
    order = make_order(resolve_order(data_section(order=kind), bucket_shards, None).order, manifest, seed=1)
    bucket_server.access_log.clear()
    for position in (0, 16, 48):
        reader = open_reader(bucket_shards, cache=folder)
        assert reader.set_order(order) is None
        with closing(reader.prefetcher(order, position, epochs=2).start()) as ahead:
            for place in order.places(0, position, order.num_samples - position).tolist():
                reader.sample(place)
            ahead.advance(order.num_samples)
    sizes = [manifest.shards.bytes[number] for number in manifest.shards.numbers_of("train")]
    assert sorted(shard_requests(bucket_server)) == sorted(sizes)


def test_a_cache_that_does_not_hold_the_order_reads_samples_by_themselves(
    bucket_shards: str, bucket_server: BucketServer, small_shards: str, folder: Path
) -> None:
    manifest, local = ShardManifest.load(bucket_shards), open_reader(small_shards)
    order = make_order(resolve_order(data_section(), bucket_shards, None).order, manifest, seed=1)
    reader = open_reader(bucket_shards, cache=folder, cache_bytes=SOME_SHARDS)
    warning = reader.set_order(order)
    assert warning is not None and "by a request of its own; set data.cache_bytes to" in warning
    bucket_server.access_log.clear()
    places = order.places(0, 0, 16).tolist()
    reader.prepare(places)
    assert [reader.sample(place) for place in places] == [local.sample(place) for place in places]
    assert len(shard_requests(bucket_server)) == 16 and not list(folder.glob("*.tar"))
