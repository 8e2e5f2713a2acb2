"""What a request and a response are, between the sockets (server) and the operations (api, xml_api)."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, BinaryIO, Protocol
from urllib.parse import parse_qsl, urlsplit

_BLOCK_BYTES = 1 << 20


class ApiError(Exception):
    """A request that ends in an error response.

    Args:
        status: HTTP status.
        message: What was wrong, for people.
        reason: Google's short name of the error, as in
            https://cloud.google.com/storage/docs/json_api/v1/status-codes
        code: The XML API's name of it, https://cloud.google.com/storage/docs/xml-api/reference-status
    """

    def __init__(self, status: int, message: str, *, reason: str = "", code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason or _REASONS.get(status, "invalid")
        self.code = code or _XML_CODES.get(status, "InvalidArgument")


_REASONS = {
    400: "invalid",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    409: "conflict",
    410: "gone",
    412: "conditionNotMet",
    416: "requestedRangeNotSatisfiable",
    429: "rateLimitExceeded",
    500: "internalError",
    501: "notImplemented",
    503: "backendError",
}
_XML_CODES = {
    401: "AuthenticationRequired",
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "BucketAlreadyOwnedByYou",
    412: "PreconditionFailed",
    416: "InvalidRange",
    429: "SlowDown",
    500: "InternalError",
    501: "NotImplemented",
    503: "ServiceUnavailable",
}


class Body(Protocol):
    """The bytes that a request brings, readable once."""

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, all that is left when it is negative, b"" at the end."""


@dataclass
class Request:
    """One request, or one part of a batch."""

    method: str
    path: str
    """Percent-encoded, without the query."""
    query: dict[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Body = field(default_factory=io.BytesIO)
    endpoint: str = ""
    """The address under which the client sees the server."""

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object; an empty body is an empty object."""
        text = self.body.read()
        if not text.strip():
            return {}
        return parse_object(text)

    def integer(self, name: str) -> int | None:
        """Return a whole number of the query, None when it is absent."""
        text = self.query.get(name)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            raise ApiError(400, f"Invalid value for {name}: {text!r}") from None


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

    @property
    def length(self) -> int:
        """Number of bytes in the body."""
        return self.body.length if isinstance(self.body, FileBody) else len(self.body)

    def close(self) -> None:
        """Let go of the file behind the body."""
        if isinstance(self.body, FileBody):
            self.body.file.close()


def parse_object(text: bytes) -> dict[str, Any]:
    """Return a JSON object; ApiError 400 when it is none, or holds half a character (a lone surrogate)."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise ApiError(400, "Parse Error", reason="parseError") from None
    if not isinstance(value, dict):
        raise ApiError(400, "Parse Error", reason="parseError")
    return value


def json_response(value: object, status: int = 200) -> Response:
    """Return a response with a JSON body."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(status, {"Content-Type": "application/json; charset=UTF-8"}, body)


def xml_response(text: str, status: int = 200) -> Response:
    """Return a response with an XML body."""
    body = f"<?xml version='1.0' encoding='UTF-8'?>{text}".encode()
    return Response(status, {"Content-Type": "application/xml; charset=UTF-8"}, body)


def error_response(error: ApiError, *, xml: bool) -> Response:
    """Return the error in the dialect of the request."""
    if error.status == HTTPStatus.NOT_MODIFIED:
        return Response(304)
    text = str(error)
    if xml:
        escaped = text.replace("&", "&amp;").replace("<", "&lt;")
        return xml_response(
            f"<Error><Code>{error.code}</Code><Message>{escaped}</Message><Details>{escaped}</Details></Error>",
            error.status,
        )
    entry = {"message": text, "domain": "global", "reason": error.reason}
    if error.status == HTTPStatus.PRECONDITION_FAILED:
        entry |= {"locationType": "header", "location": "If-Match"}
    return json_response({"error": {"code": error.status, "message": text, "errors": [entry]}}, error.status)


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
    parts = urlsplit(target)
    try:
        query = dict(parse_qsl(parts.query, keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError:
        raise ApiError(400, "The query is not UTF-8") from None
    return parts.path, query
