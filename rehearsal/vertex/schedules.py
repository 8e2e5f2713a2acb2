"""ScheduleService: schedules of pipeline jobs, and the thread that starts their runs by the local cloud's clock.

A run that is due while `max_concurrent_active_run_count` runs of its schedule are active (0: no limit) is skipped. If
the clock is advanced past several times, they are handled in order. Queueing, catch_up, max_run_count, start and end
times and updates are not implemented, and refused.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.schedules
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from google.cloud.aiplatform_v1 import types
from google.protobuf.empty_pb2 import Empty

from rehearsal.errors import ServiceError, Violation, invalid_arguments, not_found
from rehearsal.vertex import pipeline_jobs
from rehearsal.vertex.checks import check_pipeline_job
from rehearsal.vertex.cron import fire_times
from rehearsal.vertex.listing import getter, lister
from rehearsal.vertex.small_services import finish_operation
from rehearsal.vertex.state import Caller, CloudState
from rehearsal.vertex.store import has_ended

# proto-plus declares an enum's members as numbers.
_STATE: Any = types.Schedule.State
_UNSUPPORTED = ("allow_queueing", "max_run_count", "start_time", "end_time")


def create(cloud: CloudState, request: types.CreateScheduleRequest, caller: Caller) -> types.Schedule:
    """Check and store a schedule; it is active at once."""
    parent = cloud.resolve_name(request.parent, "aiplatform.schedules.create")
    schedule = types.Schedule(request.schedule)
    _check(cloud, schedule, parent)
    schedule.name, schedule.state = f"{parent}/schedules/{cloud.store.new_id()}", _STATE.ACTIVE
    schedule.create_time = schedule.update_time = schedule.start_time = cloud.now()
    schedule.next_run_time = _next_time(cloud, schedule.cron, cloud.clock.now())
    cloud.store.add(schedule.name, schedule)
    cloud.schedules_changed.set()
    return schedule


def pause(cloud: CloudState, request: types.PauseScheduleRequest, caller: Caller) -> Empty:
    """Pause a schedule; active runs continue."""
    schedule = _in_state(cloud, request.name, "pause", _STATE.ACTIVE)

    def change(schedule: Any) -> None:
        schedule.state = _STATE.PAUSED
        schedule.last_pause_time = schedule.update_time = cloud.now()

    return _change(cloud, schedule.name, change)


def resume(cloud: CloudState, request: types.ResumeScheduleRequest, caller: Caller) -> Empty:
    """Resume a schedule from its next time; missed runs are not caught up."""
    if request.catch_up:
        raise ServiceError("UNIMPLEMENTED", "catch_up: a rehearsal does not catch up missed runs")
    schedule = _in_state(cloud, request.name, "resume", _STATE.PAUSED)

    def change(schedule: Any) -> None:
        schedule.state = _STATE.ACTIVE
        schedule.last_resume_time = schedule.update_time = cloud.now()
        schedule.next_run_time = _next_time(cloud, schedule.cron, cloud.clock.now())

    return _change(cloud, schedule.name, change)


def _change(cloud: CloudState, name: str, change: Callable[[Any], None]) -> Empty:
    """Change a schedule, which may have been deleted meanwhile."""
    try:
        cloud.store.update(name, change)
    except KeyError:
        raise not_found(name) from None
    cloud.schedules_changed.set()
    return Empty()


def delete(cloud: CloudState, request: types.DeleteScheduleRequest, caller: Caller) -> Any:
    """Delete a schedule; the runs that it started stay."""
    schedule = cloud.find(request.name, "aiplatform.schedules.delete")
    try:
        cloud.store.remove(schedule.name)
    except KeyError:
        raise not_found(schedule.name) from None
    cloud.schedules_changed.set()
    return finish_operation(cloud, schedule.name, Empty(), types.DeleteOperationMetadata())


def _in_state(cloud: CloudState, name: str, verb: str, state: Any) -> Any:
    schedule = cloud.find(name, f"aiplatform.schedules.{verb}")
    if schedule.state != state:
        text = f"{schedule.name} is {schedule.state.name}: {verb} needs {types.Schedule.State(state).name}"
        raise ServiceError("FAILED_PRECONDITION", text)
    return schedule


def _next_time(cloud: CloudState, cron: str, after_s: float) -> Any:
    return cloud.time(next(fire_times(cron, after_s)))


def _check(cloud: CloudState, schedule: types.Schedule, parent: str) -> None:
    if unsupported := [field for field in _UNSUPPORTED if getattr(schedule, field)]:
        raise ServiceError("UNIMPLEMENTED", f"a rehearsal does not support schedule.{', schedule.'.join(unsupported)}")
    violations = []
    if not 1 <= len(schedule.display_name) <= 128:
        violations.append(Violation("schedule.display_name", "1 to 128 characters are required"))
    if schedule.max_concurrent_run_count < 1:
        violations.append(Violation("schedule.max_concurrent_run_count", "is required, and at least 1"))
    request, field = schedule.create_pipeline_job_request, "schedule.create_pipeline_job_request"
    if "create_pipeline_job_request" not in schedule:
        violations.append(Violation(field, "is required"))
    elif cloud.resolve_name(request.parent, "aiplatform.pipelineJobs.create") != parent:
        violations.append(Violation(f"{field}.parent", f"{request.parent!r} is not {parent}"))
    if request.pipeline_job_id:
        violations.append(Violation(f"{field}.pipeline_job_id", "is not allowed: each run gets an id of its own"))
    if violations:
        raise invalid_arguments(violations)
    next(fire_times(schedule.cron, cloud.clock.now()))
    check_pipeline_job(request.pipeline_job, f"{field}.pipeline_job", is_named=False)


METHODS = {
    "CreateSchedule": create,
    "GetSchedule": getter(types.Schedule, "schedules"),
    "ListSchedules": lister(types.Schedule, "schedules", types.ListSchedulesResponse, "schedules"),
    "PauseSchedule": pause,
    "ResumeSchedule": resume,
    "DeleteSchedule": delete,
}


class ScheduleRunner:
    """The thread that starts the runs of a cloud's schedules.

    Args:
        cloud: State with the schedules.
        failures: Receives tracebacks of faults of the local cloud itself; the schedule continues with its next time.
    """

    def __init__(self, cloud: CloudState, failures: list[str]) -> None:
        self._cloud, self._failures = cloud, failures
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="schedules", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; idempotent."""
        self._stopping.set()
        self._cloud.schedules_changed.set()
        self._thread.join()

    def _run(self) -> None:
        changed = self._cloud.schedules_changed
        while True:
            # Cleared first, so that later changes are either seen below or end the wait.
            changed.clear()
            if self._stopping.is_set():
                return
            due_s = self._fire_all()
            if due_s is None:
                changed.wait()
            else:
                self._cloud.clock.sleep_until(due_s, changed)

    def _fire_all(self) -> float | None:
        """Start all due runs; return the time of the next one."""
        upcoming = []
        for schedule in self._cloud.store.list("projects/", types.Schedule):
            while schedule is not None and schedule.state == _STATE.ACTIVE:
                due_s = schedule.next_run_time.timestamp()
                if due_s > self._cloud.clock.now():
                    upcoming.append(due_s)
                    break
                try:
                    self._fire(schedule, due_s)
                except Exception:  # noqa: BLE001 - thread entry point: a fault of ours is recorded, and raised at the end
                    self._failures.append(traceback.format_exc())
                    self._advance(schedule.name, due_s, "INTERNAL: the rehearsal's own fault", is_started=False)
                schedule = self._cloud.store.find(schedule.name)
        return min(upcoming, default=None)

    def _fire(self, schedule: Any, due_s: float) -> None:
        """Start or skip a due run, and set the next time."""
        parent = schedule.name.rsplit("/schedules/", 1)[0]
        jobs = self._cloud.store.list(f"{parent}/pipelineJobs/")
        active = sum(job.schedule_name == schedule.name and not has_ended(job) for job in jobs)
        limit = schedule.max_concurrent_active_run_count
        if limit and active >= limit:
            self._advance(schedule.name, due_s, f"Skipped: {active} of {limit} runs are active.", is_started=False)
            return
        job = types.PipelineJob(schedule.create_pipeline_job_request.pipeline_job)
        job.schedule_name = schedule.name
        title = pipeline_jobs.name_of(job)
        job.display_name = job.display_name or title
        name = f"{parent}/pipelineJobs/{title}-{datetime.fromtimestamp(due_s, UTC):%Y%m%d%H%M%S}"
        if self._cloud.store.find(name) is not None:
            name += f"-{self._cloud.store.new_id()}"
        self._cloud.store.scheduled_s[name] = due_s
        try:
            pipeline_jobs.add(self._cloud, name, job)
        except ServiceError as error:
            self._advance(schedule.name, due_s, f"{error.code}: {error.message}", is_started=False)
        else:
            self._advance(schedule.name, due_s, "OK", is_started=True)

    def _advance(self, name: str, due_s: float, response: str, *, is_started: bool) -> None:
        """Record the result of a due run, and set the next time."""

        def change(schedule: Any) -> None:
            schedule.last_scheduled_run_response = {
                "scheduled_run_time": self._cloud.time(due_s),
                "run_response": response,
            }
            schedule.started_run_count += is_started
            schedule.next_run_time = _next_time(self._cloud, schedule.cron, due_s)

        # It may have been deleted meanwhile.
        with contextlib.suppress(KeyError):
            self._cloud.store.update(name, change)
