"""`shardline schedule`: one Vertex schedule for a line, by the line's name.

A schedule keeps a copy of the spec and the parameters of the day it was created: what changes in the configuration
reaches it by `update` only, and `diff` says what has not. At most one run of it is active. It submits the first rung of
a ladder only, since nobody is there to climb.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from contracts.errors import ConfigError
from pipelines.drift import Times, find_drift, in_utc, job_of
from pipelines.google import explained, pipeline_client, read_options, schedule_client, write_options
from pipelines.submit import Prepared, publish, to_dict

if TYPE_CHECKING:
    from contracts.config import RunConfig

_SHOWN_RUNS = 10
# What an update replaces. The display name is how the schedule is found, so it stays.
_MASK = (
    "cron",
    "start_time",
    "end_time",
    "allow_queueing",
    "max_concurrent_run_count",
    "max_concurrent_active_run_count",
    "create_pipeline_job_request",
)


class Schedules:
    """The schedules of a project and region."""

    def __init__(self, project: str, region: str) -> None:
        self._project = project
        self._region = region
        self._parent = f"projects/{project}/locations/{region}"
        self._client = schedule_client(region)

    def list(self, display_name: str = "") -> list[Any]:
        """Return schedules, the newest first; those of one line, or all."""
        chosen = f'display_name="{display_name}"' if display_name else ""
        with explained("the schedules", project=self._project):
            found = self._client.list_schedules(request={"parent": self._parent, "filter": chosen}, **read_options())
            return sorted(found, key=lambda schedule: schedule.create_time, reverse=True)

    def find(self, config: RunConfig, schedule_id: str = "") -> Any | None:
        """Return the schedule of a line that is not completed; None: there is none.

        Raises:
            ConfigError: There are several.
        """
        if schedule_id:
            return self._get(schedule_id)
        alive = [schedule for schedule in self.list(config.run.name) if schedule.state.name != "COMPLETED"]
        if len(alive) > 1:
            ids = ", ".join(id_of(schedule) for schedule in alive)
            raise ConfigError(
                f"{len(alive)} schedules are called {config.run.name}: {ids}",
                allowed="one schedule for a line",
                todo="name one with --id, or delete one: shardline schedule delete CONFIG --id ID",
            )
        return alive[0] if alive else None

    def require(self, config: RunConfig, schedule_id: str = "") -> Any:
        """Return the schedule of a line.

        Raises:
            ConfigError: There is none, or several.
        """
        if (found := self.find(config, schedule_id)) is None:
            raise ConfigError(
                f"no schedule is called {config.run.name} in {self._parent}",
                allowed="a line that is scheduled",
                todo="create it: shardline schedule create CONFIG",
            )
        return found

    def create(self, prepared: Prepared, times: Times) -> Any:
        """Create the schedule of a line; one that is there and equal is returned.

        Raises:
            ConfigError: One is there and differs.
        """
        found = self.find(prepared.config)
        if found is not None:
            if differences := find_drift(prepared, times, found):
                told = "\n    ".join(str(difference) for difference in differences[:8])
                raise ConfigError(
                    f"schedule {id_of(found)} is called {prepared.config.run.name}, and differs:\n    {told}",
                    allowed="one schedule for a line",
                    todo="bring it up to date: shardline schedule update CONFIG",
                )
            return found
        publish(prepared.compiled.documents)
        return self._create(prepared, times)

    def update(self, prepared: Prepared, times: Times, found: Any) -> tuple[Any, str]:
        """Make a schedule what the configuration says.

        Args:
            prepared: The line.
            times: When it fires.
            found: The schedule that is there.

        Returns:
            The schedule, and how it came to be: "unchanged", "updated" or "recreated".
        """
        from google.api_core.exceptions import BadRequest, MethodNotImplemented

        differences = find_drift(prepared, times, found)
        if not differences:
            return found, "unchanged"
        publish(prepared.compiled.documents)
        # The service cannot unset a field.
        if not (found.end_time and times.end is None):
            wanted = self._message(prepared, times)
            wanted.name = found.name
            paths = [path for path in _MASK if not (path in ("start_time", "end_time") and not getattr(wanted, path))]
            with explained(f"updating schedule {id_of(found)}", project=self._project):
                try:
                    # The same update twice is one: so it may be repeated as a read.
                    made = self._client.update_schedule(schedule=wanted, update_mask={"paths": paths}, **read_options())
                    return made, "updated"
                except (BadRequest, MethodNotImplemented) as error:
                    if not _is_about_the_mask(error):
                        raise
        return self._recreate(prepared, times, found), "recreated"

    def runs(self, found: Any) -> Sequence[Any]:
        """Return the PipelineJobs that a schedule started last, the newest first."""
        chosen = {"parent": self._parent, "filter": f'schedule_name="{found.name}"', "order_by": "create_time desc"}
        with explained(f"the runs of schedule {id_of(found)}", project=self._project):
            jobs = pipeline_client(self._region).list_pipeline_jobs(request=chosen, **read_options())
            return tuple(itertools.islice(jobs, _SHOWN_RUNS))

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
            operation.result(timeout=write_options()["timeout"])

    def _get(self, schedule_id: str) -> Any | None:
        from google.api_core.exceptions import NotFound

        name = schedule_id if "/" in schedule_id else f"{self._parent}/schedules/{schedule_id}"
        with explained(f"schedule {schedule_id}", project=self._project):
            try:
                return self._client.get_schedule(name=name, **read_options())
            except NotFound:
                return None

    def _create(self, prepared: Prepared, times: Times) -> Any:
        with explained(f"scheduling {prepared.config.run.name}", project=self._project):
            return self._client.create_schedule(
                parent=self._parent, schedule=self._message(prepared, times), **write_options()
            )

    def _recreate(self, prepared: Prepared, times: Times, found: Any) -> Any:
        """Put a new schedule into the place of one; whoever is killed between leaves the old one paused, not two."""
        self.pause(found)
        made = self._create(prepared, times)
        self.delete(found)
        return made

    def _message(self, prepared: Prepared, times: Times) -> Any:
        from google.cloud.aiplatform_v1.types import Schedule

        request = {
            "displayName": prepared.config.run.name,
            "cron": times.cron,
            "allowQueueing": times.queue,
            # Starts at a time, which is required, and active runs, which is what matters.
            "maxConcurrentRunCount": 1,
            "maxConcurrentActiveRunCount": 1,
            "createPipelineJobRequest": {"parent": self._parent, "pipelineJob": job_of(prepared)},
        }
        request |= {
            name: in_utc(moment) for name, moment in (("startTime", times.start), ("endTime", times.end)) if moment
        }
        from google.protobuf.json_format import ParseDict

        message = Schedule()
        ParseDict(request, message._pb)
        return message


def describe(schedule: Any) -> Iterator[tuple[str, str]]:
    """Yield what a schedule is, as rows of name and text."""
    there = to_dict(schedule)
    job = there.get("createPipelineJobRequest", {}).get("pipelineJob", {})
    yield "id", id_of(schedule)
    yield "line", schedule.display_name
    yield "state", schedule.state.name.lower()
    yield "cron", schedule.cron
    for name, key in (("start", "startTime"), ("end", "endTime"), ("next run", "nextRunTime")):
        yield name, there.get(key, "none")
    last: Mapping[str, Any] = there.get("lastScheduledRunResponse", {})
    yield "last run", f"{last.get('scheduledRunTime', 'none')} {last.get('runResponse', '')}".strip()
    yield "runs started", str(there.get("startedRunCount", 0))
    yield "queue", str(there.get("allowQueueing", False)).lower()
    yield "active runs at most", str(there.get("maxConcurrentActiveRunCount", "unlimited"))
    from contracts.canonical import canonical_hash

    yield "pipeline spec (sha256)", canonical_hash(job.get("pipelineSpec", {}))


def id_of(schedule: Any) -> str:
    """Return a schedule's id, the last part of its name."""
    return str(schedule.name).rpartition("/")[2]


def _is_about_the_mask(error: Any) -> bool:
    """Whether an update was refused for what it names, whatever it would set: then only a new schedule has it."""
    text = str(error).lower().replace("_", "").replace(" ", "")
    return any(word in text for word in ("createpipelinejobrequest", "updatemask", "immutable"))
