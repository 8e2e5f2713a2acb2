"""Storage Control: the layout of a bucket, which gcsfs asks for over gRPC before it opens anything.

https://docs.cloud.google.com/storage/docs/reference/rpc/google.storage.control.v2#storagelayout. Buckets here are flat.
"""

from __future__ import annotations

from google.cloud.storage_control_v2 import types

from rehearsal.doors.errors import not_found
from rehearsal.resources.cloud_state import Caller, CloudState


def get(cloud: CloudState, request: types.GetStorageLayoutRequest, caller: Caller) -> types.StorageLayout:
    """Return the layout of a bucket, named projects/_/buckets/BUCKET/storageLayout."""
    bucket = request.name.removeprefix("projects/_/buckets/").removesuffix("/storageLayout")
    if not cloud.buckets.has(f"gs://{bucket}"):
        raise not_found(request.name)
    return types.StorageLayout(name=request.name, location="US", location_type="multi-region")


METHODS = {"GetStorageLayout": get}
