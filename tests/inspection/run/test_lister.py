"""What an open list of runs in a bucket costs, by the requests that the bucket server counts."""

import time
from pathlib import Path

import pytest

from contracts import storage
from inspection.run.summary import RunLister
from inspection.ui.store import _BUCKET_FRESH_S
from rehearsal.gcs import BucketServer
from tests.inspection.lines import Planted, plant

ROOT = "gs://bucket-1/lines"
LINES = 8
# Of a day, whose requests are counted.
WATCHED_S = 480.0
# USD per 1,000 in a region, Standard storage: listings (class A) and reads (class B); cloud.google.com/storage/pricing.
LISTING_USD, READ_USD = 0.005, 0.0004


def upload(run: Planted, line: str) -> None:
    """Put what a list reads of a run into a bucket."""
    for path in run.line.rglob("*"):
        if path.is_file() and {"runs", "attempts"} & set(path.parts):
            storage.replace(f"{ROOT}/{line}/{path.relative_to(run.line)}", path.read_bytes())


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_two_hundred_lines_cost_less_than_a_dollar_a_day(
    small_shards: str, tmp_path: Path, bucket_server: BucketServer
) -> None:
    now = 1000.0
    lister = RunLister(ROOT, clock=lambda: now)

    def watch(seconds: float, every_s: float = _BUCKET_FRESH_S) -> tuple[float, float]:
        """Read again and again; return listings and other requests of a day."""
        nonlocal now
        bucket_server.access_log.clear()
        for _ in range(int(seconds / every_s)):
            now += every_s
            lister.read()
        entries = bucket_server.access_log.entries()
        listings = sum(entry.operation == "objects.list" for entry in entries)
        return listings / seconds * 86_400, (len(entries) - listings) / seconds * 86_400

    ended = plant(tmp_path / "ended", small_shards, kind="failed")
    for number in range(LINES):
        upload(ended, f"line-{number:03d}")
    assert len(lister.read()) == LINES
    # Lines that have just been found are looked into more often.
    watch(1200, 240)
    listings, reads = watch(WATCHED_S)
    # Of the root once each time; the others are of lines.
    of_root = 86_400 / _BUCKET_FRESH_S
    of_lines = (listings - of_root) * 200 / LINES
    a_day = (of_root + of_lines) * LISTING_USD / 1000
    assert 0.3 < a_day < 0.5 and reads == 0, (a_day, reads)
    running = plant(tmp_path / "running", small_shards, kind="running", now=time.time() - 60)
    upload(running, "running")
    watch(1200, 240)
    assert {line.state for line in lister.read()} == {"failed", "running"}
    more, reads = watch(WATCHED_S)
    a_day += (more - listings) * LISTING_USD / 1000 + reads * READ_USD / 1000
    assert a_day < 1.0, a_day
    # A new run in a line that was quiet is there within four minutes.
    upload(plant(tmp_path / "new", small_shards, kind="failed", run_id="20261122-080000-0009"), "line-003")
    watch(240, 240)
    assert len(lister.read()) == LINES + 2


def test_a_run_of_which_nothing_is_known_is_not_read_each_time(small_shards: str, tmp_path: Path) -> None:
    run = plant(tmp_path / "roses", small_shards, kind="running")
    (run.folder / ".lock").unlink(missing_ok=True)
    now = 1000.0
    lister = RunLister(str(tmp_path), clock=lambda: now)
    (line,) = lister.read()
    assert line.state == "unknown"
    (again,) = lister.read()
    assert again is line
    now += 601
    (later,) = lister.read()
    assert later is not line
