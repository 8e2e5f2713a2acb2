"""Task states of a running pipeline: PipelineTaskDetail with parameters and artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.cloud import aiplatform_v1
from google.rpc import status_pb2

from rehearsal.clock import to_datetime
from rehearsal.pipelines.job import TaskPath
from rehearsal.pipelines.values import Data

# proto-plus declares an enum's members as numbers.
_STATE: Any = aiplatform_v1.PipelineTaskDetail.State
_FINAL_STATES = frozenset({"SUCCEEDED", "FAILED", "SKIPPED", "CANCELLED", "NOT_TRIGGERED"})


def note_task(
    job: Any,
    number: int,
    path: TaskPath,
    state: str,
    now_s: float,
    *,
    error: Mapping[str, Any] | None = None,
    is_dag: bool = False,
    inputs: Data | None = None,
    outputs: Data | None = None,
) -> None:
    """Write a task's state into its PipelineJob.

    `path` is empty for the pipeline itself; `now_s` is in seconds since 1970; `error` is a google.rpc.Status as JSON.
    """
    detail = _find(job, number, path, now_s)
    detail.state, moment = _STATE[state], to_datetime(now_s)
    if state == "RUNNING" and not detail.start_time:
        detail.start_time = moment
    if state in _FINAL_STATES:
        detail.end_time = moment
    record = aiplatform_v1.PipelineTaskDetail.PipelineTaskStatus(update_time=moment, state=_STATE[state])
    if error:
        detail.error = record.error = status_pb2.Status(**error)
    detail.pipeline_task_status.append(record)
    # The execution contains only parameters.
    execution = type(detail).pb(detail).execution
    for prefix, data in (("input", inputs), ("output", outputs)):
        if data and data.parameters:
            execution.metadata.update({f"{prefix}:{name}": value for name, value in data.parameters.items()})
    if state == "RUNNING" and not is_dag:
        detail.executor_detail.container_detail.main_job = container_job(job.name, number)
    for field, data in (("inputs", inputs), ("outputs", outputs)):
        for name, artifact in (data.artifacts if data else {}).items():
            entry = aiplatform_v1.PipelineTaskDetail.ArtifactList(artifacts=[_artifact(name, artifact, now_s)])
            getattr(detail, field)[name] = entry


def container_job(name: str, number: int) -> str:
    """Return the name of the custom job that runs a task's container on Vertex AI."""
    return f"{name.rpartition('/pipelineJobs/')[0]}/customJobs/{number}"


def _find(job: Any, number: int, path: TaskPath, now_s: float) -> Any:
    # Iterating over plain messages is a hundred times as fast as over proto-plus ones.
    details = type(job).pb(job).job_detail.task_details
    for index, detail in enumerate(details):
        if detail.task_id == number:
            return job.job_detail.task_details[index]
    parent = ".".join(path[:-1])
    parents = [detail.task_id for detail in details if path and detail.task_unique_name == parent]
    job.job_detail.task_details.append(
        aiplatform_v1.PipelineTaskDetail(
            task_id=number,
            parent_task_id=parents[0] if parents else 0,
            # The root task is named by the run's id.
            task_name=path[-1] if path else job.name.rpartition("/")[2],
            task_unique_name=".".join(path),
            create_time=to_datetime(now_s),
        )
    )
    return job.job_detail.task_details[-1]


def _artifact(name: str, artifact: Mapping[str, Any], now_s: float) -> Any:
    return aiplatform_v1.Artifact(
        name=artifact["name"],
        display_name=name,
        uri=artifact["uri"],
        schema_title=artifact["type"].get("schemaTitle", ""),
        schema_version=artifact["type"].get("schemaVersion", ""),
        metadata=artifact["metadata"],
        state=aiplatform_v1.Artifact.State.LIVE,
        create_time=to_datetime(now_s),
    )
