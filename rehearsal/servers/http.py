"""HTTP/1.1: requests and responses whose bodies are streams, and the check of the caller before any answer."""

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
# An assertion of google-auth has about 1 KiB; whoever asks for a token has none yet.
_MAX_FORM_BYTES = 64 << 10
_TOKEN_HOST, _TOKEN_PATH = TOKEN_URI.removeprefix("https://").split("/")


class Reset(Exception):
    """The connection ends here, without an answer."""


class Body(Protocol):
    """The bytes of a request, readable once."""

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
    is_connected: Callable[[], bool] = lambda: True
    """False once nobody waits for the answer any more."""

    @property
    def host(self) -> str:
        """The name of Google's that was asked, in lower case; "" for this machine's own."""
        return find_host(self.headers.get("host", ""))

    @property
    def caller(self) -> Caller:
        """The caller, as the services see it."""
        agent = " ".join(self.headers[key] for key in ("user-agent", "x-goog-api-client") if key in self.headers)
        return Caller("rest", agent, self.headers.get("host", ""), self.is_connected)

    def json(self) -> Any:
        """Return the body's JSON value, None for an empty one; ServiceError INVALID_ARGUMENT when it is no JSON."""
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
    """An answer."""

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
        """Close the file behind the body."""
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


Send = Callable[..., None]
"""Sends a response, over a Wire where one is given: once per request."""
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
    """Yield a body in pieces, at most `length` bytes of it when that is not negative."""
    left = length
    while left:
        piece = body.read(_BLOCK_BYTES if left < 0 else min(left, _BLOCK_BYTES))
        if not piece:
            return
        if left > 0:
            left -= len(piece)
        yield piece


def parse_target(target: str) -> tuple[str, dict[str, str]]:
    """Return path (still percent-encoded) and query of a request line's target, absolute or not."""
    try:
        parts = urlsplit(target)
        return parts.path, dict(parse_qsl(parts.query, keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError:
        raise ServiceError("INVALID_ARGUMENT", "The query is not UTF-8") from None
    except ValueError:
        raise ServiceError("INVALID_ARGUMENT", "The request has no target that can be read") from None


def locked(serve: Serve, access: Access, log: Callable[[Request, str], None], *, is_open: bool = False) -> Serve:
    """Return a function that answers token requests and refusals, and passes on what brings the rehearsal's token.

    `log` takes a token request or a refusal, and "OK" or the code's name. `is_open` asks nobody for a token; web pages
    are refused all the same.
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
    """The body of the request on the wire: counted, slowed down, and cut off where a rule says so."""

    def __init__(self, stream: io.BufferedIOBase, length: int | None) -> None:
        self._stream = stream
        self.left = length
        """Bytes still to come; None while a chunked body goes on."""
        self._chunk_left = 0
        self.num_read = 0
        self.bytes_per_s: float | None = None
        self.reset_at: int | None = None
        self._began = time.monotonic()

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, all that is left when it is negative."""
        if size < 0:
            return b"".join(blocks(self))
        if self.reset_at is not None:
            if self.num_read >= self.reset_at:
                raise Reset
            size = min(size, self.reset_at - self.num_read)
        if self.left is None:
            data = self._read_chunked(size)
        else:
            data = self._stream.read(min(size, self.left))
            if not data and size and self.left:
                raise ConnectionError("the client left in the middle of a body")
            self.left -= len(data)
        self.num_read += len(data)
        self.keep_pace()
        return data

    def keep_pace(self) -> None:
        """Wait until what was read so far may have come."""
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
                self.left = 0
                return b""
        data = self._stream.read(min(size, self._chunk_left))
        if not data and size:
            # An end in the middle of a chunk is not the end of the body.
            raise ConnectionError("the client left in the middle of a chunk")
        self._chunk_left -= len(data)
        if not self._chunk_left:
            self._stream.readline(8)
        return data
