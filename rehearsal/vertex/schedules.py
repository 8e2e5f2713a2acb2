"""ScheduleService: what is scheduled, and its changes; `schedule_runner` starts the runs.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.schedules
"""

from __future__ import annotations

from typing import Any

from google.cloud.aiplatform_v1 import types
from google.protobuf.empty_pb2 import Empty
from google.protobuf.field_mask_pb2 import FieldMask

from rehearsal.doors.errors import ServiceError, Violation, refuse
from rehearsal.doors.messages import plain
from rehearsal.resources.cloud_state import Caller, CloudState
from rehearsal.resources.listing import list_page
from rehearsal.resources.operations import finished
from rehearsal.vertex.cron import fire_times
from rehearsal.vertex.pipeline_rules import check_pipeline_job

# proto-plus declares an enum's members as numbers.
STATE: Any = types.Schedule.State
# What an update may name; the rest of a schedule is the service's.
_CHANGEABLE = (
    "display_name",
    "cron",
    "start_time",
    "end_time",
    "max_run_count",
    "max_concurrent_run_count",
    "max_concurrent_active_run_count",
    "allow_queueing",
    "create_pipeline_job_request",
)


def create(cloud: CloudState, request: types.CreateScheduleRequest, caller: Caller) -> types.Schedule:
    """Check and store a schedule; it is active at once."""
    parent = cloud.resolve_name(request.parent, "aiplatform.schedules.create")
    schedule = types.Schedule(request.schedule)
    _check(cloud, schedule, parent)
    schedule.name = f"{parent}/schedules/{cloud.store.new_id()}"
    schedule.state = STATE.ACTIVE
    schedule.create_time = schedule.update_time = cloud.now()
    if not schedule.start_time:
        schedule.start_time = schedule.create_time
    set_next(cloud, schedule, cloud.clock.now())
    cloud.store.add(schedule.name, schedule)
    cloud.schedules_changed.set()
    return schedule


def get(cloud: CloudState, request: types.GetScheduleRequest, caller: Caller) -> types.Schedule:
    """Return a schedule."""
    return types.Schedule(cloud.find(request.name, "aiplatform.schedules.get"))


def list_(cloud: CloudState, request: types.ListSchedulesRequest, caller: Caller) -> types.ListSchedulesResponse:
    """List schedules, the newest first."""
    chosen, token = list_page(cloud, request, types.Schedule, "schedules")
    return types.ListSchedulesResponse(schedules=chosen, next_page_token=token)


def pause(cloud: CloudState, request: types.PauseScheduleRequest, caller: Caller) -> Empty:
    """Start no new runs until it is resumed; those that run go on."""
    schedule = cloud.find(request.name, "aiplatform.schedules.pause")
    if schedule.state != STATE.ACTIVE:
        raise ServiceError("FAILED_PRECONDITION", f"{schedule.name} is {schedule.state.name}: only ACTIVE is paused")

    def change(schedule: Any) -> None:
        schedule.state = STATE.PAUSED
        schedule.last_pause_time = schedule.update_time = cloud.now()

    cloud.store.update(schedule.name, change)
    cloud.schedules_changed.set()
    return Empty()


def resume(cloud: CloudState, request: types.ResumeScheduleRequest, caller: Caller) -> Empty:
    """Go on: from the next time, or (`catch_up`) from the first that was missed."""
    schedule = cloud.find(request.name, "aiplatform.schedules.resume")
    if schedule.state != STATE.PAUSED:
        raise ServiceError("FAILED_PRECONDITION", f"{schedule.name} is {schedule.state.name}: only PAUSED is resumed")

    def change(schedule: Any) -> None:
        schedule.state, schedule.catch_up = STATE.ACTIVE, request.catch_up
        schedule.last_resume_time = schedule.update_time = cloud.now()
        if not request.catch_up:
            set_next(cloud, schedule, cloud.clock.now())

    cloud.store.update(schedule.name, change)
    cloud.schedules_changed.set()
    return Empty()


def update(cloud: CloudState, request: types.UpdateScheduleRequest, caller: Caller) -> types.Schedule:
    """Change what the mask names; the next run is the first that the changed schedule has after now."""
    schedule = cloud.find(request.schedule.name, "aiplatform.schedules.update")
    if schedule.state == STATE.COMPLETED:
        raise ServiceError("FAILED_PRECONDITION", f"{schedule.name} is COMPLETED: it cannot be updated any more")
    paths = list(request.update_mask.paths)
    wrong = [path for path in paths if path.split(".")[0] not in _CHANGEABLE]
    if not paths or wrong:
        named = f"cannot hold {', '.join(wrong)}" if wrong else "is empty"
        raise refuse([Violation("update_mask", f"{named}: it holds {', '.join(_CHANGEABLE)}, or fields below them")])
    changed = types.Schedule(schedule)
    FieldMask(paths=paths).MergeMessage(plain(request.schedule), plain(changed), True, True)
    _check(cloud, changed, schedule.name.rsplit("/schedules/", 1)[0])

    def change(schedule: Any) -> None:
        FieldMask(paths=paths).MergeMessage(plain(request.schedule), plain(schedule), True, True)
        schedule.update_time = cloud.now()
        set_next(cloud, schedule, cloud.clock.now())

    updated = types.Schedule(cloud.store.update(schedule.name, change))
    cloud.schedules_changed.set()
    return updated


def delete(cloud: CloudState, request: types.DeleteScheduleRequest, caller: Caller) -> Any:
    """Delete a schedule; the runs that it started stay."""
    schedule = cloud.find(request.name, "aiplatform.schedules.delete")
    cloud.store.remove(schedule.name)
    cloud.schedules_changed.set()
    return finished(cloud, schedule.name, Empty(), types.DeleteOperationMetadata())


def set_next(cloud: CloudState, schedule: types.Schedule, after_s: float) -> None:
    """Set the next run's time: the first after `after_s` within start and end; none left completes the schedule."""
    start_s = schedule.start_time.timestamp() if schedule.start_time else after_s
    # A run at the very start counts.
    next_s = next(fire_times(schedule.cron, max(after_s, start_s - 1e-6)))
    over = schedule.end_time and next_s > schedule.end_time.timestamp()
    if over or has_all_runs(schedule):
        complete(schedule)
    else:
        schedule.next_run_time = cloud.time(next_s)


def has_all_runs(schedule: types.Schedule) -> bool:
    """Whether a schedule has started as many runs as it may (`max_run_count`; 0: no limit)."""
    return bool(0 < schedule.max_run_count <= schedule.started_run_count)


def complete(schedule: types.Schedule) -> None:
    """End a schedule: it starts no more runs."""
    schedule.state, schedule.next_run_time = STATE.COMPLETED, None


def _check(cloud: CloudState, schedule: types.Schedule, parent: str) -> None:
    violations = []
    if not schedule.display_name or len(schedule.display_name) > 128:
        violations.append(Violation("schedule.display_name", "1 to 128 characters"))
    if schedule.max_concurrent_run_count < 1:
        violations.append(Violation("schedule.max_concurrent_run_count", "is required, and 1 at least"))
    if schedule.max_concurrent_active_run_count < 0:
        violations.append(Violation("schedule.max_concurrent_active_run_count", "is not negative"))
    if schedule.max_run_count < 0:
        violations.append(Violation("schedule.max_run_count", "is not negative"))
    if schedule.start_time and schedule.end_time and schedule.end_time <= schedule.start_time:
        violations.append(Violation("schedule.end_time", "is not after start_time"))
    request = schedule.create_pipeline_job_request
    if "create_pipeline_job_request" not in schedule:
        violations.append(Violation("schedule.create_pipeline_job_request", "is required"))
    elif cloud.resolve_name(request.parent, "aiplatform.pipelineJobs.create") != parent:
        field = "schedule.create_pipeline_job_request.parent"
        violations.append(Violation(field, f"{request.parent!r} is not the schedule's own place, {parent}"))
    if request.pipeline_job_id:
        field = "schedule.create_pipeline_job_request.pipeline_job_id"
        violations.append(Violation(field, "is not set: each run gets an id of its own"))
    if violations:
        raise refuse(violations)
    next(fire_times(schedule.cron, cloud.clock.now()))
    check_pipeline_job(cloud, request.pipeline_job, parent, "schedule.create_pipeline_job_request.pipeline_job")


METHODS = {
    "CreateSchedule": create,
    "GetSchedule": get,
    "ListSchedules": list_,
    "PauseSchedule": pause,
    "ResumeSchedule": resume,
    "UpdateSchedule": update,
    "DeleteSchedule": delete,
}
