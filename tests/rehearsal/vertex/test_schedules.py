"""Schedules fire by the rehearsed clock, and what may be done to one."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import aiplatform_v1 as gapic

from rehearsal.clock import Clock
from rehearsal.vertex.schedule_runner import ScheduleRunner

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


def test_with_queueing_it_waits_for_its_place(line: Timeline) -> None:
    made = line.create(allow_queueing=True)
    line.advance_to(at(2026, 11, 2, 6), made.name)
    assert line.times() == [at(2026, 10, 19, 4)]
    for started in (2, 3):
        line.end_runs()
        line.wait(made.name, lambda s, started=started: s.started_run_count == started)
    assert line.times() == [at(2026, 10, 19, 4), at(2026, 10, 26, 5), at(2026, 11, 2, 5)]


def test_a_queue_goes_on_when_its_limit_is_taken_away(line: Timeline) -> None:
    made = line.create(allow_queueing=True)
    line.advance_to(at(2026, 11, 2, 6), made.name)
    assert line.times() == [at(2026, 10, 19, 4)]
    # 0 is what an optional field holds that is not set: no limit.
    made.max_concurrent_active_run_count = 0
    line.client.update_schedule(schedule=made, update_mask={"paths": ["max_concurrent_active_run_count"]})
    line.wait(made.name, lambda s: s.started_run_count == 3)
    assert line.times() == [at(2026, 10, 19, 4), at(2026, 10, 26, 5), at(2026, 11, 2, 5)]


def test_a_queue_starts_no_more_runs_than_max_run_count(line: Timeline) -> None:
    made, other = line.create(allow_queueing=True, max_run_count=2), line.create(max_concurrent_active_run_count=0)
    line.advance_to(at(2026, 11, 2, 6), made.name)
    for _ in range(2):
        line.end_runs()
        line.wait(made.name, lambda s: s.started_run_count == 2)
    # Each week in which the other one runs, the queue is looked at once.
    for week in (9, 16):
        line.advance_to(at(2026, 11, week, 6), other.name)
    found = line.wait(made.name, lambda s: s.state == gapic.Schedule.State.COMPLETED)
    assert found.started_run_count == 2 and not found.next_run_time


def test_the_queue_of_a_deleted_schedule_is_forgotten(line: Timeline) -> None:
    made, other = line.create(allow_queueing=True), line.create(max_concurrent_active_run_count=0)
    line.advance_to(at(2026, 11, 2, 6), made.name)
    line.client.delete_schedule(name=made.name).result(10)
    for week in (9, 16):
        line.advance_to(at(2026, 11, week, 6), other.name)
    # Else the thread looks at it ten times a second, for ever.
    assert made.name not in line.cloud.server._schedule_runner._queues


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


def test_catching_up_starts_every_missed_run_one_after_the_other(line: Timeline) -> None:
    made = line.create()
    line.client.pause_schedule(name=made.name)
    line.cloud.clock.advance(2 * WEEK)
    line.client.resume_schedule({"name": made.name, "catch_up": True})
    for started in (1, 2):
        line.wait(made.name, lambda s, started=started: s.started_run_count == started)
        line.end_runs()
    line.advance_to(at(2026, 11, 2, 6), made.name)
    line.wait(made.name, lambda s: s.started_run_count == 3)
    assert line.times() == [at(2026, 10, 19, 4), at(2026, 10, 26, 5), at(2026, 11, 2, 5)]


def test_it_is_completed_by_count_and_by_end(line: Timeline) -> None:
    counted = line.create(max_run_count=2, max_concurrent_active_run_count=0)
    ended = line.create(end_time=datetime(2026, 10, 20, tzinfo=UTC), max_concurrent_active_run_count=0)
    late = line.create(start_time=datetime(2026, 10, 26, 5, tzinfo=UTC), max_concurrent_active_run_count=0)
    assert line.advance_to(BEGIN + 3 * WEEK, counted.name).started_run_count == 2
    assert line.advance_to(BEGIN + 3 * WEEK, ended.name).started_run_count == 1
    assert line.advance_to(BEGIN + 3 * WEEK, late.name).started_run_count == 2
    states = {line.get(s.name).state.name for s in (counted, ended)}
    assert states == {"COMPLETED"} and line.get(late.name).state.name == "ACTIVE"
    with pytest.raises(exceptions.BadRequest, match="COMPLETED"):
        line.client.update_schedule(schedule=counted, update_mask={"paths": ["cron"]})


def test_an_update_changes_what_its_mask_names_and_nothing_else(line: Timeline) -> None:
    made = line.create()
    changed = gapic.Schedule(made)
    changed.cron, changed.display_name = "TZ=Europe/Berlin 0 7 * * 1", "not this"
    values = changed.create_pipeline_job_request.pipeline_job.runtime_config.parameter_values
    values["region"] = "europe-west4"
    mask = {"paths": ["cron", "create_pipeline_job_request"]}
    updated = line.client.update_schedule(schedule=changed, update_mask=mask)
    assert updated.display_name == "weekly" and updated.next_run_time.timestamp() == at(2026, 10, 19, 5)
    line.advance_to(at(2026, 10, 19, 6), made.name)
    (name,) = line.cloud.store.scheduled_s
    assert line.cloud.store.get(name).runtime_config.parameter_values["region"] == "europe-west4"
    with pytest.raises(exceptions.BadRequest, match="update_mask"):
        line.client.update_schedule(schedule=changed, update_mask={"paths": ["state"]})
    line.client.delete_schedule(name=made.name).result(10)
    with pytest.raises(exceptions.NotFound):
        line.get(made.name)


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


def test_who_stops_it_while_it_forgets_what_changed_does_not_wait(make_cloud: Callable[..., Cloud]) -> None:
    cloud = make_cloud(clock=Clock(start=BEGIN, rate=0))

    class Late(threading.Event):
        """An event at which somebody stops the firing just before it is cleared."""

        def clear(self) -> None:
            runner._stopping.set()
            self.set()
            super().clear()

    # Twice is as good as once.
    cloud.server.stop_schedules()
    cloud.server.stop_schedules()
    cloud.server.state.schedules_changed = Late()
    runner = ScheduleRunner(cloud.server.state, [])
    runner.start()
    runner._thread.join(60)
    assert not runner._thread.is_alive()
