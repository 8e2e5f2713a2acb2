"""`shardline status`: what a run's tasks and jobs do, how often it was preempted, and why it failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TextIO

from contracts.artifacts import GoodputRecord
from contracts.errors import ShardlineError
from contracts.goodput import count_stops
from inspection.attempts import read_warnings
from inspection.goodput import read_goodput
from inspection.run.events import find_output
from pipelines.google import first_line
from pipelines.runs.diagnosis import Diagnosis
from pipelines.runs.evidence import explain, line_of
from pipelines.runs.jobs import Job, JobFinder
from pipelines.runs.name import RunName
from pipelines.runs.tasks import Task, error_text, read_tasks, seconds_between, state_of
from pipelines.submission.submit import read_job

_PLAIN_WIDTH = 150


@dataclass(frozen=True)
class Status:
    """A run as it is now."""

    name: RunName
    state: str
    line: str
    error: str
    """What the service says of the whole run."""
    created_at: datetime | None
    ended_at: datetime | None
    tasks: tuple[Task, ...]
    jobs: tuple[Job, ...]
    goodput: GoodputRecord | None
    """Of the run's training; None: it has not begun, or the bucket does not answer."""
    warnings: tuple[str, ...]
    """What was remarked about the source of its shards."""
    note: str
    """Why there is no account of the training; empty: there is one, or none is expected."""
    diagnosis: Diagnosis | None
    """Why it failed; None: it has not."""


def read_status(client: Any, name: RunName) -> Status:
    """Return a run as it is now.

    Raises:
        ConfigError: There is no such run.
        TryAgain: No answer.
    """
    pipeline = read_job(client, name)
    tasks = read_tasks(pipeline)
    jobs = JobFinder(name.project, name.region, name.id).find(pipeline, tasks)
    line, state = line_of(pipeline), state_of(pipeline)
    goodput, note, warnings = None, "", []
    if line.startswith("gs://"):
        try:
            goodput = read_goodput(line, name.id)
            made = find_output(line, name.id, "shard")
            warnings = read_warnings(made) if made is not None else []
        except ShardlineError as error:
            # The services have answered: that is worth showing without the bucket.
            note = f"no account of the training: {first_line(error)}"
    return Status(
        name=name,
        state=state,
        line=line,
        error=error_text(pipeline.error),
        created_at=pipeline.create_time or None,
        ended_at=pipeline.end_time or None,
        tasks=tuple(tasks),
        jobs=tuple(jobs),
        goodput=goodput,
        warnings=tuple(warnings),
        note=note,
        diagnosis=explain(name, pipeline, tasks, jobs) if state == "FAILED" else None,
    )


def to_json(status: Status) -> dict[str, Any]:
    """Return a status as JSON."""
    return {
        "run": status.name.resource,
        "state": status.state,
        "console": status.name.console,
        "line": status.line,
        "error": status.error,
        "created_at": _text(status.created_at),
        "ended_at": _text(status.ended_at),
        "tasks": [_values(task, _OF_TASK) for task in status.tasks],
        "jobs": [_values(job, _OF_JOB) for job in status.jobs],
        "warnings": list(status.warnings),
        "training": status.goodput.model_dump(mode="json") if status.goodput else None,
        "diagnosis": _values(status.diagnosis, _OF_DIAGNOSIS) if status.diagnosis else None,
    }


_OF_TASK = ("name", "state", "attempts", "started_at", "ended_at", "error", "resources")
_OF_JOB = ("kind", "name", "display_name", "task", "state", "error", "console", "created_at", "started_at", "ended_at")
_OF_DIAGNOSIS = ("kind", "cause", "advice", "exit_code", "evidence")


def _values(of: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return attributes as JSON values."""
    found = {name: getattr(of, name) for name in names}
    return {
        name: _text(value) if isinstance(value, datetime) else list(value) if isinstance(value, tuple) else value
        for name, value in found.items()
    }


def print_status(status: Status, stream: TextIO) -> None:
    """Print a status: the run, its tasks, its jobs, its training, and the likely cause of its failure."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=stream, width=None if stream.isatty() else _PLAIN_WIDTH, highlight=False, soft_wrap=False)
    console.print(Text(f"run {status.name.id}: {status.state.lower()}"))
    for text in _lines(status):
        console.print(Text(f"  {text}"), soft_wrap=True)
    tasks = Table(box=SIMPLE)
    for column in ("task", "state", "took", "attempts"):
        tasks.add_column(column)
    for task in status.tasks:
        attempts = str(task.attempts) if task.attempts > 1 else ""
        tasks.add_row(Text(task.name), task.state.lower(), _took(task.started_at, task.ended_at), attempts)
    if status.tasks:
        console.print(tasks)
    for task in status.tasks:
        for uri in task.resources:
            # What is no job: a model's upload, for one.
            if not any(uri.endswith(job.name) for job in status.jobs):
                console.print(Text(f"{task.name}: {uri}"), soft_wrap=True)
    for job in status.jobs:
        waited = seconds_between(job.created_at, job.started_at)
        more = f", waited {waited:.0f} s for machines" if waited is not None else ""
        told = f"{job.kind} {job.id} ({job.task or job.display_name}): {job.state.lower()} in {job.region}{more}"
        console.print(Text(f"{told}\n  {job.console}"), soft_wrap=True)
    if status.diagnosis is not None:
        console.print(Text(_failure(status.diagnosis)), soft_wrap=True)


def _lines(status: Status) -> Iterator[str]:
    yield status.name.console
    if status.line:
        yield f"line {status.line}"
    if status.created_at:
        yield f"created {_text(status.created_at)}" + (f", ended {_text(status.ended_at)}" if status.ended_at else "")
    if (found := status.goodput) is not None:
        yield (
            f"training: {found.steps} steps, {found.attempts} attempts and {found.starts} starts, "
            f"{count_stops(found)}, {found.goodput_percent:.1f} % goodput"
        )
    if status.note:
        yield status.note
    yield from (f"warning: {text}" for text in status.warnings)


def _failure(diagnosis: Diagnosis) -> str:
    said = "\n  ".join(diagnosis.evidence.strip().splitlines()) or "nothing"
    return f"likely cause: {diagnosis.cause} ({diagnosis.kind})\n  to do: {diagnosis.advice}\n  said: {said}"


def _took(start: datetime | None, end: datetime | None) -> str:
    seconds = seconds_between(start, end)
    return "" if seconds is None else f"{seconds:.1f} s"


def _text(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="seconds") if moment else None
