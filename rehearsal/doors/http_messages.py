"""HTTP requests and responses, as the sites behind the HTTP server see them: bodies are streams, both ways."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol
from urllib.parse import parse_qs, parse_qsl, urlsplit

from rehearsal.doors.access import find_host
from rehearsal.doors.caller import Caller
from rehearsal.doors.errors import ServiceError

_BLOCK_BYTES = 1 << 20


class Body(Protocol):
    """The bytes that a request brings, readable once."""

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, all that is left when it is negative, b"" at the end."""


@dataclass
class Request:
    """One request."""

    method: str
    path: str
    """Percent-encoded, without the query."""
    query: dict[str, str]
    """The last value of each name."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Body = field(default_factory=io.BytesIO)
    endpoint: str = ""
    """The address under which the client sees the server."""
    values: dict[str, list[str]] = field(default_factory=dict)
    """All values of the query."""
    is_there: Callable[[], bool] = lambda: True
    """False once nobody waits for the answer any more."""

    @property
    def host(self) -> str:
        """The name of Google's that was asked, in small letters; "" where it is this machine's own."""
        return find_host(self.headers.get("host", ""))

    @property
    def caller(self) -> Caller:
        """Who asks, as the services see it."""
        agent = " ".join(self.headers[key] for key in ("user-agent", "x-goog-api-client") if key in self.headers)
        return Caller("rest", agent, self.headers.get("host", ""), self.is_there)

    def value(self) -> Any:
        """Return the body's JSON value; None for an empty one.

        Raises:
            ServiceError: INVALID_ARGUMENT: it is no JSON.
        """
        text = self.body.read()
        if not text:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ServiceError("INVALID_ARGUMENT", f"Invalid JSON payload received. {error}") from None


@dataclass
class FileBody:
    """Part of an open file; closed by whoever sends it."""

    file: BinaryIO
    start: int
    length: int


@dataclass
class Response:
    """What goes back."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | FileBody = b""
    num_sent: int = 0
    """Bytes of the body that went out so far."""

    @property
    def length(self) -> int:
        """Number of bytes in the body."""
        return self.body.length if isinstance(self.body, FileBody) else len(self.body)

    def close(self) -> None:
        """Let go of the file behind the body."""
        if isinstance(self.body, FileBody):
            self.body.file.close()


@dataclass
class Wire:
    """How an exchange goes over the wire: what a rule of faults may change."""

    bytes_per_s: float | None = None
    """Speed limit, in both directions."""
    truncate_at: int | None = None
    """Close the connection after this many bytes of the answer's body."""
    quietly: bool = False
    """With `truncate_at`: Content-Length agrees with what is sent."""
    reset_at: int | None = None
    """Reset the connection after this many bytes of the answer's body."""
    corrupt_at: int | None = None
    """Flip a bit of this byte of the answer's body."""


class Send(Protocol):
    """How a site answers a request: once."""

    def __call__(self, response: Response, wire: Wire | None = None) -> None:
        """Send a response."""


class Site(Protocol):
    """What is behind an HTTP server."""

    def serve(self, request: Request, send: Send) -> None:
        """Answer one request; Reset ends the connection without an answer."""


def json_response(value: object, status: int = 200) -> Response:
    """Return a response with a JSON body."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(status, {"Content-Type": "application/json; charset=UTF-8"}, body)


def refusal(error: ServiceError) -> Response:
    """Return a service's error in the form of https://cloud.google.com/apis/design/errors."""
    return json_response(error.to_json(), error.http_status)


def blocks(body: Body, length: int = -1) -> Iterator[bytes]:
    """Yield a body in pieces, at most `length` bytes of it when that is not negative."""
    left = length
    while left:
        piece = body.read(_BLOCK_BYTES if left < 0 else min(left, _BLOCK_BYTES))
        if not piece:
            return
        if left > 0:
            left -= len(piece)
        yield piece


def parse_target(target: str) -> tuple[str, dict[str, str], dict[str, list[str]]]:
    """Return path (still percent-encoded), last values and all values of a request line's target, absolute or not.

    Raises:
        ServiceError: INVALID_ARGUMENT: it is no target, or the query is not UTF-8.
    """
    try:
        parts = urlsplit(target)
        last = dict(parse_qsl(parts.query, keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError:
        raise ServiceError("INVALID_ARGUMENT", "The query is not UTF-8") from None
    except ValueError:
        raise ServiceError("INVALID_ARGUMENT", "The request has no target that can be read") from None
    return parts.path, last, parse_qs(parts.query, keep_blank_values=True)
