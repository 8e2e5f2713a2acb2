"""Fetching from the bucket: several processes, one fetch a range; as many streams as help; memory and size bounds."""

import gc
import itertools
import multiprocessing
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from contracts.artifacts import ShardManifest
from rehearsal.gcs import BucketServer
from rehearsal.gcs.faults import Rule
from tests.trainer.data.conftest import image_runs, open_reader, shard_requests
from trainer.data.bucket.fetch import Streams

# Google's client drops the connection of an answer that is an error, and leaves it to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect what the client dropped before the next test counts it as its own."""
    yield
    gc.collect()


def _read_all(uri: str, cache: Path) -> None:
    reader = open_reader(uri, cache=cache)
    for place in range(len(reader)):
        reader.prepare([place])
        reader.sample(place)


def test_two_processes_fetch_each_range_once(bucket_shards: str, bucket_server: BucketServer, tmp_path: Path) -> None:
    bucket_server.faults.set(Rule(object="*.tar", latency_s=0.02))
    bucket_server.access_log.clear()
    # Forked: no time goes into imports.
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_read_all, args=(bucket_shards, tmp_path)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    # The rows of each shard once; the header of a part once a process.
    answers = bucket_server.access_log.entries(operation="objects.media", object="*/index*")
    manifest = ShardManifest.load(bucket_shards)
    samples, parts = manifest.splits["train"].samples, len(manifest.index_parts)
    assert 44 * samples < sum(answer.bytes_out for answer in answers) <= 44 * samples + 2 * 64 * parts
    total = image_runs(bucket_shards)
    # Without what lies between two ranges.
    assert 0.8 * total < sum(shard_requests(bucket_server)) <= total


def run_streams(streams: Streams, rate_of: dict[int, float]) -> None:
    """Let all streams receive, at a total rate that depends on their number, until it is settled."""
    for _ in range(20):
        with ExitStack() as turns:
            limit = streams.limit
            counts = [turns.enter_context(streams.request()) for _ in range(limit)]
            for count in counts * 4:
                count(int(rate_of[limit]))


@pytest.mark.parametrize(
    ("rate_of", "expected"),
    [
        ({4: 100, 8: 200, 16: 400, 32: 800}, 32),
        ({4: 100, 8: 180, 16: 190, 32: 190}, 8),
        ({4: 100, 8: 100, 16: 100, 32: 100}, 4),
    ],
)
def test_streams_double_while_it_helps(
    monkeypatch: pytest.MonkeyPatch, rate_of: dict[int, float], expected: int
) -> None:
    clock = itertools.count(0, 0.1)
    monkeypatch.setattr("trainer.data.bucket.fetch.time.monotonic", lambda: next(clock))
    streams = Streams()
    run_streams(streams, rate_of)
    assert streams.limit == expected


@pytest.mark.parametrize(("latency_s", "receiving_s", "expected"), [(0.03, 0.3, 5), (0.1, 0.05, 8)])
def test_as_many_requests_are_on_their_way_as_hide_the_latency(
    monkeypatch: pytest.MonkeyPatch, latency_s: float, receiving_s: float, expected: int
) -> None:
    now = [0.0]
    monkeypatch.setattr("trainer.data.bucket.fetch.time.monotonic", lambda: now[0])
    streams = Streams(4, 4)
    assert streams.most_requests == 5
    for _ in range(100):
        with streams.request() as count:
            now[0] += latency_s
            count(1)
            now[0] += receiving_s
    assert streams.most_requests == expected
