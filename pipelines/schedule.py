"""`shardline schedule`: a Vertex AI schedule per line, named like the line, with at most one active run.

A schedule has a copy of the pipeline and its parameters. To apply a changed configuration, delete it and create it
again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from contracts.config import RunConfig
from contracts.errors import ConfigError
from pipelines.google import CALL_TIMEOUT_S, explained, import_sdk
from pipelines.submit import Notify, Ready, make_job, publish

if TYPE_CHECKING:
    from google.cloud.aiplatform import PipelineJobSchedule


def make_schedule(ready: Ready, *, offline: bool = False) -> PipelineJobSchedule:
    """Return the SDK's schedule object of a line, not yet created in the service.

    Args:
        ready: The line.
        offline: Whether it is never created, so that no credentials are needed.
    """
    job, section = make_job(ready, offline=offline), ready.config.schedule
    schedule: PipelineJobSchedule = import_sdk().PipelineJobSchedule(
        job, display_name=ready.config.run.name, credentials=job.credentials
    )
    request = schedule._gca_resource
    # The SDK copies neither of these from the job.
    request.create_pipeline_job_request.pipeline_job.display_name = ready.config.run.name
    request.create_pipeline_job_request.pipeline_job.service_account = ready.config.cloud.service_account
    request.cron = f"TZ={section.time_zone} {' '.join(section.cron.split())}"
    # The service requires the limit of concurrent starts; the limit of active runs is the important one.
    request.max_concurrent_run_count = request.max_concurrent_active_run_count = 1
    return schedule


def create(ready: Ready, notify: Notify) -> PipelineJobSchedule:
    """Create the schedule of a line.

    Args:
        ready: The line.
        notify: Receives messages about uploads.

    Raises:
        ConfigError: The line has one already, or the service refuses it.
    """
    name = ready.config.run.name
    if existing := list_schedules(ready.config, name):
        raise ConfigError(
            f"line {name} has a schedule already: {existing[0].name}",
            allowed="one schedule for a line",
            todo="delete it first, if the configuration has changed since: shardline schedule delete CONFIG",
        )
    schedule = make_schedule(ready)
    publish(ready, notify)
    with explained(f"scheduling {name}"):
        schedule.create(cron=schedule._gca_resource.cron, create_request_timeout=CALL_TIMEOUT_S)
    return schedule


def list_schedules(config: RunConfig, line: str = "") -> list[PipelineJobSchedule]:
    """Return the schedules of a project and region, the newest first.

    Args:
        config: Configuration with both.
        line: Only schedules of this line; empty: all.

    Raises:
        ConfigError: Project or region is not set.
    """
    cloud = config.cloud
    if not cloud.project or not cloud.region:
        raise ConfigError(
            "cloud.project or cloud.region is not set", allowed="both", todo="set them in the configuration"
        )
    with explained(f"the schedules in {cloud.region}"):
        schedules: list[PipelineJobSchedule] = import_sdk().PipelineJobSchedule.list(
            filter=f'display_name="{line}"' if line else None,
            order_by="create_time desc",
            project=cloud.project,
            location=cloud.region,
        )
    return schedules


def find_schedule(config: RunConfig, schedule_id: str = "") -> PipelineJobSchedule:
    """Return the schedule of a line.

    Args:
        config: The line.
        schedule_id: Its id, required if the line has several.

    Raises:
        ConfigError: None or several match.
    """
    schedules = list_schedules(config, config.run.name)
    matching = [schedule for schedule in schedules if schedule_id in ("", schedule.name)]
    if len(matching) == 1:
        return matching[0]
    ids = ", ".join(schedule.name for schedule in schedules) or "none"
    name = f"--id {schedule_id}" if schedule_id else config.run.name
    raise ConfigError(
        f"{name}: {len(matching)} schedules in {config.cloud.region}",
        allowed=f"one of the line {config.run.name}: {ids}",
        todo="name one with --id, or create it: shardline schedule create CONFIG",
    )


def change(schedule: PipelineJobSchedule, action: Literal["pause", "resume", "delete"]) -> None:
    """Pause, resume or delete a schedule. Its current run continues; missed runs are not caught up."""
    state = schedule.gca_resource.state.name
    with explained(f"{action} of schedule {schedule.name}"):
        if action == "pause" and state != "PAUSED":
            schedule.pause()
        elif action == "resume" and state != "ACTIVE":
            schedule.resume(catch_up=False)
        elif action == "delete":
            schedule.delete()


def to_row(schedule: PipelineJobSchedule) -> dict[str, str]:
    """Return the printed columns of a schedule."""
    message = schedule.gca_resource
    return {
        "id": schedule.name,
        "line": message.display_name,
        "state": message.state.name.lower(),
        "cron": message.cron,
        "next": message.next_run_time.isoformat(timespec="seconds") if message.next_run_time else "none",
    }


def describe(schedule: PipelineJobSchedule) -> str:
    """Return a one-line description of a schedule."""
    return "{id}  {line}  {state}  {cron}  next {next}".format_map(to_row(schedule))
