"""`shardline logs`: what a run's tasks and jobs printed, from Cloud Logging, the oldest first."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from contracts.errors import ConfigError
from pipelines.follow import POLL_S
from pipelines.google import explained
from pipelines.runs import ENDED, find_jobs, read_tasks, refresh
from pipelines.submit import state_of

if TYPE_CHECKING:
    from google.cloud.aiplatform import PipelineJob

_AGE = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[smhd])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
# Entries arrive in Cloud Logging some time after they were written, and not in order.
_LATE_S = 60.0


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
    job: PipelineJob,
    *,
    task: str = "",
    machine: str = "",
    follow: bool = False,
    tail: int | None = None,
    since: datetime | None = None,
    poll_s: float = POLL_S,
) -> Iterator[str]:
    """Yield the lines that a run printed: time, severity, task/machine and text.

    Args:
        job: The run; brought up to date.
        task: Only this task, e.g. train.
        machine: Only this machine of a CustomJob, e.g. workerpool1-0.
        follow: Whether to go on until the run has ended.
        tail: Of what is there, only so many entries, the newest; None: all.
        since: Only what was printed then or later; None: all.
        poll_s: Seconds between two looks.

    Raises:
        ConfigError: The run has no such task.
        TryAgain: No answer.
    """
    created = job.gca_resource.create_time
    since = max(since, created) if since else created
    seen: set[str] = set()
    last = not follow
    while True:
        refresh(job)
        ended = state_of(job) in ENDED
        sources = _find_sources(job, task)
        newest = since
        for entry in _read(job, _make_filter(sources, since, machine), tail) if sources else ():
            newest = max(newest, entry.timestamp)
            if entry.insert_id not in seen:
                seen.add(entry.insert_id)
                yield _in_words(entry, sources)
        # What is older than the last lines stays unsaid; what comes is told.
        since = newest if tail is not None else max(since, newest - timedelta(seconds=_LATE_S))
        tail = None
        if last:
            return
        # The last lines, which are the error, arrive after the end.
        last = ended
        time.sleep(3 * poll_s if ended else poll_s)


def _find_sources(job: PipelineJob, task: str) -> dict[tuple[str, str], str]:
    """Return whose entries are read: (type of resource, id of the job) to the name of the task.

    Raises:
        ConfigError: The run has no such task.
    """
    tasks, jobs = read_tasks(job), find_jobs(job)
    names = dict.fromkeys([*(each.name for each in tasks), *(each.task for each in jobs)])
    if task and names and task not in names:
        raise ConfigError(f"run {job.name} has no task {task}", allowed=", ".join(names), todo="name one of them")
    found = {("ml_job", name.rpartition("/")[2]): each.name for each in tasks for name in each.containers}
    found |= {("ml_job" if each.kind == "CustomJob" else "dataflow_step", each.id): each.task for each in jobs}
    found = {source: name for source, name in found.items() if task in ("", name)}
    if not task:
        found[("aiplatform.googleapis.com/PipelineJob", job.name)] = "run"
    return found


def _make_filter(sources: dict[tuple[str, str], str], since: datetime, machine: str) -> str:
    """Return the query of Cloud Logging for these sources from a moment on."""
    by_type: dict[str, list[str]] = {}
    for kind, job_id in sources:
        by_type.setdefault(kind, []).append(f'"{job_id}"')
    parts = []
    for kind, ids in by_type.items():
        label = "pipeline_job_id" if kind.endswith("PipelineJob") else "job_id"
        parts.append(f'(resource.type="{kind}" AND resource.labels.{label}=({" OR ".join(ids)}))')
    chosen = f' AND resource.labels.task_name="{machine}"' if machine else ""
    return f'({" OR ".join(parts)}){chosen} AND timestamp>="{since.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"'


def _read(job: PipelineJob, query: str, tail: int | None) -> Iterator[Any]:
    """Yield entries, the oldest first; of so many newest ones alone, where a number is given."""
    from google.cloud import logging

    with explained("Cloud Logging"):
        client = logging.Client(project=job.project)
        order = logging.ASCENDING if tail is None else logging.DESCENDING
        entries = client.list_entries(filter_=query, order_by=order, page_size=1000)
        yield from entries if tail is None else reversed(list(itertools.islice(entries, tail)))


def _in_words(entry: Any, sources: dict[tuple[str, str], str]) -> str:
    labels = entry.resource.labels
    job_id = labels.get("job_id") or labels.get("pipeline_job_id", "")
    source = "/".join(filter(None, (sources.get((entry.resource.type, job_id), ""), labels.get("task_name"))))
    text = entry.payload.get("message", entry.payload) if isinstance(entry.payload, dict) else entry.payload
    moment = entry.timestamp.astimezone(UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}  {entry.severity or 'DEFAULT':<7}  {source}  {str(text or '').rstrip()}"
