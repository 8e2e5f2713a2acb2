"""HTTP/1.1: requests and responses with streamed bodies, and authentication of callers."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol
from urllib.parse import parse_qsl, urlsplit

from rehearsal.errors import ServiceError
from rehearsal.servers.access import TOKEN_URI, Access, Caller, check_origin, find_host

_BLOCK_BYTES = 1 << 20
# Limit for unauthenticated token requests; assertions of google-auth have about 1 KiB.
_MAX_FORM_BYTES = 64 << 10
_TOKEN_HOST, _TOKEN_PATH = TOKEN_URI.removeprefix("https://").split("/")


class Reset(Exception):
    """Ends the connection without an answer."""


class Body(Protocol):
    """The bytes of a request, readable once."""

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, all remaining ones if it is negative, b"" at the end."""


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
    """Address of the server as seen by the client."""
    is_connected: Callable[[], bool] = lambda: True
    """False once the client has disconnected."""

    @property
    def host(self) -> str:
        """The requested host of Google's, in lower case; "" for this machine's own."""
        return find_host(self.headers.get("host", ""))

    @property
    def caller(self) -> Caller:
        """The caller, for the services."""
        agent = " ".join(self.headers[key] for key in ("user-agent", "x-goog-api-client") if key in self.headers)
        return Caller("rest", agent, self.headers.get("host", ""), self.is_connected)

    def json(self) -> Any:
        """Return the body's JSON value, None if it is empty; ServiceError INVALID_ARGUMENT for invalid JSON."""
        text = self.body.read()
        if not text:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ServiceError("INVALID_ARGUMENT", f"Invalid JSON payload received. {error}") from None


@dataclass
class FileBody:
    """Part of an open file; the sender closes it."""

    file: BinaryIO
    start: int
    length: int


@dataclass
class Response:
    """An answer."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | FileBody = b""
    num_sent: int = 0
    """Bytes of the body sent so far."""

    @property
    def length(self) -> int:
        """Number of bytes in the body."""
        return self.body.length if isinstance(self.body, FileBody) else len(self.body)

    def close(self) -> None:
        """Close the file behind the body."""
        if isinstance(self.body, FileBody):
            self.body.file.close()


@dataclass
class Wire:
    """Transmission of an exchange, as changed by fault rules."""

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


Send = Callable[..., None]
"""Sends a response, optionally with a Wire; called once per request."""
Serve = Callable[[Request, Send], None]
"""Answers one request; Reset ends the connection without an answer."""


def json_response(value: object, status: int = 200) -> Response:
    """Return a response with a JSON body."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(status, {"Content-Type": "application/json; charset=UTF-8"}, body)


def error_response(error: ServiceError) -> Response:
    """Return a service's error in the form of https://cloud.google.com/apis/design/errors."""
    return json_response(error.to_json(), error.http_status)


def blocks(body: Body, length: int = -1) -> Iterator[bytes]:
    """Yield a body in pieces, at most `length` bytes unless negative."""
    remaining = length
    while remaining:
        piece = body.read(_BLOCK_BYTES if remaining < 0 else min(remaining, _BLOCK_BYTES))
        if not piece:
            return
        if remaining > 0:
            remaining -= len(piece)
        yield piece


def parse_target(target: str) -> tuple[str, dict[str, str]]:
    """Return path (percent-encoded) and query of an absolute or relative request target."""
    try:
        parts = urlsplit(target)
        return parts.path, dict(parse_qsl(parts.query, keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError:
        raise ServiceError("INVALID_ARGUMENT", "The query is not UTF-8") from None
    except ValueError:
        raise ServiceError("INVALID_ARGUMENT", "The request has an invalid target") from None


def locked(serve: Serve, access: Access, log: Callable[[Request, str], None], *, is_open: bool = False) -> Serve:
    """Wrap a server with authentication: answers token requests, and refuses requests without the rehearsal's token.

    `log` receives token requests and refusals, with "OK" or the code's name. With `is_open` no token is required; web
    pages are still refused.
    """

    def answer(request: Request, send: Send) -> None:
        is_token_request = (
            request.method == "POST" and request.path == f"/{_TOKEN_PATH}" and request.host in ("", _TOKEN_HOST)
        )
        try:
            if not is_token_request and not is_open:
                access.check(request.headers)
            check_origin(request.headers)
            length = int(request.headers.get("content-length", "0"))
            if is_token_request and ("transfer-encoding" in request.headers or length > _MAX_FORM_BYTES):
                raise ServiceError("INVALID_ARGUMENT", f"A token request has at most {_MAX_FORM_BYTES} bytes.")
        except ServiceError as error:
            log(request, error.code)
            raise
        if is_token_request:
            status, value = access.exchange(request.body.read())
            log(request, "OK" if status == 200 else "INVALID_ARGUMENT")
            send(json_response(value, status))
        else:
            serve(request, send)

    return answer


class RequestBody:
    """Request body with a byte count, a speed limit and a reset position."""

    def __init__(self, stream: io.BufferedIOBase, length: int | None) -> None:
        self._stream = stream
        self.remaining = length
        """Bytes still to come; None while a chunked body goes on."""
        self._chunk_left = 0
        self.num_read = 0
        self.bytes_per_s: float | None = None
        self.reset_at: int | None = None
        self._began = time.monotonic()

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, all remaining ones if it is negative."""
        if size < 0:
            return b"".join(blocks(self))
        if self.reset_at is not None:
            if self.num_read >= self.reset_at:
                raise Reset
            size = min(size, self.reset_at - self.num_read)
        if self.remaining is None:
            data = self._read_chunked(size)
        else:
            data = self._stream.read(min(size, self.remaining))
            if not data and size and self.remaining:
                raise ConnectionError("the client left in the middle of a body")
            self.remaining -= len(data)
        self.num_read += len(data)
        self.keep_pace()
        return data

    def keep_pace(self) -> None:
        """Sleep as the speed limit requires for the bytes read so far."""
        if self.bytes_per_s is not None:
            time.sleep(max(0.0, self.num_read / self.bytes_per_s - (time.monotonic() - self._began)))

    def _read_chunked(self, size: int) -> bytes:
        if not self._chunk_left:
            line = self._stream.readline(1024)
            size_text = line.split(b";")[0].strip()
            if not re.fullmatch(rb"[0-9A-Fa-f]{1,16}", size_text):
                raise ConnectionError("no chunk starts here")
            self._chunk_left = int(size_text, 16)
            if not self._chunk_left:
                while self._stream.readline(1024).strip():
                    pass
                self.remaining = 0
                return b""
        data = self._stream.read(min(size, self._chunk_left))
        if not data and size:
            # An end in the middle of a chunk is not the end of the body.
            raise ConnectionError("the client left in the middle of a chunk")
        self._chunk_left -= len(data)
        if not self._chunk_left:
            self._stream.readline(8)
        return data
