"""Messages as bytes and as JSON: proto-plus types of the client libraries, and plain protobuf ones, alike."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from rehearsal.doors.errors import ServiceError


def plain(message: Any) -> Any:
    """Return the protobuf message inside a proto-plus one; another as it is."""
    kind = type(message)
    return kind.pb(message) if hasattr(kind, "pb") else message


def serialize(message: Any) -> bytes:
    """Return a message's bytes."""
    return bytes(plain(message).SerializeToString())


def deserialize(kind: Any, data: bytes) -> Any:
    """Return the message of type `kind` that the bytes hold; ServiceError INVALID_ARGUMENT where they hold none."""
    try:
        return kind.deserialize(data) if hasattr(kind, "deserialize") else kind.FromString(data)
    except DecodeError:
        raise ServiceError("INVALID_ARGUMENT", "The request holds no message of this method.") from None


def to_dict(message: Any) -> dict[str, Any]:
    """Return a message as the REST API shows it: camelCase names, enums by name, 64-bit integers as text.

    gcloud ends with a traceback on enums that are numbers; the client libraries take both.
    """
    return dict(json_format.MessageToDict(plain(message), use_integers_for_enums=False))


def from_dict(kind: Any, values: dict[str, Any]) -> Any:
    """Return a message of type `kind`; ServiceError INVALID_ARGUMENT for a name or a value that it cannot hold."""
    message = kind()
    try:
        json_format.ParseDict(values, plain(message))
    except json_format.ParseError as error:
        raise ServiceError("INVALID_ARGUMENT", f"Invalid JSON payload received. {error}") from None
    return message


def nest(kind: Any, path: str, value: Any, into: dict[str, Any]) -> None:
    """Set the field at `path` ("a.b", in either spelling) of a message of type `kind` within its JSON form.

    A query's values are text: where the field is repeated or a boolean, the text becomes that.
    """
    descriptor = plain(kind()).DESCRIPTOR
    names = path.split(".")
    for name in names[:-1]:
        field = _find(descriptor, name)
        into = into.setdefault(field.json_name if field is not None else name, {})
        descriptor = field.message_type if field is not None and field.message_type is not None else descriptor
    field = _find(descriptor, names[-1])
    key = names[-1] if field is None else field.json_name
    values = value if isinstance(value, list) else [value]
    if field is not None and field.type == FieldDescriptor.TYPE_BOOL:
        values = [{"true": True, "false": False}.get(v, v) if isinstance(v, str) else v for v in values]
    is_list = field is not None and field.is_repeated
    into[key] = values if is_list else values[-1]


def _find(descriptor: Any, name: str) -> FieldDescriptor | None:
    for field in descriptor.fields:
        if name in (field.name, field.json_name):
            return field
    return None
