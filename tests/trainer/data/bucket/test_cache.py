"""The cache on disk: claims, eviction, and whatever can happen to its files."""

import multiprocessing
import os
import signal
import time
from multiprocessing.synchronize import Event as EventType
from pathlib import Path

import pytest

from contracts.errors import ConfigError
from trainer.data.bucket.cache import MARKER_NAME, RangeCache, RangeClaim

SHARD = "00c0ffee-1000"


def opened(folder: Path, limit_bytes: int = 1000) -> RangeCache:
    cache = RangeCache(folder, limit_bytes)
    cache.open()
    return cache


def fill(cache: RangeCache, first: int, count: int, size: int = 10, shard: str = SHARD) -> None:
    claims, _ = cache.claim(shard, first, count)
    for claim in claims:
        assert cache.reserve(claim, size)
        os.pwrite(claim.descriptor, bytes(size), 0)
        claim.publish()


def spans(cache: RangeCache, shard: str = SHARD) -> list[tuple[int, int]]:
    return [(held.first, held.end) for held in cache.held(shard)]


def bounds(claims: list[RangeClaim]) -> list[tuple[int, int]]:
    found = [(claim.first, claim.count) for claim in claims]
    for claim in claims:
        claim.abandon()
    return found


def _claim_and_hang(folder: Path, ready: EventType) -> None:
    RangeCache(folder, 1000).claim(SHARD, 0, 10)
    ready.set()
    time.sleep(60)


def test_the_claim_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_claim_and_hang, args=(tmp_path, ready))
    process.start()
    assert ready.wait(60)
    assert cache.claim(SHARD, 0, 10) == ([], True)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert bounds(cache.claim(SHARD, 0, 10)[0]) == [(0, 10)]
    assert list((tmp_path / SHARD).glob("*.part")) == []


def test_the_least_recently_used_goes_first_and_what_is_done_before_it(tmp_path: Path) -> None:
    cache = opened(tmp_path, 100)
    for number in range(9):
        fill(cache, number * 10, 10)
        date = time.time() - 1000 + number
        os.utime(tmp_path / SHARD / f"{number * 10}-10", (date, date))
    cache.touch(cache.held(SHARD)[0])
    fill(cache, 100, 10, size=20)
    assert spans(cache)[:2] == [(0, 10), (20, 30)]
    cache.done(SHARD, 70, 10)
    fill(cache, 200, 10, size=10)
    assert (70, 80) not in spans(cache)
    assert (20, 30) in spans(cache)


def test_the_bound_holds_with_claims_under_way_and_a_lost_count(tmp_path: Path) -> None:
    cache = opened(tmp_path, 100)
    [claim], _ = cache.claim(SHARD, 0, 10)
    assert cache.reserve(claim, 60)
    (tmp_path / ".usage").write_bytes(b"torn")
    [other], _ = cache.claim(SHARD, 10, 10)
    assert not cache.reserve(other, 60)
    assert not cache.reserve(other, 101)
    other.abandon()
    claim.publish()
    fill(cache, 10, 10, size=60)
    assert spans(cache) == [(10, 20)]


def test_a_folder_that_is_not_ours_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        opened(tmp_path / "file")


def test_an_empty_folder_and_a_fresh_file_system_are_taken(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    opened(tmp_path)
    assert (tmp_path / MARKER_NAME).exists()
    (tmp_path / "anything").write_text("")
    opened(tmp_path)
