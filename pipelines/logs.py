"""`shardline logs`: logs of a run's tasks and jobs from Cloud Logging, the oldest first."""

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
# Entries arrive in Cloud Logging late and out of order.
_LATE_S = 60.0


def parse_since(text: str) -> datetime:
    """Parse --since: an age (90s, 10m, 2h, 1d) or ISO 8601, UTC by default.

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
        follow: Whether to continue until the run has ended.
        tail: Number of existing entries to yield, the newest; None: all.
        since: Time of the oldest entry; None: all.
        poll_s: Polling interval in seconds.

    Raises:
        ConfigError: The run has no such task.
        TryAgain: No answer.
    """
    created = job.gca_resource.create_time
    since = max(since, created) if since else created
    seen_ids: set[str] = set()
    is_last_read = not follow
    while True:
        refresh(job)
        ended = state_of(job) in ENDED
        sources = _find_sources(job, task)
        newest = since
        for entry in _read(job, _make_filter(sources, since, machine), tail) if sources else ():
            newest = max(newest, entry.timestamp)
            if entry.insert_id not in seen_ids:
                seen_ids.add(entry.insert_id)
                yield _format_entry(entry, sources)
        # After --tail, only newer entries follow.
        since = newest if tail is not None else max(since, newest - timedelta(seconds=_LATE_S))
        tail = None
        if is_last_read:
            return
        # The last lines, often the error, arrive after the end.
        is_last_read = ended
        time.sleep(3 * poll_s if ended else poll_s)


def _find_sources(job: PipelineJob, task: str) -> dict[tuple[str, str], str]:
    """Return the log sources of a run: (resource type, job id) -> task name.

    Raises:
        ConfigError: The run has no such task.
    """
    tasks, jobs = read_tasks(job), find_jobs(job)
    names = dict.fromkeys([*(entry.name for entry in tasks), *(entry.task for entry in jobs)])
    if task and names and task not in names:
        raise ConfigError(f"run {job.name} has no task {task}", allowed=", ".join(names), todo="name one of them")
    sources = {("ml_job", name.rpartition("/")[2]): entry.name for entry in tasks for name in entry.containers}
    sources |= {("ml_job" if entry.kind == "CustomJob" else "dataflow_step", entry.id): entry.task for entry in jobs}
    sources = {source: name for source, name in sources.items() if task in ("", name)}
    if not task:
        sources[("aiplatform.googleapis.com/PipelineJob", job.name)] = "run"
    return sources


def _make_filter(sources: dict[tuple[str, str], str], since: datetime, machine: str) -> str:
    """Return the Cloud Logging filter for these sources."""
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
    """Yield entries, the oldest first; only the `tail` newest if set."""
    from google.cloud import logging

    with explained("Cloud Logging"):
        client = logging.Client(project=job.project)
        order = logging.ASCENDING if tail is None else logging.DESCENDING
        entries = client.list_entries(filter_=query, order_by=order, page_size=1000)
        yield from entries if tail is None else reversed(list(itertools.islice(entries, tail)))


def _format_entry(entry: Any, sources: dict[tuple[str, str], str]) -> str:
    labels = entry.resource.labels
    job_id = labels.get("job_id") or labels.get("pipeline_job_id", "")
    source = "/".join(filter(None, (sources.get((entry.resource.type, job_id), ""), labels.get("task_name"))))
    text = entry.payload.get("message", entry.payload) if isinstance(entry.payload, dict) else entry.payload
    moment = entry.timestamp.astimezone(UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}  {entry.severity or 'DEFAULT':<7}  {source}  {str(text or '').rstrip()}"
