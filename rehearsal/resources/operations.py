"""Long-running operations: every one of ours has ended when it is first shown.

https://google.aip.dev/151. GCPC's launchers poll an operation that has not ended every 20 s.
"""

from __future__ import annotations

from typing import Any

from google.cloud.aiplatform_v1.types import DeleteOperationMetadata
from google.longrunning import operations_pb2
from google.protobuf.empty_pb2 import Empty

from rehearsal.doors.errors import ServiceError
from rehearsal.doors.messages import plain
from rehearsal.resources.cloud_state import Caller, CloudState
from rehearsal.resources.states import has_ended


def finished(cloud: CloudState, resource: str, response: Any, metadata: Any) -> operations_pb2.Operation:
    """Store and return an operation on a resource that has ended with this response.

    It is named below the resource's place, not below the resource: a list of resources holds nothing else.
    """
    place = "/".join(resource.split("/")[:4])
    operation = operations_pb2.Operation(name=f"{place}/operations/{cloud.store.new_id()}", done=True)
    operation.response.Pack(plain(response))
    operation.metadata.Pack(plain(metadata))
    cloud.store.add(operation.name, operation)
    return operation


def delete_ended(cloud: CloudState, job: Any) -> operations_pb2.Operation:
    """Delete a job, which has ended; FAILED_PRECONDITION where it has not."""
    if not has_ended(job):
        raise ServiceError("FAILED_PRECONDITION", f"{job.name} is {job.state.name}: cancel it before it is deleted")
    cloud.store.remove(job.name)
    return finished(cloud, job.name, Empty(), DeleteOperationMetadata())


def get(cloud: CloudState, request: operations_pb2.GetOperationRequest, caller: Caller) -> operations_pb2.Operation:
    """Return an operation."""
    found: operations_pb2.Operation = cloud.find(request.name, "aiplatform.operations.get")
    return found


def wait(cloud: CloudState, request: operations_pb2.WaitOperationRequest, caller: Caller) -> operations_pb2.Operation:
    """Return an operation: it has ended."""
    return get(cloud, operations_pb2.GetOperationRequest(name=request.name), caller)


def cancel(cloud: CloudState, request: operations_pb2.CancelOperationRequest, caller: Caller) -> Empty:
    """Change nothing: it has ended."""
    get(cloud, operations_pb2.GetOperationRequest(name=request.name), caller)
    return Empty()


METHODS = {"GetOperation": get, "WaitOperation": wait, "CancelOperation": cancel}
