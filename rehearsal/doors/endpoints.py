"""Endpoints over HTTP that belong to no gRPC service: what one is asked, what it answers, and the small ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rehearsal.doors.access import find_host
from rehearsal.doors.caller import Caller
from rehearsal.doors.errors import ServiceError


@dataclass(frozen=True)
class Asked:
    """One HTTP request."""

    verb: str
    host: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes
    caller: Caller

    def json(self) -> Any:
        """Return the body's JSON value; None for an empty one.

        Raises:
            ServiceError: INVALID_ARGUMENT: it is no JSON.
        """
        if not self.body:
            return None
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise ServiceError("INVALID_ARGUMENT", f"Invalid JSON payload received. {error}") from None


@dataclass(frozen=True)
class Answer:
    """One HTTP response."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(cls, value: Any, status: int = 200) -> Answer:
        """Return an answer with a JSON body."""
        return cls(status, json.dumps(value).encode(), {"Content-Type": "application/json; charset=UTF-8"})


Endpoint = Callable[[Asked], Answer | None]


def answer_allowed_locations(asked: Asked) -> Answer | None:
    """Say that a service account may be used from everywhere; google-auth asks iamcredentials for it."""
    here = find_host(asked.host) in ("", "iamcredentials.googleapis.com")
    if not asked.path.endswith("/allowedLocations") or not here:
        return None
    return Answer.of_json({"locations": [], "encodedLocations": "0x0"})
