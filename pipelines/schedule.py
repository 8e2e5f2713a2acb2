"""`shardline schedule`: one Vertex schedule for a line, by the line's name, with one active run at most.

A schedule keeps a copy of the pipeline and the parameters of the day it was created: what changes in the configuration
reaches it when it is deleted and created anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from contracts.config import RunConfig
from contracts.errors import ConfigError
from pipelines.google import CALL_TIMEOUT_S, explained, import_sdk
from pipelines.submit import Ready, Say, make_job, publish

if TYPE_CHECKING:
    from google.cloud.aiplatform import PipelineJobSchedule


def make_schedule(ready: Ready, *, offline: bool = False) -> PipelineJobSchedule:
    """Return the schedule of a line as Google's SDK has it, before it is created.

    Args:
        ready: The line.
        offline: Whether it is only looked at: no credentials are needed.
    """
    job, section = make_job(ready, offline=offline), ready.config.schedule
    schedule: PipelineJobSchedule = import_sdk().PipelineJobSchedule(
        job, display_name=ready.config.run.name, credentials=job.credentials
    )
    request = schedule._gca_resource
    # The SDK takes over neither of both.
    request.create_pipeline_job_request.pipeline_job.display_name = ready.config.run.name
    request.create_pipeline_job_request.pipeline_job.service_account = ready.config.cloud.service_account
    request.cron = f"TZ={section.time_zone} {' '.join(section.cron.split())}"
    # Starts at a time, which the service requires, and active runs, which is what matters.
    request.max_concurrent_run_count = request.max_concurrent_active_run_count = 1
    return schedule


def create(ready: Ready, say: Say) -> PipelineJobSchedule:
    """Create the schedule of a line.

    Args:
        ready: The line.
        say: Told what is uploaded.

    Raises:
        ConfigError: One is there, or the service refuses it.
    """
    name = ready.config.run.name
    if there := list_schedules(ready.config, name):
        raise ConfigError(
            f"schedule {there[0].name} is called {name} already",
            allowed="one schedule for a line",
            todo="delete it first, if the configuration has changed since: shardline schedule delete CONFIG",
        )
    schedule = make_schedule(ready)
    publish(ready, say)
    with explained(f"scheduling {name}"):
        schedule.create(cron=schedule._gca_resource.cron, create_request_timeout=CALL_TIMEOUT_S)
    return schedule


def list_schedules(config: RunConfig, line: str = "") -> list[PipelineJobSchedule]:
    """Return the schedules of a project and region, the newest first.

    Args:
        config: Names both.
        line: Only those of this line; empty: all.

    Raises:
        ConfigError: Project or region is not set.
    """
    cloud = config.cloud
    if not cloud.project or not cloud.region:
        raise ConfigError(
            "cloud.project or cloud.region is not set", allowed="both", todo="set them in the configuration"
        )
    with explained(f"the schedules in {cloud.region}"):
        found: list[PipelineJobSchedule] = import_sdk().PipelineJobSchedule.list(
            filter=f'display_name="{line}"' if line else None,
            order_by="create_time desc",
            project=cloud.project,
            location=cloud.region,
        )
    return found


def find_schedule(config: RunConfig, schedule_id: str = "") -> PipelineJobSchedule:
    """Return the schedule of a line.

    Args:
        config: The line.
        schedule_id: Its id, where the line has several; empty: the only one.

    Raises:
        ConfigError: There is none, or several.
    """
    there = list_schedules(config, config.run.name)
    found = [schedule for schedule in there if schedule_id in ("", schedule.name)]
    if len(found) == 1:
        return found[0]
    ids = ", ".join(schedule.name for schedule in there) or "none"
    raise ConfigError(
        f"{'--id ' + schedule_id if schedule_id else config.run.name}: {len(found)} schedules in {config.cloud.region}",
        allowed=f"one of the line {config.run.name}: {ids}",
        todo="name one with --id, or create it: shardline schedule create CONFIG",
    )


def change(schedule: PipelineJobSchedule, action: Literal["pause", "resume", "delete"]) -> None:
    """Pause, resume or delete a schedule; a run of it goes on, and runs that were missed are not made up for."""
    state = schedule.gca_resource.state.name
    with explained(f"{action} of schedule {schedule.name}"):
        if action == "pause" and state != "PAUSED":
            schedule.pause()
        elif action == "resume" and state != "ACTIVE":
            schedule.resume(catch_up=False)
        elif action == "delete":
            schedule.delete()


def to_row(schedule: PipelineJobSchedule) -> dict[str, str]:
    """Return what is printed of a schedule."""
    found = schedule.gca_resource
    return {
        "id": schedule.name,
        "line": found.display_name,
        "state": found.state.name.lower(),
        "cron": found.cron,
        "next": found.next_run_time.isoformat(timespec="seconds") if found.next_run_time else "none",
    }


def in_words(schedule: PipelineJobSchedule) -> str:
    """Return a schedule in a line."""
    return "{id}  {line}  {state}  {cron}  next {next}".format_map(to_row(schedule))
