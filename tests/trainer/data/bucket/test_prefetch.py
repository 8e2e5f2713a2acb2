"""Fetching ahead: in the order of need, within a budget, no more than is wanted, and never silently broken."""

import gc
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contracts import storage
from contracts.artifacts import ShardManifest
from records.index import DamagedSample
from rehearsal.gcs import BucketServer
from rehearsal.gcs.faults import Rule
from tests.trainer.data.conftest import image_runs, open_reader, shard_requests
from trainer.data.bucket.fetch import Fetcher, Streams
from trainer.data.bucket.plan import NEVER, Grid, PlannedRange, ReadPlan
from trainer.data.bucket.prefetch import Prefetcher
from trainer.data.order.resolve import FullOrder, Order

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect what the client dropped before the next test counts it as its own."""
    yield
    gc.collect()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def needs_of(manifest: ShardManifest, count: int) -> list[PlannedRange]:
    """Return whole shards of the training split, each needed up to its own position from 1 on."""
    shards = [(n, shard) for n, shard in enumerate(manifest.shards) if shard.split == "train"][:count]
    return [
        PlannedRange(number, 0, shard.samples, position) for position, (number, shard) in enumerate(shards, start=1)
    ]


def test_the_prefetcher_keeps_to_its_budget(bucket_shards: str, tmp_path: Path) -> None:
    reader = open_reader(bucket_shards, cache=tmp_path)
    assert reader.fetcher is not None
    fetcher: Fetcher = reader.fetcher
    needs = needs_of(reader.grid.manifest, 6)
    sizes = [fetcher.extent(need.shard, need.first, need.samples)[1] for need in needs]

    def held() -> list[bool]:
        return [bool(fetcher.held(need.shard)) for need in needs]

    with Prefetcher(fetcher, needs, 2 * max(sizes)) as prefetcher:
        wait_for(lambda: sum(held()) == 2)
        time.sleep(0.1)
        assert held() == [True, True, False, False, False, False]
        prefetcher.advance(1)
        wait_for(lambda: sum(held()) == 3)
        prefetcher.advance(2)
        wait_for(lambda: sum(held()) == 4)
        # A position far behind all that is left, which nobody needs any more.
        prefetcher.advance(1000)
    assert held() == [True, True, True, True, False, False]


def test_what_stop_meets_is_given_up(bucket_shards: str, bucket_server: BucketServer, tmp_path: Path) -> None:
    reader = open_reader(bucket_shards, cache=tmp_path)
    assert reader.fetcher is not None
    reader.fetcher.streams = Streams(2, 2)
    needs = needs_of(reader.grid.manifest, 8)
    # On their way for long enough to be met.
    bucket_server.faults.set(Rule(object="*.tar", latency_s=1.0))
    bucket_server.access_log.clear()
    with Prefetcher(reader.fetcher, needs, sys.maxsize):
        wait_for(lambda: len(list(tmp_path.glob("*-*/*.part"))) == reader.fetcher.streams.most_requests)
    # Nothing waited behind those on their way, and of those nothing is left.
    assert not list(tmp_path.glob("*-*/*-*"))
    assert len(shard_requests(bucket_server)) <= reader.fetcher.streams.most_requests
    # The ranges are free for whoever comes next.
    bucket_server.faults.set()
    assert reader.fetcher.ensure(needs[0].shard, 0, needs[0].samples)


def test_a_fault_of_the_threads_is_raised_by_the_reader(bucket_shards: str, tmp_path: Path) -> None:
    reader = open_reader(bucket_shards, cache=tmp_path)
    assert reader.fetcher is not None

    def broken() -> Iterator[PlannedRange]:
        yield from needs_of(reader.grid.manifest, 1)
        raise ZeroDivisionError("a plan that cannot be")

    with Prefetcher(reader.fetcher, broken(), sys.maxsize) as prefetcher:
        wait_for(lambda: prefetcher._fault is not None)
        with pytest.raises(ZeroDivisionError, match="a plan that cannot be"):
            prefetcher.advance(1)


@pytest.mark.parametrize("position", [0, 13])
def test_ranges_that_all_stay_are_looked_at_once(small_manifest: ShardManifest, position: int) -> None:
    count = small_manifest.splits["train"].samples
    order: Order = FullOrder(count, seed=3)
    plan = ReadPlan(Grid(small_manifest, 2000), "train", order)
    # Ends, although training does not.
    found = list(itertools.islice(plan.coming(position, sys.maxsize), 10_000))
    assert len(found) == len(set(found)) < 10_000
    assert {need.until for need in found} == {NEVER}
    grid = Grid(small_manifest, 2000)
    starts = {n: shard.first for n, shard in enumerate(small_manifest.shards) if shard.split == "train"}
    expected = []
    for offset in range(position, count):
        place = int(order.places(0, offset, 1)[0]) + small_manifest.splits["train"].first
        shard = max(n for n, first in starts.items() if first <= place)
        need = PlannedRange(*grid.range_of(shard, place - starts[shard]), NEVER)
        if need not in expected:
            expected.append(need)
    # In the order of first need.
    assert found[: len(expected)] == expected


@pytest.mark.parametrize("damage", ["flip", "truncate"])
def test_a_bad_sample_costs_its_range_no_second_time(
    bucket_shards: str, bucket_server: BucketServer, tmp_path: Path, damage: str
) -> None:
    manifest = ShardManifest.load(bucket_shards)
    entry = next(shard for shard in manifest.shards if shard.split == "train")
    uri = entry.uri(bucket_shards)
    content = bytearray(storage.read_bytes(uri))
    place = content.rindex(b"IDAT") + 10
    content[place] ^= 1
    storage.replace(uri, bytes(content if damage == "flip" else content[:place]))
    bucket_server.access_log.clear()
    total = image_runs(bucket_shards)
    largest = max(
        int(record["size"])
        for record in open_reader(bucket_shards, cache=tmp_path).index[: manifest.splits["train"].samples]
    )
    readings = 4
    for _ in range(readings):
        # Another process, by all that it knows.
        reader = open_reader(bucket_shards, cache=tmp_path)
        bad = 0
        for number in range(len(reader)):
            reader.prepare([number])
            try:
                reader.sample(number)
            except DamagedSample:
                bad += 1
        assert bad == 1
    # Each range once; of the bad sample what a look at it takes, and one more when its range came.
    assert sum(shard_requests(bucket_server)) <= total + 2 * (readings + 1) * largest


def test_a_wait_that_is_interrupted_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(condition: object) -> bool:
        raise KeyboardInterrupt

    streams = Streams(1, 1)
    with monkeypatch.context() as patched:
        patched.setattr(streams._changed, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt), streams.request():
            pass
    taken = threading.Event()

    def take() -> None:
        with streams.request():
            taken.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    assert taken.wait(20)
    thread.join()


def test_a_range_that_came_again_meanwhile_is_not_deleted(
    bucket_shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = open_reader(bucket_shards, cache=tmp_path)
    fetcher = reader.fetcher
    assert fetcher is not None
    reader.prepare([0])
    shard = reader.origin_of(0)[0]
    (held,) = fetcher.held(shard)
    held.path.unlink()
    from_bucket = fetcher.sample

    def another_was_faster(number: int, record: object) -> bytes:
        assert fetcher.ensure(number, held.first, held.end - held.first)
        return from_bucket(number, record)

    monkeypatch.setattr(fetcher, "sample", another_was_faster)
    reader.sample(0)
    assert fetcher.held(shard) == [held]
