"""`shardline logs`: logs of a run's tasks and jobs from Cloud Logging, the oldest first."""

from __future__ import annotations

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

# Entries arrive in Cloud Logging late and out of order.
_LATE_S = 60.0


def read_logs(
    job: PipelineJob,
    *,
    task: str = "",
    machine: str = "",
    follow: bool = False,
    poll_s: float = POLL_S,
) -> Iterator[str]:
    """Yield the lines that a run printed: time, severity, task/machine and text.

    Args:
        job: The run; brought up to date.
        task: Only this task, e.g. train.
        machine: Only this machine of a CustomJob, e.g. workerpool1-0.
        follow: Whether to continue until the run has ended.
        poll_s: Polling interval in seconds.

    Raises:
        ConfigError: The run has no such task.
        TryAgain: No answer.
    """
    since = job.gca_resource.create_time
    seen_ids: set[str] = set()
    is_last_read = not follow
    while True:
        refresh(job)
        ended = state_of(job) in ENDED
        sources = _find_sources(job, task)
        newest = since
        for entry in _read(job, _make_filter(sources, since, machine)) if sources else ():
            newest = max(newest, entry.timestamp)
            if entry.insert_id not in seen_ids:
                seen_ids.add(entry.insert_id)
                yield _format_entry(entry, sources)
        since = max(since, newest - timedelta(seconds=_LATE_S))
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


def _read(job: PipelineJob, query: str) -> Iterator[Any]:
    """Yield entries, the oldest first."""
    from google.cloud import logging

    with explained("Cloud Logging"):
        client = logging.Client(project=job.project)
        yield from client.list_entries(filter_=query, order_by=logging.ASCENDING, page_size=1000)


def _format_entry(entry: Any, sources: dict[tuple[str, str], str]) -> str:
    labels = entry.resource.labels
    job_id = labels.get("job_id") or labels.get("pipeline_job_id", "")
    source = "/".join(filter(None, (sources.get((entry.resource.type, job_id), ""), labels.get("task_name"))))
    text = entry.payload.get("message", entry.payload) if isinstance(entry.payload, dict) else entry.payload
    moment = entry.timestamp.astimezone(UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}  {entry.severity or 'DEFAULT':<7}  {source}  {str(text or '').rstrip()}"
