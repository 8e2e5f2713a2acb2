"""Schedules fire by the rehearsed clock, and what may be done to one."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as gapic

from rehearsal.clock import Clock
from rehearsal.vertex import pipeline_jobs

from .conftest import PARENT, Cloud, pipeline_job, rest

# Monday; on Sunday the 25th Berlin goes back to winter time.
BEGIN = datetime(2026, 10, 19, tzinfo=UTC).timestamp()
WEEKLY = "TZ=Europe/Berlin 0 6 * * 1"


def at(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[arg-type, misc]


def schedule(**changes: Any) -> dict[str, Any]:
    job = {key: value for key, value in pipeline_job().items() if key != "display_name"}
    return {
        "display_name": "weekly",
        "cron": WEEKLY,
        "max_concurrent_run_count": 1,
        "max_concurrent_active_run_count": 1,
        "create_pipeline_job_request": {"parent": PARENT, "pipeline_job": job},
    } | changes


class Timeline:
    """A cloud whose clock stands still until it is moved, its schedules, and waiting for what they do."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.client = rest(cloud, gapic.ScheduleServiceClient)

    def create(self, **changes: Any) -> gapic.Schedule:
        return self.client.create_schedule(parent=PARENT, schedule=schedule(**changes))

    def get(self, name: str) -> gapic.Schedule:
        return self.client.get_schedule(name=name)

    def wait(self, name: str, until: Callable[[Any], bool]) -> Any:
        found = self.cloud.store.wait(name, until, 60)
        assert until(found), found
        return found

    def advance_to(self, moment: float, name: str) -> Any:
        """Move the clock and wait until everything due has been dealt with."""
        self.cloud.clock.advance(moment - self.cloud.clock.now())
        over = gapic.Schedule.State.ACTIVE
        return self.wait(name, lambda s: s.state != over or s.next_run_time.timestamp() > moment)

    def times(self) -> list[float]:
        return list(self.cloud.store.scheduled_s.values())


@pytest.fixture
def line(make_cloud: Callable[..., Cloud]) -> Timeline:
    return Timeline(make_cloud(clock=Clock(BEGIN, rate=0)))


def test_what_no_schedule_is(line: Timeline) -> None:
    for changes, field in (
        ({"cron": "0 6 * *"}, "schedule.cron"),
        ({"cron": "TZ=Europe/Nowhere 0 6 * * 1"}, "schedule.cron"),
        ({"max_concurrent_run_count": 0}, "schedule.max_concurrent_run_count"),
        ({"create_pipeline_job_request": {"parent": PARENT}}, "runtime_config.gcs_output_directory"),
    ):
        with pytest.raises(exceptions.BadRequest, match=field.replace(".", r"\.")):
            line.create(**changes)


def test_what_no_schedule_of_a_line_has_is_refused_by_name(line: Timeline) -> None:
    later = datetime(2026, 10, 26, 5, tzinfo=UTC)
    for name, value in {"allow_queueing": True, "max_run_count": 2, "start_time": later, "end_time": later}.items():
        with pytest.raises(exceptions.MethodNotImplemented, match=name):
            line.create(**{name: value})
    made = line.create()
    line.client.pause_schedule(name=made.name)
    with pytest.raises(exceptions.MethodNotImplemented, match="catch_up"):
        line.client.resume_schedule({"name": made.name, "catch_up": True})


def test_a_fault_of_ours_ends_one_run_and_not_the_schedules(line: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken, one exception ends the thread, and a rehearsal waits for ever for the next time."""
    made = line.create()
    with monkeypatch.context() as patched:
        patched.setattr(pipeline_jobs, "add", None)
        found = line.advance_to(at(2026, 10, 19, 5), made.name)
    assert found.last_scheduled_run_response.run_response == "INTERNAL: the rehearsal's own fault"
    assert "NoneType" in line.cloud.server._dispatcher.failures.pop()
    line.advance_to(at(2026, 10, 26, 6), made.name)
    assert len(line.times()) == 2 and line.get(made.name).started_run_count == 1
