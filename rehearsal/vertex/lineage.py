"""Artifacts, executions and what they have to do with each other, of MetadataService.

Those of a pipeline's run are read from its tasks' details; others were created by clients. Of a run as a whole Vertex
keeps an execution of type system.Run with the run's parameters, which clients read.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.metadataStores.artifacts
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from google.cloud.aiplatform_v1 import types
from google.protobuf import json_format

from rehearsal.doors.errors import invalid, not_found
from rehearsal.doors.messages import plain
from rehearsal.pipelines.artifact_metadata import find_excess
from rehearsal.resources.cloud_state import Caller, CloudState
from rehearsal.resources.listing import page, select

# proto-plus declares an enum's members as numbers.
_STATE: Any = types.Execution.State
_STATES = {
    "PIPELINE_STATE_SUCCEEDED": _STATE.COMPLETE,
    "PIPELINE_STATE_FAILED": _STATE.FAILED,
    "PIPELINE_STATE_CANCELLED": _STATE.CANCELLED,
}


@dataclass
class _Graph:
    """What a metadata store holds beside contexts."""

    artifacts: dict[str, Any] = field(default_factory=dict)
    executions: dict[str, Any] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)
    contexts: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Names of the contexts that an artifact or execution is in, by its name."""


def create_artifact(cloud: CloudState, request: types.CreateArtifactRequest, caller: Caller) -> types.Artifact:
    """Create an artifact in a store that is there."""
    parent = cloud.find(request.parent, "aiplatform.artifacts.create").name
    artifact = types.Artifact(request.artifact)
    artifact.name = f"{parent}/artifacts/{request.artifact_id or cloud.store.new_id()}"
    artifact.create_time = artifact.update_time = cloud.now()
    if said := find_excess(plain(artifact).metadata):
        raise invalid("artifact.metadata", said)
    cloud.add(artifact)
    return artifact


def _getter(kind: Any, collection: str) -> Callable[[CloudState, Any, Caller], Any]:
    """Return the method that returns one message of a collection: artifacts or executions."""

    def get(cloud: CloudState, request: Any, caller: Caller) -> Any:
        name = cloud.resolve_name(request.name, f"aiplatform.{collection}.get")
        found = getattr(_read(cloud, name.rpartition(f"/{collection}/")[0]), collection).get(name)
        if found is None:
            raise not_found(name)
        return kind(found)

    return get


def _lister(kind: Any, collection: str, response: Any) -> Callable[[CloudState, Any, Caller], Any]:
    """Return the method that lists a collection: artifacts or executions."""

    def list_(cloud: CloudState, request: Any, caller: Caller) -> Any:
        graph = _read(cloud, cloud.find(request.parent, f"aiplatform.{collection}.list").name)
        found = select(
            getattr(graph, collection).values(),
            kind,
            filter=request.filter,
            order_by=request.order_by,
            contexts_of=lambda item: graph.contexts.get(item.name, set()),
        )
        chosen, token = page(found, request.page_size, request.page_token)
        return response(**{collection: chosen}, next_page_token=token)

    return list_


def add_to_context(
    cloud: CloudState, request: types.AddContextArtifactsAndExecutionsRequest, caller: Caller
) -> types.AddContextArtifactsAndExecutionsResponse:
    """Put artifacts and executions into a context."""
    context = cloud.find(request.context, "aiplatform.contexts.addContextArtifactsAndExecutions").name
    place, _, name = context.partition("/contexts/")
    graph = _read(cloud, place)
    asked = types.AddContextArtifactsAndExecutionsRequest(request)
    for given, there in ((asked.artifacts, graph.artifacts), (asked.executions, graph.executions)):
        for number, one in enumerate(given):
            given[number] = cloud.resolve_name(one, "aiplatform.contexts.addContextArtifactsAndExecutions")
            if given[number] not in there:
                raise not_found(given[number])
    asked.context = context
    cloud.store.add(f"{place}/memberships/{name}/{cloud.store.new_id()}", asked)
    return types.AddContextArtifactsAndExecutionsResponse()


def query_lineage(
    cloud: CloudState, request: types.QueryContextLineageSubgraphRequest, caller: Caller
) -> types.LineageSubgraph:
    """Return the artifacts and executions of a context, and which of them made or used which."""
    context = cloud.find(request.context, "aiplatform.contexts.queryContextLineageSubgraph").name
    graph = _read(cloud, context.partition("/contexts/")[0])
    inside = {name for name, contexts in graph.contexts.items() if context in contexts}
    return types.LineageSubgraph(
        artifacts=[artifact for name, artifact in graph.artifacts.items() if name in inside],
        executions=[execution for name, execution in graph.executions.items() if name in inside],
        events=[event for event in graph.events if {event.artifact, event.execution} <= inside],
    )


def _read(cloud: CloudState, place: str) -> _Graph:
    """Return what a store holds, the newest first."""
    graph = _Graph()
    location = place.rpartition("/metadataStores/")[0]
    for artifact in cloud.store.list(f"{place}/artifacts/", types.Artifact):
        graph.artifacts[artifact.name] = artifact
    for job in cloud.store.list(f"{location}/pipelineJobs/", types.PipelineJob):
        _add_job(graph, place, job)
    for given in cloud.store.list(f"{place}/memberships/", types.AddContextArtifactsAndExecutionsRequest):
        for name in (*given.artifacts, *given.executions):
            graph.contexts[name].add(given.context)
    return graph


def _add_job(graph: _Graph, place: str, job: Any) -> None:
    contexts = {job.job_detail.pipeline_context.name, job.job_detail.pipeline_run_context.name}
    whole = _run_execution(place, job)
    graph.executions[whole.name] = whole
    graph.contexts[whole.name] |= contexts
    for detail in job.job_detail.task_details:
        execution = detail.execution
        if execution.name:
            graph.executions[execution.name] = execution
            graph.contexts[execution.name] |= contexts
        for kind, artifact in _artifacts_of(detail):
            graph.artifacts.setdefault(artifact.name, artifact)
            graph.contexts[artifact.name] |= contexts
            if execution.name:
                graph.events.append(types.Event(artifact=artifact.name, execution=execution.name, type_=kind))


def _artifacts_of(detail: Any) -> Iterator[tuple[Any, Any]]:
    kinds: Any = types.Event.Type
    for kind, lists in ((kinds.OUTPUT, detail.outputs), (kinds.INPUT, detail.inputs)):
        for entry in lists.values():
            for artifact in entry.artifacts:
                yield kind, artifact


def _run_execution(place: str, job: Any) -> Any:
    """Return the execution that stands for a run as a whole."""
    values = json_format.MessageToDict(plain(job).runtime_config).get("parameterValues", {})
    return types.Execution(
        name=f"{place}/executions/run-{job.name.rpartition('/')[2]}",
        display_name=job.display_name,
        schema_title="system.Run",
        schema_version="0.0.1",
        state=_STATES.get(job.state.name, _STATE.RUNNING),
        create_time=job.create_time,
        metadata={f"input:{name}": value for name, value in values.items()},
    )


METHODS = {
    "CreateArtifact": create_artifact,
    "GetArtifact": _getter(types.Artifact, "artifacts"),
    "ListArtifacts": _lister(types.Artifact, "artifacts", types.ListArtifactsResponse),
    "GetExecution": _getter(types.Execution, "executions"),
    "ListExecutions": _lister(types.Execution, "executions", types.ListExecutionsResponse),
    "AddContextArtifactsAndExecutions": add_to_context,
    "QueryContextLineageSubgraph": query_lineage,
}
