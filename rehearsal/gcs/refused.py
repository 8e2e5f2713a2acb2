"""Features of Cloud Storage that are not here: a request that uses one is refused by its name, with 501.

https://cloud.google.com/storage/docs/json_api/v1: holds, retention, versioning, encryption keys, ETag preconditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.doors.http_messages import Request
from rehearsal.gcs.messages import ApiError

_HEADERS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "x-goog-copy-source")
_HEADERS_BEGIN = ("x-goog-encryption-", "x-goog-copy-source-encryption-", "x-goog-object-lock-")
_QUERY = ("kmsKeyName", "destinationKmsKeyName", "matchGlob", "softDeleted", "filter", "overrideUnlockedRetention")
_BUCKET_QUERY = ("ifMetagenerationMatch", "ifMetagenerationNotMatch", "enableObjectRetention")
_OBJECT_FIELDS = ("temporaryHold", "eventBasedHold", "retention", "customerEncryption", "kmsKeyName")
_BUCKET_FIELDS = (
    "versioning",
    "retentionPolicy",
    "defaultEventBasedHold",
    "encryption",
    "objectRetention",
)


def refuse_features(request: Request, operation: str) -> None:
    """Raise ApiError 501 for headers and parameters of what is not here."""
    names = [f"header {name}" for name in request.headers if name in _HEADERS or name.startswith(_HEADERS_BEGIN)]
    # Generations of buckets are not counted.
    known = _QUERY + (_BUCKET_QUERY if operation.startswith("buckets.") else ())
    _refuse([*names, *(f"parameter {name}" for name in known if name in request.query)], operation)


def refuse_object_fields(resource: Mapping[str, Any]) -> None:
    """Raise ApiError 501 for fields of an object that have an effect which is not here."""
    _refuse([f"field {name}" for name in _OBJECT_FIELDS if _is_set(resource.get(name))], "objects")


def refuse_bucket_fields(resource: Mapping[str, Any]) -> None:
    """Raise ApiError 501 for fields of a bucket that have an effect which is not here."""
    _refuse([f"field {name}" for name in _BUCKET_FIELDS if _is_set(resource.get(name))], "buckets")
    rules = (resource.get("lifecycle") or {}).get("rule", [])
    # Ages are days, and a rule is applied within another: no rehearsal lasts so long.
    if not all(isinstance(age := rule.get("condition", {}).get("age"), int) and age >= 1 for rule in rules):
        _refuse(["a rule of field lifecycle without an age of a day or more"], "buckets")


def _is_set(value: Any) -> bool:
    """Whether a field asks for something: `{"enabled": false}` does not."""
    return any(map(_is_set, value.values())) if isinstance(value, dict) else bool(value)


def _refuse(names: list[str], operation: str) -> None:
    if names:
        raise ApiError(501, f"{operation} with {', '.join(names)} is not implemented here")
