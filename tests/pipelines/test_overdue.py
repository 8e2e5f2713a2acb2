"""When a job counts as one that no machine came for: `submit --wait` then tries the next region."""

import dataclasses
from datetime import UTC, datetime, timedelta

from pipelines.runs.follow import find_overdue
from pipelines.runs.jobs import Job


def job(state: str, name: str = "a", created_at: datetime | None = None) -> Job:
    return Job(
        "CustomJob", f"projects/p/locations/r/customJobs/{name}", "r", name, state, "train", created_at=created_at
    )


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


def test_a_wait_that_began_before_this_command_counts() -> None:
    created = datetime.now(UTC) - timedelta(seconds=3600)
    assert find_overdue([job("PENDING", created_at=created)], {}, now=0, limit_s=600) is not None


def test_a_clock_that_is_not_ours_does_not_count() -> None:
    for days in (-30, 30):
        created = datetime.now(UTC) + timedelta(days=days)
        assert find_overdue([job("PENDING", created_at=created)], {}, now=0, limit_s=600) is None
