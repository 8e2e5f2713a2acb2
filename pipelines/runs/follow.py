"""`--wait`: follows a run to its end; one line a task as its state changes, or a live table on a terminal."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, Self, TextIO

from contracts.errors import EXIT_OK, EXIT_TRY_AGAIN
from pipelines.runs.diagnosis import Diagnosis, diagnose_waiting
from pipelines.runs.evidence import explain
from pipelines.runs.jobs import Job, JobFinder
from pipelines.runs.name import RunName
from pipelines.runs.tasks import ENDED, Task, read_tasks, seconds_between, state_of
from pipelines.submission.submit import read_job

POLL_S = 5.0
# A job that is older than this when it is first seen was created by another clock (a rehearsal's).
_BELIEVABLE_S = 7 * 86400.0


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment."""

    name: RunName
    state: str
    tasks: tuple[Task, ...]
    jobs: tuple[Job, ...]


@dataclass(frozen=True)
class Ending:
    """How following a run ended."""

    state: str
    """Of the run; PENDING where a job waited for machines for too long."""
    diagnosis: Diagnosis | None
    """Why it failed, or waited for too long; None: it did not."""
    waiting: Job | None = None
    """The job that waited for too long."""

    @property
    def exit_code(self) -> int:
        """0 for success, else what the cause says; 75 where somebody cancelled it."""
        if self.state == "SUCCEEDED":
            return EXIT_OK
        return self.diagnosis.exit_code if self.diagnosis else EXIT_TRY_AGAIN


class View(Protocol):
    """What shows a run."""

    def __enter__(self) -> Self:
        """Begin to show."""

    def __exit__(self, *exception: object) -> None:
        """Leave the terminal as it was."""

    def show(self, snapshot: Snapshot) -> None:
        """Show a run as it is now."""


def follow(
    client: Any,
    name: RunName,
    view: View,
    *,
    pending_limit_s: float | None = None,
    poll_s: float = POLL_S,
    clock: Callable[[], float] = time.monotonic,
) -> Ending:
    """Follow a run until it ends, or until a job of it has waited for machines for too long.

    Args:
        client: The PipelineServiceClient of the run's region.
        name: The run.
        view: Shows it.
        pending_limit_s: Seconds that a job may wait for machines; None: for ever.
        poll_s: Seconds between two looks.
        clock: Seconds of any clock that runs evenly.

    Raises:
        ConfigError: There is no such run.
        TryAgain: The service has not answered for minutes; the run goes on.
    """
    finder = JobFinder(name.project, name.region, name.id)
    since: dict[str, float] = {}
    with view:
        while True:
            pipeline = read_job(client, name)
            tasks = read_tasks(pipeline)
            jobs = finder.find(pipeline, tasks)
            state = state_of(pipeline)
            view.show(Snapshot(name, state, tuple(tasks), tuple(jobs)))
            if state == "FAILED" and any(job.may_tell_more(time.time()) for job in jobs):
                time.sleep(poll_s)
                continue
            if state in ENDED:
                return Ending(state, explain(name, pipeline, tasks, jobs) if state == "FAILED" else None)
            waiting = find_overdue(jobs, since, now=clock(), limit_s=pending_limit_s)
            if waiting is not None:
                return Ending("PENDING", diagnose_waiting(waiting.state), waiting)
            time.sleep(poll_s)


def find_overdue(jobs: Sequence[Job], since: dict[str, float], *, now: float, limit_s: float | None) -> Job | None:
    """Return a job that has waited for its first machines for longer than the limit.

    A job that had machines once and waits for others after a preemption is never one of these.

    Args:
        jobs: The run's jobs.
        since: When each was first seen waiting, infinity once it was seen at work; updated.
        now: Seconds of the same clock.
        limit_s: The limit; None: there is none.
    """
    for job in jobs:
        if not job.waits:
            since[job.name] = math.inf
            continue
        if job.name not in since:
            age = seconds_between(job.created_at, datetime.now(UTC)) or 0.0
            since[job.name] = now - (age if 0 < age < _BELIEVABLE_S else 0.0)
        if limit_s is not None and now - since[job.name] > limit_s:
            return job
    return None


def make_view() -> View:
    """Return a live table when stderr is a terminal, else plain lines."""
    return TaskTable() if sys.stderr.isatty() else TaskLines()


class TaskLines:
    """A line for each change: for a log file, a pipe, a continuous-integration job."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._shown: dict[str, str] = {}

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing to restore."""

    def show(self, snapshot: Snapshot) -> None:
        """Print what changed since the last time."""
        for task in snapshot.tasks:
            self._tell(f"task {task.name}", task.state, _taken(task.started_at, task.ended_at))
        for job in snapshot.jobs:
            self._tell(f"{job.kind} {job.id} in {job.region}", job.state, f"  {job.display_name}")
        self._tell(f"run {snapshot.name.id}", snapshot.state, "")

    def _tell(self, what: str, state: str, more: str) -> None:
        if self._shown.get(what) != state:
            self._shown[what] = state
            now = datetime.now(UTC).strftime("%H:%M:%S")
            print(f"{now}  {what}: {state.lower()}{more}".rstrip(), file=self._stream or sys.stderr, flush=True)


class TaskTable:
    """A table that is drawn anew at each look (rich)."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(stderr=True), auto_refresh=False)

    def __enter__(self) -> Self:
        """Take over the bottom of the terminal."""
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave the last table as it is."""
        self._live.stop()

    def show(self, snapshot: Snapshot) -> None:
        """Draw the run."""
        from rich.table import Table

        table = Table(title=f"run {snapshot.name.id}: {snapshot.state.lower()}", title_justify="left")
        for column in ("task", "state", "took", "job"):
            table.add_column(column)
        by_task: dict[str, list[Job]] = {}
        for job in snapshot.jobs:
            by_task.setdefault(job.task, []).append(job)
        for task in snapshot.tasks:
            told = ", ".join(f"{job.id} {job.state.lower()}" for job in by_task.pop(task.name, []))
            table.add_row(task.name, task.state.lower(), _taken(task.started_at, task.ended_at).strip(), told)
        for jobs in by_task.values():
            for job in jobs:
                told = f"{job.id} in {job.region}"
                table.add_row(job.display_name, job.state.lower(), _taken(job.started_at, job.ended_at).strip(), told)
        self._live.update(table, refresh=True)


def _taken(start: datetime | None, end: datetime | None) -> str:
    seconds = seconds_between(start, end)
    return "" if seconds is None else f"  {seconds:.1f} s"
