import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pipelines.diagnosis import diagnose
from pipelines.follow import Ending, find_overdue
from pipelines.ladder import decide, rung_run_id
from pipelines.run_jobs import Job


def job(state: str, name: str = "a", created_at: datetime | None = None) -> Job:
    return Job(
        "CustomJob", f"projects/p/locations/r/customJobs/{name}", "r", name, state, "train", created_at=created_at
    )


@pytest.mark.parametrize(
    ("message", "climbs"),
    [
        ("Resources are insufficient in region: us-central1.", True),
        ("The following quota metrics exceed quota limits: x", True),
        ("The job was preempted too often", True),
        ("CUDA out of memory", False),
        ("Failed to pull image", False),
        ("503 UNAVAILABLE", False),
        ("who knows", False),
    ],
)
def test_a_failure_climbs_where_another_place_may_mend_it(message: str, climbs: bool) -> None:
    ending = Ending("FAILED", diagnose([message]))
    assert decide(ending, is_last=False).climb is climbs
    assert decide(ending, is_last=True).climb is False
    assert decide(ending, is_last=False).cancel is False


def test_a_rung_without_machines_is_cancelled_first() -> None:
    step = decide(Ending("PENDING", None, waiting=job("PENDING")), is_last=False)
    assert step.climb and step.cancel


@pytest.mark.parametrize("state", ["SUCCEEDED", "CANCELLED"])
def test_other_ends_end_the_ladder(state: str) -> None:
    assert not decide(Ending(state, None), is_last=False).climb


def test_exit_codes_of_endings() -> None:
    codes: dict[str, Any] = {"SUCCEEDED": 0, "CANCELLED": 75}
    assert {state: Ending(state, None).exit_code for state in codes} == codes
    assert Ending("FAILED", diagnose(["Failed to pull image"])).exit_code == 2


def test_rungs_are_counted_from_the_second() -> None:
    assert [rung_run_id("run", index) for index in range(3)] == ["run", "run-r2", "run-r3"]


def test_a_job_is_overdue_when_it_has_waited_for_longer_than_the_limit() -> None:
    since: dict[str, float] = {}
    for now, expected in ((100.0, False), (110.0, False), (110.5, True)):
        found = find_overdue([job("RUNNING", "b"), job("PENDING")], since, now=now, limit_s=10)
        assert (found is not None) is expected
    assert find_overdue([job("PENDING")], since, now=1e6, limit_s=None) is None


def test_dataflow_queues_by_itself() -> None:
    queued = dataclasses.replace(job("QUEUED"), kind="Dataflow")
    assert find_overdue([queued], {queued.name: -1e6}, now=0, limit_s=10) is None


def test_machines_that_came_start_the_wait_anew() -> None:
    since: dict[str, float] = {}
    find_overdue([job("PENDING")], since, now=0, limit_s=10)
    find_overdue([job("RUNNING")], since, now=9, limit_s=10)
    assert find_overdue([job("PENDING")], since, now=11, limit_s=10) is None


def test_a_wait_that_began_before_this_command_counts() -> None:
    created = datetime.now(UTC) - timedelta(seconds=3600)
    assert find_overdue([job("PENDING", created_at=created)], {}, now=0, limit_s=600) is not None


def test_a_clock_that_is_not_ours_does_not_count() -> None:
    for days in (-30, 30):
        created = datetime.now(UTC) + timedelta(days=days)
        assert find_overdue([job("PENDING", created_at=created)], {}, now=0, limit_s=600) is None
