"""Operations, projects, and metadata of experiments.

Operations are returned as done (https://google.aip.dev/151), since launchers poll unfinished ones every 20 s.
MetadataService has the default store and contexts, for the SDK's experiments.
"""

from __future__ import annotations

import contextlib
from typing import Any

from google.cloud.aiplatform_v1 import types
from google.cloud.resourcemanager_v3 import types as project_types
from google.longrunning import operations_pb2
from google.protobuf.field_mask_pb2 import FieldMask

from rehearsal.errors import ServiceError, not_found
from rehearsal.servers.messages import plain
from rehearsal.vertex.listing import getter, lister
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
    """Return a project by id or number: the SDK compares its number with that of the staging bucket."""
    project = request.name.removeprefix("projects/")
    for project_id, number in cloud.projects.items():
        if project in (project_id, number):
            state = project_types.Project.State.ACTIVE
            return project_types.Project(
                name=f"projects/{number}", project_id=project_id, display_name=project_id, state=state
            )
    raise ServiceError(
        "PERMISSION_DENIED",
        f"The caller does not have permission resourcemanager.projects.get on {request.name} (or it may not exist)",
    )


def get_store(cloud: CloudState, request: types.GetMetadataStoreRequest, caller: Caller) -> types.MetadataStore:
    """Return the default store, which every project has."""
    name = cloud.resolve_name(request.name, "aiplatform.metadataStores.get")
    if not name.endswith(_STORE):
        raise not_found(name)
    return types.MetadataStore(name=name)


def create_context(cloud: CloudState, request: types.CreateContextRequest, caller: Caller) -> types.Context:
    """Create a context."""
    context = types.Context(request.context)
    store = cloud.resolve_name(request.parent, "aiplatform.contexts.create")
    context.name = f"{store}/contexts/{request.context_id or cloud.store.new_id()}"
    context.create_time = context.update_time = cloud.now()
    cloud.add(context)
    return context


def update_context(cloud: CloudState, request: types.UpdateContextRequest, caller: Caller) -> types.Context:
    """Update the fields of a context in the mask; by default description, labels and metadata."""
    mask = FieldMask(paths=request.update_mask.paths or ["description", "labels", "metadata"])
    name = cloud.find(request.context.name, "aiplatform.contexts.get").name

    def change(context: Any) -> None:
        mask.MergeMessage(plain(request.context), plain(context), True, True)
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


def find_nothing(cloud: CloudState, request: Any, caller: Caller) -> Any:
    """Raise NOT_FOUND: before creating a run, the SDK looks for artifacts and executions of older releases."""
    raise not_found(request.name)


def list_executions(
    cloud: CloudState, request: types.ListExecutionsRequest, caller: Caller
) -> types.ListExecutionsResponse:
    """Return no executions."""
    return types.ListExecutionsResponse()


def make_run_contexts(
    cloud: CloudState, parent: str, job_id: str, pipeline: str
) -> tuple[types.Context, types.Context]:
    """Create the contexts of a pipeline job, as Vertex AI does; return those of the pipeline and of the run."""
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
        # The pipeline's context exists from the second run on.
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
    "GetArtifact": find_nothing,
    "GetExecution": find_nothing,
    "ListExecutions": list_executions,
}
