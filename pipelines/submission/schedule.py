"""`shardline schedule`: one Vertex schedule for a line, by the line's name.

A schedule keeps a copy of the spec and the parameters of the day it was created: what changes in the configuration
reaches it when it is deleted and created anew. At most one run of it is active, in `cloud.region`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from contracts.errors import ConfigError, TryAgain
from pipelines.google import explained, read_options, schedule_client, write_options
from pipelines.submission.submit import Prepared, publish

if TYPE_CHECKING:
    from contracts.config import RunConfig


class Schedules:
    """The schedules of a project and region.

    Raises:
        ConfigError: Project or region is not given.
    """

    def __init__(self, project: str, region: str) -> None:
        if not project or not region:
            raise ConfigError(
                "cloud.project or cloud.region is not set", allowed="both", todo="set them in the configuration"
            )
        self._project = project
        self._parent = f"projects/{project}/locations/{region}"
        self._client = schedule_client(region)

    def list(self, display_name: str = "") -> list[Any]:
        """Return schedules, the newest first; those of one line, or all."""
        chosen = f'display_name="{display_name}"' if display_name else ""
        with explained("the schedules", project=self._project):
            found = self._client.list_schedules(request={"parent": self._parent, "filter": chosen}, **read_options())
            return sorted(found, key=lambda schedule: schedule.create_time, reverse=True)

    def require(self, config: RunConfig, schedule_id: str = "") -> Any:
        """Return the schedule of a line that is not completed.

        Raises:
            ConfigError: There is none, or several.
        """
        alive = [self._get(schedule_id)] if schedule_id else self._alive(config.run.name)
        if len(alive) > 1:
            ids = ", ".join(id_of(schedule) for schedule in alive)
            raise ConfigError(
                f"{len(alive)} schedules are called {config.run.name}: {ids}",
                allowed="one schedule for a line",
                todo="name one with --id, or delete one: shardline schedule delete CONFIG --id ID",
            )
        if not alive or alive[0] is None:
            raise ConfigError(
                f"no schedule is called {config.run.name} in {self._parent}",
                allowed="a line that is scheduled",
                todo="create it: shardline schedule create CONFIG",
            )
        return alive[0]

    def create(self, prepared: Prepared) -> Any:
        """Create the schedule of a line.

        Raises:
            ConfigError: One is there.
        """
        name = prepared.config.run.name
        if alive := self._alive(name):
            raise ConfigError(
                f"schedule {id_of(alive[0])} is called {name} already",
                allowed="one schedule for a line",
                todo="delete it first, if the configuration has changed since: shardline schedule delete CONFIG",
            )
        from google.cloud.aiplatform_v1.types import Schedule
        from google.protobuf.json_format import ParseDict

        publish(prepared.compiled.documents)
        message = Schedule()
        ParseDict(make_schedule(prepared), message._pb)
        with explained(f"scheduling {name}", project=self._project):
            return self._client.create_schedule(parent=self._parent, schedule=message, **write_options())

    def pause(self, found: Any) -> None:
        """Stop a schedule from firing; a run of it goes on."""
        if found.state.name != "PAUSED":
            with explained(f"pausing schedule {id_of(found)}", project=self._project):
                self._client.pause_schedule(name=found.name, **read_options())

    def resume(self, found: Any, *, catch_up: bool) -> None:
        """Let a schedule fire again.

        Args:
            found: The schedule.
            catch_up: Whether the runs that it missed are made up for.
        """
        if found.state.name != "ACTIVE":
            with explained(f"resuming schedule {id_of(found)}", project=self._project):
                self._client.resume_schedule(request={"name": found.name, "catch_up": catch_up}, **read_options())

    def delete(self, found: Any) -> None:
        """Delete a schedule; a run of it goes on."""
        with explained(f"deleting schedule {id_of(found)}", project=self._project):
            operation = self._client.delete_schedule(name=found.name, **write_options())
            try:
                operation.result(timeout=write_options()["timeout"])
            except TimeoutError:
                raise TryAgain(
                    f"schedule {id_of(found)} is not deleted yet\n  to do: see `shardline schedule list CONFIG`, and "
                    "run the same command again"
                ) from None

    def _get(self, schedule_id: str) -> Any | None:
        from google.api_core.exceptions import NotFound

        name = schedule_id if "/" in schedule_id else f"{self._parent}/schedules/{schedule_id}"
        with explained(f"schedule {schedule_id}", project=self._project):
            try:
                return self._client.get_schedule(name=name, **read_options())
            except NotFound:
                return None

    def _alive(self, display_name: str) -> Sequence[Any]:
        return tuple(schedule for schedule in self.list(display_name) if schedule.state.name != "COMPLETED")


def make_schedule(prepared: Prepared) -> dict[str, Any]:
    """Return the schedule of a line as JSON, its fields in the API's names."""
    section, submission = prepared.config.schedule, prepared.submission()
    return {
        "displayName": prepared.config.run.name,
        "cron": f"TZ={section.time_zone} {' '.join(section.cron.split())}",
        # Starts at a time, which is required, and active runs, which is what matters.
        "maxConcurrentRunCount": 1,
        "maxConcurrentActiveRunCount": 1,
        "createPipelineJobRequest": {
            "parent": f"projects/{submission.project}/locations/{submission.region}",
            "pipelineJob": submission.request,
        },
    }


def to_row(schedule: Any) -> dict[str, str]:
    """Return what is printed of a schedule."""
    return {
        "id": id_of(schedule),
        "line": schedule.display_name,
        "state": schedule.state.name.lower(),
        "cron": schedule.cron,
        "next": schedule.next_run_time.isoformat(timespec="seconds") if schedule.next_run_time else "none",
    }


def describe(schedule: Any) -> str:
    """Return a schedule in a line."""
    return "{id}  {line}  {state}  {cron}  next {next}".format_map(to_row(schedule))


def id_of(schedule: Any) -> str:
    """Return a schedule's id, the last part of its name."""
    return str(schedule.name).rpartition("/")[2]
