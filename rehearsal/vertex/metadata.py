"""MetadataService as far as runs and experiments go: stores, contexts and their children (the rest: lineage.py).

Vertex makes two contexts of every pipeline job itself, one of the pipeline and one of the run; so does `add_run`.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.metadataStores.contexts
"""

from __future__ import annotations

from typing import Any

from google.cloud.aiplatform_v1 import types
from google.protobuf.field_mask_pb2 import FieldMask

from rehearsal.doors.errors import ServiceError, not_found
from rehearsal.doors.messages import plain
from rehearsal.resources.listing import page, select
from rehearsal.resources.operations import finished
from rehearsal.resources.world import Caller, World
from rehearsal.vertex import lineage

_VERSION = "0.0.1"


def create_store(world: World, request: types.CreateMetadataStoreRequest, caller: Caller) -> Any:
    """Create a store; clients want the one named default."""
    parent = world.canonical(request.parent, "aiplatform.metadataStores.create")
    store = types.MetadataStore(request.metadata_store)
    store.name = f"{parent}/metadataStores/{request.metadata_store_id or world.store.new_id()}"
    store.create_time = store.update_time = world.now()
    _add(world, store)
    return finished(world, store.name, store, types.CreateMetadataStoreOperationMetadata())


def get_store(world: World, request: types.GetMetadataStoreRequest, caller: Caller) -> types.MetadataStore:
    """Return a store."""
    return types.MetadataStore(_find(world, request.name, "metadataStores"))


def create_context(world: World, request: types.CreateContextRequest, caller: Caller) -> types.Context:
    """Create a context in a store that is there."""
    parent = world.canonical(request.parent, "aiplatform.contexts.create")
    _find(world, parent, "metadataStores")
    context = types.Context(request.context)
    context.name = f"{parent}/contexts/{request.context_id or world.store.new_id()}"
    context.create_time = context.update_time = world.now()
    _add(world, context)
    return context


def get_context(world: World, request: types.GetContextRequest, caller: Caller) -> types.Context:
    """Return a context."""
    return types.Context(_find(world, request.name, "contexts"))


def list_contexts(world: World, request: types.ListContextsRequest, caller: Caller) -> types.ListContextsResponse:
    """List contexts, the newest first."""
    parent = world.canonical(request.parent, "aiplatform.contexts.list")
    found = select(
        world.store.list(f"{parent}/contexts/"), types.Context, filter=request.filter, order_by=request.order_by
    )
    chosen, token = page(found, request.page_size, request.page_token)
    return types.ListContextsResponse(contexts=chosen, next_page_token=token)


def update_context(world: World, request: types.UpdateContextRequest, caller: Caller) -> types.Context:
    """Change a context's description, labels or metadata."""
    name = _find(world, request.context.name, "contexts").name
    paths = list(request.update_mask.paths) or ["description", "labels", "metadata", "display_name"]

    def change(context: Any) -> None:
        FieldMask(paths=paths).MergeMessage(plain(request.context), plain(context), True, True)
        context.update_time = world.now()

    return types.Context(world.store.update(name, change))


def add_children(
    world: World, request: types.AddContextChildrenRequest, caller: Caller
) -> types.AddContextChildrenResponse:
    """Make contexts children of another: an experiment's runs are its children."""
    name = _find(world, request.context, "contexts").name
    for child in request.child_contexts:
        child_name = _find(world, child, "contexts").name

        def change(context: Any) -> None:
            if name not in context.parent_contexts:
                context.parent_contexts.append(name)

        world.store.update(child_name, change)
    return types.AddContextChildrenResponse()


def add_run(world: World, parent: str, job_id: str, pipeline: str) -> tuple[types.Context, types.Context]:
    """Make the contexts of a pipeline and of one of its runs; return (pipeline's, run's)."""
    place = f"{parent}/metadataStores/default"
    if world.store.find(place) is None:
        world.store.add(place, types.MetadataStore(name=place, create_time=world.now()))
    made: list[types.Context] = []
    for context_id, schema in ((pipeline, "system.Pipeline"), (job_id, "system.PipelineRun")):
        context = types.Context(
            name=f"{place}/contexts/{context_id}",
            display_name=context_id,
            schema_title=schema,
            schema_version=_VERSION,
            create_time=world.now(),
            update_time=world.now(),
        )
        if schema == "system.PipelineRun" and context_id != pipeline:
            context.parent_contexts = [made[0].name]
        if world.store.find(context.name) is None:
            world.store.add(context.name, context)
        made.append(context)
    return made[0], made[1]


def _add(world: World, message: Any) -> None:
    try:
        world.store.add(message.name, message)
    except KeyError:
        raise ServiceError("ALREADY_EXISTS", f"There is {message.name} already") from None


def _find(world: World, name: str, kind: str) -> Any:
    name = world.canonical(name, f"aiplatform.{kind}.get")
    found = world.store.find(name)
    if found is None:
        raise not_found(name)
    return found


METHODS = {
    "CreateMetadataStore": create_store,
    "GetMetadataStore": get_store,
    "CreateContext": create_context,
    "GetContext": get_context,
    "ListContexts": list_contexts,
    "UpdateContext": update_context,
    "AddContextChildren": add_children,
    **lineage.METHODS,
}
