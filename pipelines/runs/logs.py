"""`shardline logs`: what a run's containers and jobs printed, from Cloud Logging, the oldest first."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from contracts.errors import ConfigError
from pipelines.google import explained, logging_client, read_options
from pipelines.runs.jobs import Job, JobFinder
from pipelines.runs.name import RunName
from pipelines.runs.tasks import ENDED, Task, read_tasks, state_of
from pipelines.submission.submit import read_job

_POLL_S = 5.0
_PAGE = 1000
_AGE = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[smhd])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
# A traceback is an entry a line.
_LAST_ERRORS = 200
# Entries arrive in Cloud Logging some time after they were written, and not in order.
_LATE_S = 60.0


@dataclass(frozen=True)
class Entry:
    """One line that was printed."""

    time: datetime
    severity: str
    source: str
    """Task and replica: train.custom-training-job/workerpool1-0."""
    text: str

    def __str__(self) -> str:
        """Return the line that is printed."""
        return f"{self.time:%Y-%m-%dT%H:%M:%SZ}  {self.severity:<7}  {self.source}  {self.text.rstrip()}"


def parse_since(text: str) -> datetime:
    """Return the moment that a user means: an age (90s, 10m, 2h, 1d) or ISO 8601, UTC where it says no zone.

    Raises:
        ConfigError: It is neither.
    """
    if (age := _AGE.fullmatch(text.strip())) is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[age["unit"]]: float(age["number"])})
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(
            f"--since {text}",
            allowed="an age: 90s, 10m, 2h, 1d; or a moment: 2026-12-01T06:00:00Z",
            todo="write for example 10m",
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def read_logs(
    client: Any,
    name: RunName,
    *,
    task: str = "",
    follow: bool,
    tail: int | None = None,
    since: datetime | None = None,
    poll_s: float = _POLL_S,
) -> Iterator[Entry]:
    """Yield what a run printed.

    Args:
        client: The PipelineServiceClient of the run's region.
        name: The run.
        task: Only this task and those inside of it, e.g. train.
        follow: Whether to go on until the run has ended.
        tail: Of what is there, only so many entries, the newest; None: all.
        since: Only what was printed then or later; None: all.
        poll_s: Seconds between two looks.

    Raises:
        ConfigError: There is no such run, or no such task.
        TryAgain: No answer.
    """
    finder = JobFinder(name.project, name.region, name.id)
    reader = logging_client()
    seen: set[str] = set()
    while True:
        pipeline = read_job(client, name)
        tasks = read_tasks(pipeline)
        ended = state_of(pipeline) in ENDED
        sources = find_sources(name, tasks, finder.find(pipeline, tasks), task)
        since = max(since, pipeline.create_time) if since else pipeline.create_time
        if sources:
            newest = since
            found = list(_read(reader, name.project, sources, since, newest=tail)) if tail is not None else None
            for entry, insert_id in found if found is not None else _read(reader, name.project, sources, since):
                newest = max(newest, entry.time)
                if insert_id not in seen:
                    seen.add(insert_id)
                    yield entry
            if tail is not None:
                # What is older than the last lines stays unsaid; what comes is told.
                since, tail = max(since, newest), None
            since = max(since, newest - timedelta(seconds=_LATE_S))
        if ended or not follow:
            return
        time.sleep(poll_s)


def read_errors(name: RunName, tasks: Sequence[Task], jobs: Sequence[Job], since: datetime) -> list[str]:
    """Return the last errors that the tasks and jobs of a run printed which did not succeed, the newest first.

    Raises:
        ConfigError: The account may not read logs.
        TryAgain: No answer.
    """
    failed = [task for task in tasks if task.state == "FAILED"]
    sources = find_sources(name, failed, [job for job in jobs if job.state != "SUCCEEDED"], "")
    request = {
        "resource_names": [f"projects/{name.project}"],
        "filter": f"{make_filter(sources, since)} AND severity>=ERROR",
        "order_by": "timestamp desc",
        "page_size": _LAST_ERRORS,
    }
    with explained("Cloud Logging", project=name.project):
        found = logging_client().list_log_entries(request=request, **read_options())
        return [_text(entry) for entry in itertools.islice(found, _LAST_ERRORS)]


def find_sources(name: RunName, tasks: Sequence[Task], jobs: Sequence[Job], task: str) -> dict[tuple[str, str], str]:
    """Return whose entries are read: (type of resource, id of the job) to the name of the task.

    Raises:
        ConfigError: The run has no such task.
    """
    names = [item.name for item in tasks]

    def wanted(candidate: str) -> bool:
        return not task or candidate == task or candidate.startswith(f"{task}.") or candidate.endswith(f".{task}")

    if task and names and not any(map(wanted, names)):
        raise ConfigError(f"run {name.id} has no task {task}", allowed=", ".join(names), todo="name one of them")
    found: dict[tuple[str, str], str] = {}
    for item in tasks:
        if wanted(item.name):
            # The container of a task is a CustomJob of its own.
            found |= {("ml_job", container.rpartition("/")[2]): item.name for container in item.containers}
    for job in jobs:
        owner = job.task or job.display_name
        if wanted(owner) or (task and task in job.display_name):
            found[("dataflow_step" if job.kind == "Dataflow" else "ml_job", job.id)] = owner
    if not task:
        found[("aiplatform.googleapis.com/PipelineJob", name.id)] = "run"
    return found


def make_filter(sources: dict[tuple[str, str], str], since: datetime) -> str:
    """Return the query of Cloud Logging for these sources from a moment on."""
    by_type: dict[str, list[str]] = {}
    for kind, job_id in sources:
        by_type.setdefault(kind, []).append(job_id)
    parts = []
    for kind, ids in by_type.items():
        label = "pipeline_job_id" if kind.endswith("PipelineJob") else "job_id"
        listed = " OR ".join(f'"{job_id}"' for job_id in ids)
        parts.append(f'(resource.type="{kind}" AND resource.labels.{label}=({listed}))')
    moment = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return f'({" OR ".join(parts)}) AND timestamp>="{moment}"'


def _read(
    reader: Any, project: str, sources: dict[tuple[str, str], str], since: datetime, *, newest: int | None = None
) -> Iterator[tuple[Entry, str]]:
    """Yield entries, the oldest first; of so many newest ones alone, where a number is given."""
    request = {
        "resource_names": [f"projects/{project}"],
        "filter": make_filter(sources, since),
        "order_by": "timestamp asc" if newest is None else "timestamp desc",
        "page_size": _PAGE if newest is None else min(max(newest, 1), _PAGE),
    }
    from google.logging.type.log_severity_pb2 import LogSeverity  # type: ignore[import-untyped]

    with explained("Cloud Logging", project=project):
        entries = reader.list_log_entries(request=request, **read_options())
        if newest is not None:
            entries = reversed(list(itertools.islice(entries, newest)))
        for found in entries:
            labels = dict(found.resource.labels)
            job_id = labels.get("job_id") or labels.get("pipeline_job_id", "")
            task = sources.get((found.resource.type, job_id), "")
            # A CustomJob's machines write under names of their own.
            source = "/".join(filter(None, (task, labels.get("task_name"))))
            moment, text = found.timestamp or found.receive_timestamp, _text(found)
            yield Entry(moment, LogSeverity.Name(found.severity), source, text), found.insert_id or f"{moment}{text}"


def _text(entry: Any) -> str:
    if entry.text_payload:
        return str(entry.text_payload)
    payload = dict(entry.json_payload or {})
    return str(payload.get("message") or payload or "")
