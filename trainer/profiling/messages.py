"""What a probe and its ranks, and the machines that measure together, say to each other: a JSON object a message.

Nothing that comes is executed: it is of a kind below, with the fields and types of that kind, or it is refused.
"""

from __future__ import annotations

import json
from functools import cache
from multiprocessing.connection import Connection
from types import NoneType
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from contracts.artifacts import Settings
from contracts.errors import ErrorDocument
from trainer.launch import Assignment
from trainer.profiling.indicators import Counted
from trainer.profiling.measure import ComputeTime, Failed, Hello, JointRate, LoaderRate

# Traces are the largest: some megabytes each.
_MOST_BYTES = 1 << 30
Kind = TypeVar("Kind")


class NotUnderstood(ConnectionError):
    """The other side says what this version does not know: it is as good as gone."""


class Request(BaseModel):
    """Asks a rank for a measurement (service.py); only what was given is an argument of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["hello", "load", "fit", "compute", "open", "window", "close", "trace"]
    settings: Settings | None = None
    number: int = 0
    steps: int = 0

    def arguments(self) -> dict[str, Any]:
        """Return what was given beside the name."""
        return {name: getattr(self, name) for name in self.model_fields_set - {"name"}}


class Place(BaseModel):
    """What comes first over a network: which machine, and for which start and rank of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node_rank: int
    generation: int = 0
    local_rank: int = 0


class Order(BaseModel):
    """What the first machine has another do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    order: Literal["start", "kill", "why", "end"]
    assignment: Assignment | None = None
    """start: what the ranks are told."""
    local_rank: int = 0
    """why: of the rank that has ended."""
    document: ErrorDocument | None = None
    """end: why, if it failed."""


_KINDS: dict[str, type] = {
    each.__name__: each
    for each in (
        *(Request, Place, Order, Hello, LoaderRate, ComputeTime, JointRate, Counted, Failed, int, NoneType),
        ErrorDocument,
    )
}


def send(connection: Connection, message: object) -> None:
    """Send a message of one of the kinds.

    Raises:
        OSError: The other side is gone.
    """
    kind = type(message).__name__
    given = message.model_fields_set if isinstance(message, Request) else None
    value = _adapter(kind).dump_json(message, include=given)
    connection.send_bytes(b'{"kind":"%s","value":%s}' % (kind.encode(), value))


def receive(connection: Connection, *kinds: type[Kind]) -> Kind:
    """Return the next message.

    Args:
        connection: To whom it comes from.
        kinds: Of messages that may come now.

    Raises:
        NotUnderstood: What came is no message, or of another kind.
        EOFError: The other side has closed the connection.
        OSError: It is gone.
    """
    content = connection.recv_bytes(_MOST_BYTES)
    names = [each.__name__ for each in kinds]
    expected = ", ".join(names)
    try:
        document = json.loads(content)
        kind, value = document["kind"], json.dumps(document["value"])
        if kind in names:
            return cast(Kind, _adapter(kind).validate_json(value))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
        raise NotUnderstood(f"{content[:40]!r} is no message of this version ({expected}): {why}") from None
    raise NotUnderstood(f"a message of the kind {str(kind)[:40]!r} came; expected was {expected}")


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_KINDS[kind])
