import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pipelines.runs.diagnosis import Said, diagnose, diagnose_waiting
from pipelines.runs.follow import Ending, find_overdue
from pipelines.runs.jobs import Job
from pipelines.submission.ladder import decide, rung_run_id


def job(state: str, name: str = "a", created_at: datetime | None = None) -> Job:
    return Job(
        "CustomJob", f"projects/p/locations/r/customJobs/{name}", "r", name, state, "train", created_at=created_at
    )


@pytest.mark.parametrize(
    ("message", "code", "climbs"),
    [
        ("Resources are insufficient in region: us-central1.", 8, True),
        ("The following quota metrics exceed quota limits: x", 8, True),
        ("The job was preempted too often", 0, True),
        ("CUDA out of memory", 3, False),
        ("Failed to pull image x", 3, False),
        ("503 UNAVAILABLE", 14, False),
        ("who knows", 0, False),
    ],
)
def test_a_failure_climbs_where_another_place_may_mend_it(message: str, code: int, climbs: bool) -> None:
    ending = Ending("FAILED", diagnose([Said(message, code)]))
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
    assert Ending("FAILED", diagnose([Said("Failed to pull image x")])).exit_code == 2


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


HALF_A_DAY_S = 12 * 3600.0


def test_a_job_that_was_preempted_may_wait_for_half_a_day() -> None:
    # First as the service tells it (started_at), then as it was seen here.
    now = datetime.now(UTC)
    created = now - timedelta(hours=22)
    told = dataclasses.replace(job("PENDING", created_at=created), started_at=created + timedelta(minutes=5))
    assert find_overdue([told], {}, now=0, limit_s=3600) is None
    since: dict[str, float] = {}
    for moment, state in ((0.0, "RUNNING"), (60.0, "PENDING"), (60.0 + HALF_A_DAY_S, "PENDING")):
        assert find_overdue([job(state, created_at=created)], since, now=moment, limit_s=3600) is None


def test_a_job_in_the_queue_waits_for_quota_and_a_pending_one_for_machines() -> None:
    told = {state: diagnose_waiting(state) for state in ("QUEUED", "PENDING")}
    assert {state: found.kind for state, found in told.items()} == {"QUEUED": "quota queue", "PENDING": "stockout"}
    ending = Ending("PENDING", told["QUEUED"], waiting=job("QUEUED"))
    assert (ending.exit_code, "quota" in decide(ending, is_last=False).why) == (75, True)


def test_a_wait_that_began_before_this_command_counts() -> None:
    created = datetime.now(UTC) - timedelta(seconds=3600)
    assert find_overdue([job("PENDING", created_at=created)], {}, now=0, limit_s=600) is not None


def test_a_clock_that_is_not_ours_does_not_count() -> None:
    for days in (-30, 30):
        created = datetime.now(UTC) + timedelta(days=days)
        assert find_overdue([job("PENDING", created_at=created)], {}, now=0, limit_s=600) is None
