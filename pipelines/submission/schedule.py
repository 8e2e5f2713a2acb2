"""`shardline schedule`: one Vertex schedule for a line, by the line's name.

A schedule keeps a copy of the spec and the parameters of the day it was created: what changes in the configuration
reaches it by `update` only, and `diff` says what has not. At most one run of it is active. It submits the first rung of
a ladder only, since nobody is there to climb.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from contracts.errors import ConfigError, ShardlineError, TryAgain
from pipelines.google import explained, pipeline_client, read_options, schedule_client, write_options
from pipelines.submission.drift import Times, find_drift, in_utc, job_of
from pipelines.submission.submit import Prepared, publish, to_dict

if TYPE_CHECKING:
    from contracts.config import RunConfig

_SHOWN_RUNS = 10
# What of a schedule each kind of drift is in; all others are in the request that it sends.
_PATHS = {
    "cron": "cron",
    "start": "start_time",
    "end": "end_time",
    "queue": "allow_queueing",
    "active runs at most": "max_concurrent_active_run_count",
}
_JOB_PATH = "create_pipeline_job_request"


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
        alive = self._alive(config.run.name)
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
            # What has not drifted is left alone: the service may refuse to have it set.
            paths = sorted({_PATHS.get(difference.what, _JOB_PATH) for difference in differences})
            with explained(f"updating schedule {id_of(found)}", project=self._project):
                try:
                    # The same update twice is one: so it may be repeated as a read.
                    made = self._client.update_schedule(schedule=wanted, update_mask={"paths": paths}, **read_options())
                    return made, "updated"
                except (BadRequest, MethodNotImplemented) as error:
                    if not _is_about_the_mask(error):
                        raise
        return self._recreate(prepared, times, found), "recreated"

    def find_to_update(self, prepared: Prepared, times: Times, schedule_id: str = "") -> Any:
        """Return the schedule of a line, after what an update that was killed has left is deleted.

        That is a paused one beside its successor, which is active and what the configuration says.

        Raises:
            ConfigError: There is none, or several.
        """
        if not schedule_id:
            alive = self._alive(prepared.config.run.name)
            good = [one for one in alive if one.state.name == "ACTIVE" and not find_drift(prepared, times, one)]
            others = [one for one in alive if one.name not in {made.name for made in good}]
            if len(good) == 1 and all(one.state.name == "PAUSED" for one in others):
                for one in others:
                    self.delete(one)
        return self.require(prepared.config, schedule_id)

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

    def _create(self, prepared: Prepared, times: Times) -> Any:
        with explained(f"scheduling {prepared.config.run.name}", project=self._project):
            return self._client.create_schedule(
                parent=self._parent, schedule=self._message(prepared, times), **write_options()
            )

    def _recreate(self, prepared: Prepared, times: Times, found: Any) -> Any:
        """Put a new schedule into the place of one; a paused one stays paused.

        The old one is paused first and deleted last: two never fire. Whoever is killed between leaves it paused, alone
        or beside the new one; the next update goes on from there (`find_to_update`). A paused one's successor is
        paused as soon as it is there: the API has no way to create it so.

        Raises:
            ShardlineError: The new one was not made; the old one fires as before, or the error says that it is paused.
        """
        was_paused = found.state.name == "PAUSED"
        self.pause(found)
        try:
            made = self._create(prepared, times)
        except ShardlineError as error:
            if not was_paused:
                self._take_back(found, error)
            raise
        if was_paused:
            self.pause(made)
        self.delete(found)
        return self._get(made.name) or made

    def _take_back(self, found: Any, error: ShardlineError) -> None:
        """Resume a schedule whose successor was not made, unless it may be there: an answer can be lost."""
        try:
            there = self._alive(found.display_name)
            if any(schedule.name != found.name for schedule in there):
                return
            for schedule in there:
                # Since the pause: what came due in that moment is made up for.
                self.resume(schedule, catch_up=True)
        except ShardlineError as second:
            raise TryAgain(
                f"{error}\n  and schedule {id_of(found)} is paused now, since it could not be resumed ({second})\n"
                "  to do: shardline schedule resume CONFIG, then update again"
            ) from error

    def _alive(self, display_name: str) -> Sequence[Any]:
        return tuple(schedule for schedule in self.list(display_name) if schedule.state.name != "COMPLETED")

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
