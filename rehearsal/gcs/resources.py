"""Objects and buckets as the JSON API shows them.

https://cloud.google.com/storage/docs/json_api/v1/objects#resource and .../buckets#resource; partial responses
(`fields`) follow https://cloud.google.com/storage/docs/json_api#partial-response.
"""

from __future__ import annotations

import base64
import time
from typing import Any
from urllib.parse import quote

from rehearsal.gcs.index import Bucket, Record
from rehearsal.gcs.messages import ApiError

PROJECT_NUMBER = "123456789012"
# What a client may set in an upload; the rest of a resource is the service's.
SETTABLE = (
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "contentType",
    "customTime",
    "metadata",
    "storageClass",
)


def time_text(microseconds: int) -> str:
    """Return a time in RFC 3339, in milliseconds, as Cloud Storage writes it."""
    seconds, rest = divmod(microseconds, 10**6)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest // 1000:03d}Z"


def etag(record: Record) -> str:
    """Return a text that changes with every change of the object."""
    return base64.b64encode(f"{record.generation}/{record.metageneration}".encode()).decode()


def object_resource(record: Record, endpoint: str) -> dict[str, Any]:
    """Return the resource of an object."""
    path = f"b/{quote(record.bucket, safe='')}/o/{quote(record.name, safe='')}"
    created = time_text(record.generation)
    resource: dict[str, Any] = {
        "kind": "storage#object",
        "id": f"{record.bucket}/{record.name}/{record.generation}",
        "selfLink": f"{endpoint}/storage/v1/{path}",
        "mediaLink": f"{endpoint}/download/storage/v1/{path}?generation={record.generation}&alt=media",
        "name": record.name,
        "bucket": record.bucket,
        "generation": str(record.generation),
        "metageneration": str(record.metageneration),
        "contentType": "application/octet-stream",
        "storageClass": "STANDARD",
        "size": str(record.size),
        "crc32c": record.crc32c,
        "etag": etag(record),
        "timeCreated": created,
        "updated": time_text(record.updated_us),
        "timeStorageClassUpdated": created,
    }
    if record.md5 is not None:
        resource["md5Hash"] = record.md5
    return resource | record.fields


def bucket_resource(bucket: Bucket, endpoint: str) -> dict[str, Any]:
    """Return the resource of a bucket."""
    location = str(bucket.fields.get("location", "US")).upper()
    created = time_text(bucket.created_us)
    return (
        {
            "kind": "storage#bucket",
            "id": bucket.name,
            "selfLink": f"{endpoint}/storage/v1/b/{bucket.name}",
            "projectNumber": PROJECT_NUMBER,
            "name": bucket.name,
            "timeCreated": created,
            "updated": created,
            "metageneration": "1",
            "locationType": _location_type(location),
            "storageClass": "STANDARD",
            "etag": "CAE=",
            "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "inherited"},
            "softDeletePolicy": {"retentionDurationSeconds": "0"},
        }
        | bucket.fields
        | {"location": location}
    )


def _location_type(location: str) -> str:
    """Return the kind of a location: https://cloud.google.com/storage/docs/locations."""
    if location in ("US", "EU", "ASIA"):
        return "multi-region"
    # Regions have a `-` in their names, predefined dual-regions none: NAM4, EUR4, ASIA1.
    return "region" if "-" in location else "dual-region"


def settable(resource: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a client's resource that are its to set."""
    return {key: resource[key] for key in SETTABLE if key in resource}


def select_fields(value: Any, fields: str) -> Any:
    """Return the parts of a resource that a `fields` parameter names: `items(name,size),nextPageToken`."""
    return _select(value, _parse_fields(fields))


def _parse_fields(text: str) -> dict[str, Any]:
    """Turn `a,b(c,d/e)` into {"a": {}, "b": {"c": {}, "d": {"e": {}}}}."""
    tree: dict[str, Any] = {}
    stack = [tree]
    current, name = tree, ""
    for character in text + ",":
        if character in ",()/":
            if name.strip():
                current = current.setdefault(name.strip(), {})
            name = ""
            if character == "(":
                stack.append(current)
            elif character != "/":
                if character == ")":
                    stack.pop()
                if not stack:
                    raise ApiError(400, f"Invalid field selection {text}", reason="invalidParameter")
                current = stack[-1]
        else:
            name += character
    if len(stack) != 1:
        raise ApiError(400, f"Invalid field selection {text}", reason="invalidParameter")
    return tree


def _select(value: Any, tree: dict[str, Any]) -> Any:
    if not tree or "*" in tree:
        return value
    if isinstance(value, list):
        return [_select(item, tree) for item in value]
    if isinstance(value, dict):
        return {key: _select(item, tree[key]) for key, item in value.items() if key in tree}
    return value
