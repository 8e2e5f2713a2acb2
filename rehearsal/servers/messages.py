"""Conversion of messages to bytes and JSON, for both proto-plus and plain protobuf types."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from rehearsal.errors import ServiceError


def plain(message: Any) -> Any:
    """Return the protobuf message inside a proto-plus one; plain messages unchanged."""
    kind = type(message)
    return kind.pb(message) if hasattr(kind, "pb") else message


def serialize(message: Any) -> bytes:
    """Return a message's bytes."""
    return bytes(plain(message).SerializeToString())


def deserialize(kind: Any, data: bytes) -> Any:
    """Parse a message of type `kind`; ServiceError INVALID_ARGUMENT for invalid bytes."""
    try:
        return kind.deserialize(data) if hasattr(kind, "deserialize") else kind.FromString(data)
    except DecodeError:
        raise ServiceError("INVALID_ARGUMENT", "The request holds no message of this method.") from None


def to_dict(message: Any) -> dict[str, Any]:
    """Return a message as JSON of the REST API: camelCase names, enums by name, 64-bit integers as text."""
    return dict(json_format.MessageToDict(plain(message), use_integers_for_enums=False))


def from_dict(kind: Any, values: dict[str, Any]) -> Any:
    """Return a message of type `kind`; ServiceError INVALID_ARGUMENT for an unknown name or an invalid value."""
    message = kind()
    try:
        json_format.ParseDict(values, plain(message))
    except json_format.ParseError as error:
        raise ServiceError("INVALID_ARGUMENT", f"Invalid JSON payload received. {error}") from None
    return message
