"""Schedules fire by the rehearsed clock, and what may be done to one."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as gapic

from rehearsal.clock import Clock
from rehearsal.errors import ServiceError
from rehearsal.vertex import pipeline_jobs, schedules

from .conftest import PARENT, Cloud, pipeline_job, rest

DAY, WEEK = 86400.0, 7 * 86400.0
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

    def end_runs(self) -> None:
        for name in list(self.cloud.store.scheduled_s):
            state = gapic.PipelineState.PIPELINE_STATE_SUCCEEDED
            self.cloud.store.update(name, lambda job, state=state: setattr(job, "state", state))


@pytest.fixture
def line(make_cloud: Callable[..., Cloud]) -> Timeline:
    return Timeline(make_cloud(clock=Clock(BEGIN, rate=0)))


def test_three_weeks_across_the_end_of_summer_time(line: Timeline) -> None:
    line.cloud.pipelines.go.set()
    made = line.create()
    assert made.next_run_time.timestamp() == at(2026, 10, 19, 4)
    for week in range(3):
        line.advance_to(BEGIN + (week + 1) * WEEK - DAY, made.name)
        for name in line.cloud.pipelines.started:
            line.wait(name, lambda job: job.state == gapic.PipelineState.PIPELINE_STATE_SUCCEEDED)
    assert line.times() == [at(2026, 10, 19, 4), at(2026, 10, 26, 5), at(2026, 11, 2, 5)]
    pipelines = rest(line.cloud, gapic.PipelineServiceClient)
    jobs = list(pipelines.list_pipeline_jobs({"parent": PARENT, "filter": f"schedule_name={made.name}"}))
    assert [job.name.rsplit("/", 1)[1] for job in jobs] == [
        "line-20261102050000",
        "line-20261026050000",
        "line-20261019040000",
    ]
    assert line.get(made.name).started_run_count == 3


def test_a_fast_clock_fires_without_being_moved(line: Timeline) -> None:
    line.cloud.pipelines.go.set()
    made = line.create(max_concurrent_active_run_count=0)
    line.cloud.clock.rate = 3 * WEEK
    line.wait(made.name, lambda s: s.started_run_count >= 3)
    line.cloud.clock.rate = 0
    assert line.times()[:3] == [at(2026, 10, 19, 4), at(2026, 10, 26, 5), at(2026, 11, 2, 5)]


def test_a_run_that_is_active_makes_the_next_one_skip(line: Timeline) -> None:
    made = line.create()
    line.advance_to(at(2026, 10, 19, 5), made.name)
    found = line.advance_to(at(2026, 10, 26, 6), made.name)
    assert line.times() == [at(2026, 10, 19, 4)]
    assert found.last_scheduled_run_response.run_response.startswith("Skipped: 1 of 1")
    assert found.last_scheduled_run_response.scheduled_run_time.timestamp() == at(2026, 10, 26, 5)
    line.end_runs()
    line.advance_to(at(2026, 11, 2, 6), made.name)
    assert line.times() == [at(2026, 10, 19, 4), at(2026, 11, 2, 5)]


def test_a_paused_schedule_misses_its_runs(line: Timeline) -> None:
    made = line.create()
    line.client.pause_schedule(name=made.name)
    assert line.get(made.name).state == gapic.Schedule.State.PAUSED
    with pytest.raises(exceptions.BadRequest, match="PAUSED"):
        line.client.pause_schedule(name=made.name)
    line.cloud.clock.advance(2 * WEEK)
    line.client.resume_schedule({"name": made.name})
    line.advance_to(at(2026, 11, 2, 6), made.name)
    assert line.times() == [at(2026, 11, 2, 5)]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cron": "0 6 * *"}, "schedule.cron"),
        ({"cron": "TZ=Europe/Nowhere 0 6 * * 1"}, "schedule.cron"),
        ({"cron": "0 26 * * 1"}, "schedule.cron"),
        ({"max_concurrent_run_count": 0}, "schedule.max_concurrent_run_count"),
        ({"display_name": ""}, "schedule.display_name"),
        ({"create_pipeline_job_request": {"parent": PARENT}}, "runtime_config.gcs_output_directory"),
    ],
)
def test_what_no_schedule_is(line: Timeline, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(exceptions.BadRequest, match=field.replace(".", r"\.")):
        line.create(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"allow_queueing": True},
        {"max_run_count": 2},
        {"start_time": datetime(2026, 10, 26, 5, tzinfo=UTC)},
        {"end_time": datetime(2026, 10, 20, tzinfo=UTC)},
    ],
)
def test_what_no_schedule_of_a_line_has_is_refused_by_name(line: Timeline, changes: dict[str, Any]) -> None:
    with pytest.raises(exceptions.MethodNotImplemented, match=next(iter(changes))):
        line.create(**changes)
    made = line.create()
    line.client.pause_schedule(name=made.name)
    with pytest.raises(exceptions.MethodNotImplemented, match="catch_up"):
        line.client.resume_schedule({"name": made.name, "catch_up": True})


def test_a_deleted_schedule_fires_no_more(line: Timeline) -> None:
    made, other = line.create(), line.create(max_concurrent_active_run_count=0)
    line.client.delete_schedule(name=made.name).result(10)
    with pytest.raises(exceptions.NotFound):
        line.get(made.name)
    line.advance_to(at(2026, 10, 19, 5), other.name)
    assert len(line.times()) == 1


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


def test_a_schedule_that_is_deleted_meanwhile_is_not_found(line: Timeline) -> None:
    """Both calls have found it; the other one was first."""
    cloud = line.cloud.server.state
    name = line.create().name
    cloud.store.remove(name)
    with pytest.raises(ServiceError) as caught:
        schedules._change(cloud, name, lambda schedule: None)
    assert caught.value.code == "NOT_FOUND"
    schedules.ScheduleRunner(cloud, [])._advance(name, BEGIN, "OK", is_started=True)


def test_a_mask_with_an_unknown_field_is_refused(line: Timeline) -> None:
    client = rest(line.cloud, gapic.PipelineServiceClient)
    client.create_pipeline_job(parent=PARENT, pipeline_job=pipeline_job())
    with pytest.raises(exceptions.BadRequest, match="colour"):
        client.list_pipeline_jobs({"parent": PARENT, "read_mask": "name,colour"})
