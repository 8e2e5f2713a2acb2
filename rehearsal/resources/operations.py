"""Long-running operations: every one of ours has ended when it is first shown.

https://google.aip.dev/151. GCPC's launchers poll an operation that has not ended every 20 s.
"""

from __future__ import annotations

from typing import Any

from google.longrunning import operations_pb2
from google.protobuf.empty_pb2 import Empty

from rehearsal.doors.errors import not_found
from rehearsal.doors.messages import plain
from rehearsal.resources.world import Caller, World


def finished(world: World, resource: str, response: Any, metadata: Any) -> operations_pb2.Operation:
    """Store and return an operation on a resource that has ended with this response.

    It is named below the resource's place, not below the resource: a list of resources holds nothing else.
    """
    place = "/".join(resource.split("/")[:4])
    operation = operations_pb2.Operation(name=f"{place}/operations/{world.store.new_id()}", done=True)
    operation.response.Pack(plain(response))
    operation.metadata.Pack(plain(metadata))
    world.store.add(operation.name, operation)
    return operation


def get(world: World, request: operations_pb2.GetOperationRequest, caller: Caller) -> operations_pb2.Operation:
    """Return an operation."""
    name = world.canonical(request.name, "aiplatform.operations.get")
    found: operations_pb2.Operation | None = world.store.find(name)
    if found is None:
        raise not_found(name)
    return found


def wait(world: World, request: operations_pb2.WaitOperationRequest, caller: Caller) -> operations_pb2.Operation:
    """Return an operation: it has ended."""
    return get(world, operations_pb2.GetOperationRequest(name=request.name), caller)


def cancel(world: World, request: operations_pb2.CancelOperationRequest, caller: Caller) -> Empty:
    """Change nothing: it has ended."""
    get(world, operations_pb2.GetOperationRequest(name=request.name), caller)
    return Empty()


METHODS = {"GetOperation": get, "WaitOperation": wait, "CancelOperation": cancel}
