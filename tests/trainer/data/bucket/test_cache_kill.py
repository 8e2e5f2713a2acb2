"""Processes that are killed at any moment leave a cache that the next ones read right."""

import gc
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.gcs import BucketServer
from rehearsal.gcs.faults import Rule
from tests.trainer.data.conftest import open_reader
from trainer.data.reader import ShardReader

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

# Room for some of the ranges only: some are evicted, and claimed again.
FIELDS = {"range_bytes": 4096, "cache_bytes": 40_000}


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect what the client dropped before the next test counts it as its own."""
    yield
    gc.collect()


def read_again_and_again(uri: str, cache: Path) -> None:
    reader = open_reader(uri, cache=cache, **FIELDS)
    while True:
        for place in range(len(reader)):
            reader.prepare([place])
            reader.sample(place)


def assert_same(reader: ShardReader, local: ShardReader) -> None:
    for place in range(len(local)):
        reader.prepare([place])
        assert reader.sample(place) == local.sample(place)


def kept_bytes(cache: Path) -> int:
    return sum(path.stat().st_size for path in cache.glob("*-*/*-*"))


def test_two_ranks_that_are_killed_leave_a_cache_that_is_right(
    bucket_shards: str, bucket_server: BucketServer, small_shards: str, tmp_path: Path
) -> None:
    bucket_server.faults.set(Rule(object="*.tar", latency_s=0.003))
    cache, local = tmp_path / "cache", open_reader(small_shards)
    # Forked: no time goes into imports, so that kills land everywhere in the work. The moments are drawn.
    context = multiprocessing.get_context("fork")
    leftovers = 0
    for _ in range(12):
        processes = [context.Process(target=read_again_and_again, args=(bucket_shards, cache)) for _ in range(2)]
        for process in processes:
            process.start()
        deadline = time.monotonic() + 60
        while not kept_bytes(cache) and time.monotonic() < deadline:
            time.sleep(0.005)
        for process in processes:
            time.sleep(random.uniform(0, 0.1))
            assert process.exitcode is None and process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        for process in processes:
            process.join()
        leftovers += len(list(cache.glob("*-*/*.part")))
    reader = open_reader(bucket_shards, cache=cache, **FIELDS)
    assert_same(reader, local)
    # Claims of the dead went to the reader, and the bound holds for what they had counted and never written.
    assert kept_bytes(cache) <= FIELDS["cache_bytes"]
    print(f"{leftovers} claims of killed processes")
    assert leftovers > 0
