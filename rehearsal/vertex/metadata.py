"""MetadataService as far as experiments go: stores, contexts with their children, artifacts that clients create.

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
from rehearsal.resources.operations import finished

_VERSION = "0.0.1"


def create_store(cloud: CloudState, request: types.CreateMetadataStoreRequest, caller: Caller) -> Any:
    """Create a store; clients want the one named default."""
    parent = cloud.resolve_name(request.parent, "aiplatform.metadataStores.create")
    store = types.MetadataStore(request.metadata_store)
    store.name = f"{parent}/metadataStores/{request.metadata_store_id or cloud.store.new_id()}"
    store.create_time = store.update_time = cloud.now()
    cloud.add(store)
    return finished(cloud, store.name, store, types.CreateMetadataStoreOperationMetadata())


def get_store(cloud: CloudState, request: types.GetMetadataStoreRequest, caller: Caller) -> types.MetadataStore:
    """Return a store."""
    return types.MetadataStore(cloud.find(request.name, "aiplatform.metadataStores.get"))


def create_context(cloud: CloudState, request: types.CreateContextRequest, caller: Caller) -> types.Context:
    """Create a context in a store that is there."""
    parent = cloud.resolve_name(request.parent, "aiplatform.contexts.create")
    cloud.find(parent, "aiplatform.metadataStores.get")
    context = types.Context(request.context)
    context.name = f"{parent}/contexts/{request.context_id or cloud.store.new_id()}"
    context.create_time = context.update_time = cloud.now()
    cloud.add(context)
    return context


def get_context(cloud: CloudState, request: types.GetContextRequest, caller: Caller) -> types.Context:
    """Return a context."""
    return types.Context(cloud.find(request.name, "aiplatform.contexts.get"))


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
    for child in request.child_contexts:
        child_name = cloud.find(child, "aiplatform.contexts.get").name

        def change(context: Any) -> None:
            if name not in context.parent_contexts:
                context.parent_contexts.append(name)

        cloud.store.update(child_name, change)
    return types.AddContextChildrenResponse()


def create_artifact(cloud: CloudState, request: types.CreateArtifactRequest, caller: Caller) -> types.Artifact:
    """Create an artifact in a store that is there."""
    parent = cloud.find(request.parent, "aiplatform.artifacts.create").name
    artifact = types.Artifact(request.artifact)
    artifact.name = f"{parent}/artifacts/{request.artifact_id or cloud.store.new_id()}"
    artifact.create_time = artifact.update_time = cloud.now()
    cloud.add(artifact)
    return artifact


def get_artifact(cloud: CloudState, request: types.GetArtifactRequest, caller: Caller) -> types.Artifact:
    """Return an artifact."""
    return types.Artifact(cloud.find(request.name, "aiplatform.artifacts.get"))


def add_to_context(
    cloud: CloudState, request: types.AddContextArtifactsAndExecutionsRequest, caller: Caller
) -> types.AddContextArtifactsAndExecutionsResponse:
    """Put artifacts into a context."""
    context = cloud.find(request.context, "aiplatform.contexts.addContextArtifactsAndExecutions").name
    place, _, name = context.partition("/contexts/")
    asked = types.AddContextArtifactsAndExecutionsRequest(context=context)
    for artifact in request.artifacts:
        asked.artifacts.append(cloud.find(artifact, "aiplatform.artifacts.get").name)
    cloud.store.add(f"{place}/memberships/{name}/{cloud.store.new_id()}", asked)
    return types.AddContextArtifactsAndExecutionsResponse()


def list_artifacts(
    cloud: CloudState, request: types.ListArtifactsRequest, caller: Caller
) -> types.ListArtifactsResponse:
    """List artifacts, the newest first."""
    place = cloud.find(request.parent, "aiplatform.artifacts.list").name
    contexts: dict[str, set[str]] = {}
    for given in cloud.store.list(f"{place}/memberships/", types.AddContextArtifactsAndExecutionsRequest):
        for name in given.artifacts:
            contexts.setdefault(name, set()).add(given.context)
    found = select(
        cloud.store.list(f"{place}/artifacts/", types.Artifact),
        types.Artifact,
        filter=request.filter,
        order_by=request.order_by,
        contexts_of=lambda item: contexts.get(item.name, set()),
    )
    chosen, token = page(found, request.page_size, request.page_token)
    return types.ListArtifactsResponse(artifacts=chosen, next_page_token=token)


def get_execution(cloud: CloudState, request: types.GetExecutionRequest, caller: Caller) -> types.Execution:
    """Say that there is no such execution: none is kept here, and the SDK asks before it makes a row."""
    raise not_found(request.name)


def list_executions(
    cloud: CloudState, request: types.ListExecutionsRequest, caller: Caller
) -> types.ListExecutionsResponse:
    """List none."""
    return types.ListExecutionsResponse()


def add_run(cloud: CloudState, parent: str, job_id: str, pipeline: str) -> tuple[types.Context, types.Context]:
    """Make the contexts of a pipeline and of one of its runs; return (pipeline's, run's)."""
    place = f"{parent}/metadataStores/default"
    if cloud.store.find(place) is None:
        cloud.store.add(place, types.MetadataStore(name=place, create_time=cloud.now()))
    made: list[types.Context] = []
    for context_id, schema in ((pipeline, "system.Pipeline"), (job_id, "system.PipelineRun")):
        context = types.Context(
            name=f"{place}/contexts/{context_id}",
            display_name=context_id,
            schema_title=schema,
            schema_version=_VERSION,
            create_time=cloud.now(),
            update_time=cloud.now(),
        )
        if schema == "system.PipelineRun" and context_id != pipeline:
            context.parent_contexts = [made[0].name]
        if cloud.store.find(context.name) is None:
            cloud.store.add(context.name, context)
        made.append(context)
    return made[0], made[1]


METHODS = {
    "CreateMetadataStore": create_store,
    "GetMetadataStore": get_store,
    "CreateContext": create_context,
    "GetContext": get_context,
    "ListContexts": list_contexts,
    "UpdateContext": update_context,
    "AddContextChildren": add_children,
    "CreateArtifact": create_artifact,
    "GetArtifact": get_artifact,
    "ListArtifacts": list_artifacts,
    "AddContextArtifactsAndExecutions": add_to_context,
    "GetExecution": get_execution,
    "ListExecutions": list_executions,
}
