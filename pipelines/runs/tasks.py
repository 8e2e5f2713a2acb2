"""The tasks of a PipelineJob, as the service tells of them: names with their parents, states, what they started.

Pure functions over the job's message (google.cloud.aiplatform_v1.types.PipelineJob); nothing is asked of anybody.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

# States from which a job, a task or a pipeline goes nowhere.
ENDED = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "SKIPPED", "NOT_TRIGGERED", "EXPIRED", "PARTIALLY_SUCCEEDED"})
_PREFIXES = ("PIPELINE_STATE_", "JOB_STATE_")
# The output of Google's components that names what they started.
_GCP_RESOURCES = "gcp_resources"


@dataclass(frozen=True)
class Task:
    """One task of a run."""

    name: str
    """With the names of the tasks that it is inside of: exit-handler-1.train."""
    state: str
    started_at: datetime | None
    ended_at: datetime | None
    error: str
    error_code: int
    """google.rpc.Code; 0: it has not failed."""
    resources: tuple[str, ...]
    """URIs of what it started: a CustomJob, a Dataflow job, an operation."""
    containers: tuple[str, ...]
    """Full names of the CustomJobs that ran its own container, in the order of its attempts."""

    @property
    def attempts(self) -> int:
        """How often its container was started; 0 where the service does not tell."""
        return len(self.containers)


def state_of(message: Any) -> str:
    """Return the state of a PipelineJob, a CustomJob or a task, without its prefix."""
    name = str(message.state.name)
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def read_tasks(job: Any) -> list[Task]:
    """Return the tasks in the order of their creation; the task that stands for the whole pipeline is left out."""
    details = sorted(job.job_detail.task_details, key=lambda detail: detail.task_id)
    by_id = {detail.task_id: detail for detail in details}
    parents = {detail.parent_task_id for detail in details}
    roots = {
        detail.task_id
        for detail in details
        if detail.task_id in parents and detail.parent_task_id not in by_id and _is_whole(detail, job, details)
    }
    return [_read(detail, by_id, roots) for detail in details if detail.task_id not in roots]


def error_text(status: Any) -> str:
    """Return the message of a google.rpc.Status; empty: there is none."""
    return str(status.message) if status is not None and (status.code or status.message) else ""


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    """Return the seconds from one moment to another, when both are known."""
    return (end - start).total_seconds() if start and end else None


def _is_whole(detail: Any, job: Any, details: list[Any]) -> bool:
    """Whether a task is the pipeline itself: all others are below it."""
    others = [other for other in details if other.parent_task_id not in {d.task_id for d in details}]
    return len(others) == 1 and others[0].task_id == detail.task_id and len(details) > 1


def _read(detail: Any, by_id: dict[int, Any], roots: set[int]) -> Task:
    container = detail.executor_detail.container_detail
    jobs = [*container.failed_main_jobs, *([container.main_job] if container.main_job else [])]
    return Task(
        name=".".join(_path(detail, by_id, roots)),
        state=state_of(detail),
        started_at=detail.start_time or None,
        ended_at=detail.end_time or None,
        error=error_text(detail.error),
        error_code=detail.error.code,
        resources=tuple(dict.fromkeys(_resources(detail))),
        containers=tuple(jobs),
    )


def _path(detail: Any, by_id: dict[int, Any], roots: set[int]) -> list[str]:
    path = [detail.task_name]
    seen = {detail.task_id}
    while (parent := by_id.get(detail.parent_task_id)) is not None and parent.task_id not in seen | roots:
        seen.add(parent.task_id)
        path.insert(0, parent.task_name)
        detail = parent
    return path


def _resources(detail: Any) -> Iterator[str]:
    metadata = detail.execution.metadata
    for key, value in dict(metadata or {}).items():
        if key.rpartition(":")[2] != _GCP_RESOURCES or not isinstance(value, str):
            continue
        try:
            content = json.loads(value)
        except ValueError:
            continue
        for resource in content.get("resources", []):
            if uri := resource.get("resourceUri"):
                yield str(uri)
