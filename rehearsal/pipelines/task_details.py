"""Reports of a running pipeline as the messages that Vertex shows: PipelineTaskDetail, its execution and artifacts."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from google.cloud import aiplatform_v1
from google.rpc import status_pb2

from rehearsal.pipelines.reports import FINAL_STATES

# proto-plus declares an enum's members as numbers.
State: Any = aiplatform_v1.PipelineTaskDetail.State
_CONTAINER = "system.ContainerExecution"
_EXECUTION_STATES = {
    "SUCCEEDED": aiplatform_v1.Execution.State.COMPLETE,
    "SKIPPED": aiplatform_v1.Execution.State.CACHED,
    "FAILED": aiplatform_v1.Execution.State.FAILED,
    "CANCELLED": aiplatform_v1.Execution.State.CANCELLED,
    "PENDING": aiplatform_v1.Execution.State.NEW,
    "RUNNING": aiplatform_v1.Execution.State.RUNNING,
}


def moment(seconds: float) -> datetime.datetime:
    """Return a time since the epoch as clients' messages take it."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def note_tasks(job: Any, reports: Sequence[Mapping[str, Any]], now: float) -> None:
    """Write reports about tasks into the PipelineJob.

    Args:
        job: The PipelineJob, changed in place.
        reports: With "report": "task", in their order.
        now: In seconds since the epoch.
    """
    for report in reports:
        _note_task(job, report, now)


def _note_task(job: Any, report: Mapping[str, Any], now: float) -> None:
    detail = _find(job, report, now)
    state = report["state"]
    detail.state = State[state]
    if state == "RUNNING" and not detail.start_time:
        detail.start_time = moment(now)
    if state in FINAL_STATES:
        detail.end_time = moment(now)
    error = report.get("error")
    if error:
        detail.error = status_pb2.Status(**error)
    record = aiplatform_v1.PipelineTaskDetail.PipelineTaskStatus(update_time=moment(now), state=State[state])
    if error:
        record.error = status_pb2.Status(**error)
    detail.pipeline_task_status.append(record)
    if state in _EXECUTION_STATES:
        _note_execution(job, detail, report, now)
    if state == "RUNNING" and detail.execution.schema_title == _CONTAINER:
        detail.executor_detail.container_detail.main_job = job_of(job.name, detail.task_id)
    for field, group in (("inputs", "in"), ("outputs", "out")):
        for name, artifact in (report.get(group) or {}).items():
            entry = aiplatform_v1.PipelineTaskDetail.ArtifactList(artifacts=[_artifact(name, artifact, now)])
            getattr(detail, field)[name] = entry


def job_of(name: str, number: int) -> str:
    """Return the name of the custom job that Vertex runs a task's container in."""
    return f"{name.rpartition('/pipelineJobs/')[0]}/customJobs/{number}"


def _find(job: Any, report: Mapping[str, Any], now: float) -> Any:
    # The plain messages: the client's classes around each take a hundred times as long to go through.
    plain = type(job).pb(job).job_detail.task_details
    for index, detail in enumerate(plain):
        if detail.task_id == report["id"]:
            return job.job_detail.task_details[index]
    path = report["path"]
    job.job_detail.task_details.append(
        aiplatform_v1.PipelineTaskDetail(
            task_id=report["id"],
            parent_task_id=_parent_id(plain, path),
            # The root is shown under the run's own id.
            task_name=path[-1] if path else job.name.rpartition("/")[2],
            task_unique_name=".".join(path),
            create_time=moment(now),
        )
    )
    return job.job_detail.task_details[-1]


def _parent_id(details: Any, path: list[str]) -> int:
    if not path:
        return 0
    parent = ".".join(path[:-1])
    return next((detail.task_id for detail in details if detail.task_unique_name == parent), 0)


def _note_execution(job: Any, detail: Any, report: Mapping[str, Any], now: float) -> None:
    execution = detail.execution
    if not execution.name:
        detail.execution = aiplatform_v1.Execution(
            name=f"{_store_of(job)}/executions/{report['id']}",
            display_name=detail.task_name,
            schema_title="system.DagExecution" if report.get("dag") else _CONTAINER,
            schema_version="0.0.1",
            create_time=moment(now),
            metadata={"task_name": detail.task_name, "pipeline_job_resource_name": job.name},
        )
        execution = detail.execution
    execution.state = _EXECUTION_STATES[report["state"]]
    execution.update_time = moment(now)
    for prefix, group in (("input", "inputs"), ("output", "outputs")):
        for name, value in (report.get(group) or {}).items():
            execution.metadata[f"{prefix}:{name}"] = value


def _artifact(name: str, artifact: Mapping[str, Any], now: float) -> Any:
    return aiplatform_v1.Artifact(
        name=artifact["name"],
        display_name=name,
        uri=artifact["uri"],
        schema_title=artifact["type"].get("schemaTitle", ""),
        schema_version=artifact["type"].get("schemaVersion", ""),
        metadata=artifact["metadata"],
        state=aiplatform_v1.Artifact.State.LIVE,
        create_time=moment(now),
    )


def _store_of(job: Any) -> str:
    return f"{job.name.rpartition('/pipelineJobs/')[0]}/metadataStores/default"
