"""Errors and bodies of the JSON API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from rehearsal.doors.errors import STORAGE_REASONS
from rehearsal.doors.http_messages import Request, Response, json_response


class ApiError(Exception):
    """A request that ends in an error response.

    Args:
        status: HTTP status.
        message: What was wrong, for people.
        reason: Google's short name of the error, as in
            https://cloud.google.com/storage/docs/json_api/v1/status-codes
    """

    def __init__(self, status: int, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason or STORAGE_REASONS.get(status, STORAGE_REASONS[400])


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


def json_object(request: Request) -> dict[str, Any]:
    """Return a request's body as a JSON object; an empty body is an empty object."""
    text = request.body.read()
    return parse_object(text) if text.strip() else {}


def number_in(values: Mapping[str, str], name: str) -> int | None:
    """Return a whole number of a query or of headers, None when it is absent."""
    text = values.get(name)
    try:
        return None if text is None else int(text)
    except ValueError:
        raise ApiError(400, f"Invalid value for {name}: {text!r}") from None


def error_response(error: ApiError) -> Response:
    """Return the error as a response."""
    if error.status == HTTPStatus.NOT_MODIFIED:
        return Response(304)
    text = str(error)
    entry = {"message": text, "domain": "global", "reason": error.reason}
    if error.status == HTTPStatus.PRECONDITION_FAILED:
        entry |= {"locationType": "header", "location": "If-Match"}
    return json_response({"error": {"code": error.status, "message": text, "errors": [entry]}}, error.status)
