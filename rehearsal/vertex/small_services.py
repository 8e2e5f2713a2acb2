"""Small services that clients ask beside the jobs: operations, the project, the metadata of experiments.

Every operation has ended when it is first shown (https://google.aip.dev/151): launchers poll others every 20 s. Of
MetadataService there is what the SDK's experiments need: the default store, contexts, and artifacts in them.
"""

from __future__ import annotations

import contextlib
from typing import Any

from google.cloud.aiplatform_v1 import types
from google.cloud.resourcemanager_v3 import types as project_types
from google.longrunning import operations_pb2
from google.protobuf.field_mask_pb2 import FieldMask

from rehearsal.errors import ServiceError, invalid_argument, not_found
from rehearsal.servers.messages import plain
from rehearsal.vertex.listing import getter, list_page, lister
from rehearsal.vertex.state import Caller, CloudState

_STORE = "/metadataStores/default"


def finish_operation(cloud: CloudState, resource: str, response: Any, metadata: Any) -> operations_pb2.Operation:
    """Store and return an operation on a resource that has ended with a response."""
    place = "/".join(resource.split("/")[:4])
    operation = operations_pb2.Operation(name=f"{place}/operations/{cloud.store.new_id()}", done=True)
    operation.response.Pack(plain(response))
    operation.metadata.Pack(plain(metadata))
    cloud.store.add(operation.name, operation)
    return operation


def get_operation(
    cloud: CloudState, request: operations_pb2.GetOperationRequest, caller: Caller
) -> operations_pb2.Operation:
    """Return an operation."""
    operation: operations_pb2.Operation = cloud.find(request.name, "aiplatform.operations.get")
    return operation


def get_project(cloud: CloudState, request: project_types.GetProjectRequest, caller: Caller) -> project_types.Project:
    """Return a project by its id or number: the SDK compares its number with that of the staging bucket."""
    wanted = request.name.removeprefix("projects/")
    for project_id, number in cloud.projects.items():
        if wanted in (project_id, number):
            state = project_types.Project.State.ACTIVE
            return project_types.Project(
                name=f"projects/{number}", project_id=project_id, display_name=project_id, state=state
            )
    raise ServiceError(
        "PERMISSION_DENIED",
        f"The caller does not have permission resourcemanager.projects.get on {request.name} (or it may not exist)",
    )


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


def update_context(cloud: CloudState, request: types.UpdateContextRequest, caller: Caller) -> types.Context:
    """Change a context's description, labels or metadata."""
    name = cloud.find(request.context.name, "aiplatform.contexts.get").name
    paths = list(request.update_mask.paths) or ["description", "labels", "metadata", "display_name"]

    def change(context: Any) -> None:
        merge(paths, plain(request.context), plain(context), "update_mask")
        context.update_time = cloud.now()

    return types.Context(cloud.store.update(name, change))


def merge(paths: list[str], source: Any, target: Any, field: str) -> None:
    """Copy the fields of a mask; ServiceError INVALID_ARGUMENT with the mask's own field for one that there is not."""
    try:
        FieldMask(paths=paths).MergeMessage(source, target, True, True)
    except (KeyError, ValueError):
        raise invalid_argument(field, f"not all of {', '.join(paths)} are fields that can be masked") from None


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
    cloud.store.add(f"{context.partition('/contexts/')[0]}/additions/{cloud.store.new_id()}", addition)
    return types.AddContextArtifactsAndExecutionsResponse()


def list_artifacts(
    cloud: CloudState, request: types.ListArtifactsRequest, caller: Caller
) -> types.ListArtifactsResponse:
    """List artifacts, the newest first."""
    store = cloud.resolve_name(request.parent, "aiplatform.artifacts.list")
    additions = list(cloud.store.list(f"{store}/additions/", types.AddContextArtifactsAndExecutionsRequest))

    def contexts_of(name: str) -> set[str]:
        return {addition.context for addition in additions if name in addition.artifacts}

    artifacts, token = list_page(cloud, request, types.Artifact, "artifacts", contexts_of=contexts_of)
    return types.ListArtifactsResponse(artifacts=artifacts, next_page_token=token)


def get_execution(cloud: CloudState, request: types.GetExecutionRequest, caller: Caller) -> types.Execution:
    """Raise NOT_FOUND: the SDK asks for one before it creates a run of an experiment."""
    raise not_found(request.name)


def list_executions(
    cloud: CloudState, request: types.ListExecutionsRequest, caller: Caller
) -> types.ListExecutionsResponse:
    """List none."""
    return types.ListExecutionsResponse()


def make_run_contexts(
    cloud: CloudState, parent: str, job_id: str, pipeline: str
) -> tuple[types.Context, types.Context]:
    """Create the contexts that Vertex AI creates for each pipeline job; return (the pipeline's, the run's)."""
    contexts: list[types.Context] = []
    for context_id, schema in ((pipeline, "system.Pipeline"), (job_id, "system.PipelineRun")):
        context = types.Context(
            name=f"{parent}{_STORE}/contexts/{context_id}",
            display_name=context_id,
            schema_title=schema,
            schema_version="0.0.1",
            create_time=cloud.now(),
            update_time=cloud.now(),
            parent_contexts=[context.name for context in contexts],
        )
        # The pipeline's is there from the second run on.
        with contextlib.suppress(KeyError):
            cloud.store.add(context.name, context)
        contexts.append(context)
    return contexts[0], contexts[1]


OPERATIONS = {"GetOperation": get_operation}
PROJECTS = {"GetProject": get_project}
METADATA = {
    "GetMetadataStore": get_store,
    "CreateContext": create_context,
    "GetContext": getter(types.Context, "contexts"),
    "ListContexts": lister(types.Context, "contexts", types.ListContextsResponse, "contexts"),
    "UpdateContext": update_context,
    "AddContextChildren": add_children,
    "CreateArtifact": create_artifact,
    "GetArtifact": getter(types.Artifact, "artifacts"),
    "ListArtifacts": list_artifacts,
    "AddContextArtifactsAndExecutions": add_artifacts,
    "GetExecution": get_execution,
    "ListExecutions": list_executions,
}
