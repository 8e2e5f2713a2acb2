"""MetadataService as far as the SDK's experiments go: contexts, and artifacts in them. No execution is kept.

Vertex makes two contexts of every pipeline job itself, one of the pipeline and one of the run; so does `add_run`.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.metadataStores.contexts
"""

from __future__ import annotations

from typing import Any

from google.cloud.aiplatform_v1 import types
from google.protobuf.field_mask_pb2 import FieldMask

from rehearsal.doors.errors import not_found
from rehearsal.doors.messages import plain
from rehearsal.resources.cloud_state import Caller, CloudState
from rehearsal.resources.listing import list_page, page, select

_STORE = "/metadataStores/default"


def get_store(cloud: CloudState, request: types.GetMetadataStoreRequest, caller: Caller) -> types.MetadataStore:
    """Return the default store, which every project has here."""
    name = cloud.resolve_name(request.name, "aiplatform.metadataStores.get")
    if not name.endswith(_STORE):
        raise not_found(name)
    return types.MetadataStore(name=name)


def create_context(cloud: CloudState, request: types.CreateContextRequest, caller: Caller) -> types.Context:
    """Create a context."""
    return _create(cloud, types.Context(request.context), "contexts", request.parent, request.context_id)


def create_artifact(cloud: CloudState, request: types.CreateArtifactRequest, caller: Caller) -> types.Artifact:
    """Create an artifact."""
    return _create(cloud, types.Artifact(request.artifact), "artifacts", request.parent, request.artifact_id)


def _create(cloud: CloudState, resource: Any, collection: str, parent: str, resource_id: str) -> Any:
    store = cloud.resolve_name(parent, f"aiplatform.{collection}.create")
    resource.name = f"{store}/{collection}/{resource_id or cloud.store.new_id()}"
    resource.create_time = resource.update_time = cloud.now()
    cloud.add(resource)
    return resource


def get_context(cloud: CloudState, request: types.GetContextRequest, caller: Caller) -> types.Context:
    """Return a context."""
    return types.Context(cloud.find(request.name, "aiplatform.contexts.get"))


def get_artifact(cloud: CloudState, request: types.GetArtifactRequest, caller: Caller) -> types.Artifact:
    """Return an artifact."""
    return types.Artifact(cloud.find(request.name, "aiplatform.artifacts.get"))


def list_contexts(cloud: CloudState, request: types.ListContextsRequest, caller: Caller) -> types.ListContextsResponse:
    """List contexts, the newest first."""
    chosen, token = list_page(cloud, request, types.Context, "contexts")
    return types.ListContextsResponse(contexts=chosen, next_page_token=token)


def update_context(cloud: CloudState, request: types.UpdateContextRequest, caller: Caller) -> types.Context:
    """Change a context's description, labels or metadata."""
    name = cloud.find(request.context.name, "aiplatform.contexts.get").name
    paths = list(request.update_mask.paths) or ["description", "labels", "metadata", "display_name"]

    def change(context: Any) -> None:
        FieldMask(paths=paths).MergeMessage(plain(request.context), plain(context), True, True)
        context.update_time = cloud.now()

    return types.Context(cloud.store.update(name, change))


def add_children(
    cloud: CloudState, request: types.AddContextChildrenRequest, caller: Caller
) -> types.AddContextChildrenResponse:
    """Make contexts children of another: an experiment's runs are its children."""
    name = cloud.find(request.context, "aiplatform.contexts.get").name

    def change(context: Any) -> None:
        if name not in context.parent_contexts:
            context.parent_contexts.append(name)

    for child in request.child_contexts:
        cloud.store.update(cloud.find(child, "aiplatform.contexts.get").name, change)
    return types.AddContextChildrenResponse()


def add_artifacts(
    cloud: CloudState, request: types.AddContextArtifactsAndExecutionsRequest, caller: Caller
) -> types.AddContextArtifactsAndExecutionsResponse:
    """Put artifacts into a context."""
    context = cloud.find(request.context, "aiplatform.contexts.addContextArtifactsAndExecutions").name
    names = [cloud.find(artifact, "aiplatform.artifacts.get").name for artifact in request.artifacts]
    addition = types.AddContextArtifactsAndExecutionsRequest(context=context, artifacts=names)
    store = context.partition("/contexts/")[0]
    cloud.store.add(f"{store}/additions/{cloud.store.new_id()}", addition)
    return types.AddContextArtifactsAndExecutionsResponse()


def list_artifacts(
    cloud: CloudState, request: types.ListArtifactsRequest, caller: Caller
) -> types.ListArtifactsResponse:
    """List artifacts, the newest first."""
    store = cloud.resolve_name(request.parent, "aiplatform.artifacts.list")
    additions = list(cloud.store.list(f"{store}/additions/", types.AddContextArtifactsAndExecutionsRequest))
    found = select(
        cloud.store.list(f"{store}/artifacts/", types.Artifact),
        types.Artifact,
        filter=request.filter,
        order_by=request.order_by,
        contexts_of=lambda item: {addition.context for addition in additions if item.name in addition.artifacts},
    )
    chosen, token = page(found, request.page_size, request.page_token)
    return types.ListArtifactsResponse(artifacts=chosen, next_page_token=token)


def get_execution(cloud: CloudState, request: types.GetExecutionRequest, caller: Caller) -> types.Execution:
    """Raise NOT_FOUND: the SDK asks for one before it makes a run of an experiment."""
    raise not_found(request.name)


def list_executions(
    cloud: CloudState, request: types.ListExecutionsRequest, caller: Caller
) -> types.ListExecutionsResponse:
    """List none."""
    return types.ListExecutionsResponse()


def add_run(cloud: CloudState, parent: str, job_id: str, pipeline: str) -> tuple[types.Context, types.Context]:
    """Make the contexts of a pipeline and of one of its runs; return (pipeline's, run's)."""
    made: list[types.Context] = []
    for context_id, schema in ((pipeline, "system.Pipeline"), (job_id, "system.PipelineRun")):
        context = types.Context(
            name=f"{parent}{_STORE}/contexts/{context_id}",
            display_name=context_id,
            schema_title=schema,
            schema_version="0.0.1",
            create_time=cloud.now(),
            update_time=cloud.now(),
            parent_contexts=[] if context_id == pipeline else [made[0].name],
        )
        if cloud.store.find(context.name) is None:
            cloud.store.add(context.name, context)
        made.append(context)
    return made[0], made[1]


METHODS = {
    "GetMetadataStore": get_store,
    "CreateContext": create_context,
    "GetContext": get_context,
    "ListContexts": list_contexts,
    "UpdateContext": update_context,
    "AddContextChildren": add_children,
    "CreateArtifact": create_artifact,
    "GetArtifact": get_artifact,
    "ListArtifacts": list_artifacts,
    "AddContextArtifactsAndExecutions": add_artifacts,
    "GetExecution": get_execution,
    "ListExecutions": list_executions,
}
