"""What a stage has made for a run, in a bucket that takes one write per second to an object."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.result import find_result, leave_result
from rehearsal.gcs import BucketServer

LINE, OUTPUT = "gs://line/lines/digits", "gs://line/lines/digits/train/0123"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    with BucketServer(tmp_path, buckets=["line"], is_open=True, write_interval_s=3600) as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


def test_machines_that_finish_together_do_not_wait_for_each_other(server: BucketServer) -> None:
    storage.publish(f"{OUTPUT}/{MANIFEST_NAME}", b"{}")
    first = leave_result(LINE, "run-1", "train", OUTPUT, reused=False)
    assert leave_result(LINE, "run-1", "train", OUTPUT, reused=False) == first == find_result(LINE, "run-1", "train")
    assert 429 not in {entry.status for entry in server.access_log.snapshot()}


def test_a_later_attempt_may_say_something_else(server: BucketServer) -> None:
    storage.publish(f"{OUTPUT}/{MANIFEST_NAME}", b"{}")
    leave_result(LINE, "run-1", "train", OUTPUT, reused=False)
    server.objects.write_rate.forget()
    assert leave_result(LINE, "run-1", "train", OUTPUT, reused=True) == find_result(LINE, "run-1", "train")
