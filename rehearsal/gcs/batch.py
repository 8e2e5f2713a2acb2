"""Batches: up to 100 small JSON API requests as the parts of one multipart/mixed body.

https://cloud.google.com/storage/docs/batch. Uploads and downloads are refused in a batch, as there.
"""

from __future__ import annotations

import io
import re
import uuid
from collections.abc import Callable
from http import HTTPStatus

from rehearsal.doors.http_messages import Request, Response, parse_target
from rehearsal.gcs.messages import ApiError

# The documentation says 100; google-cloud-storage sends up to 1,000 and Cloud Storage is known to take them.
MAX_PARTS = 1000


def split_batch(request: Request) -> list[tuple[str, Request]]:
    """Return the Content-ID and the request of each part."""
    match = re.search(r'boundary="?([^";]+)"?', request.headers.get("content-type", ""))
    if match is None:
        raise ApiError(400, "Missing boundary in a batch request")
    try:
        text = request.body.read().decode().replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise ApiError(400, "Failed to parse batch request") from None
    pieces = text.split(f"--{match[1]}")
    parts = [_parse_part(piece.lstrip("\n"), request.endpoint) for piece in pieces[1:] if not piece.startswith("--")]
    if not 1 <= len(parts) <= MAX_PARTS:
        raise ApiError(400, f"A batch holds 1 to {MAX_PARTS} requests, this one {len(parts)}")
    return parts


def _parse_part(text: str, endpoint: str) -> tuple[str, Request]:
    outer, _, inner = text.partition("\n\n")
    head, _, body = inner.partition("\n\n")
    line, _, header_text = head.partition("\n")
    words = line.split()
    if len(words) < 2:
        raise ApiError(400, "Failed to parse batch request")
    path, query, _ = parse_target(words[1])
    headers = _headers(header_text)
    length = headers.get("content-length")
    content = body.encode()[: int(length)] if length and length.isdigit() else body.encode()
    part = Request(words[0], path, query, headers, io.BytesIO(content), endpoint)
    return _headers(outer).get("content-id", ""), part


def _headers(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found[name.strip().lower()] = value.strip()
    return found


def answer_batch(request: Request, run: Callable[[Request], Response]) -> Response:
    """Run the parts of a batch one after the other; each has its own status, the batch itself 200."""
    boundary = f"batch_{uuid.uuid4().hex}"
    lines: list[bytes] = []
    for content_id, part in split_batch(request):
        answer = run(part)
        assert isinstance(answer.body, bytes), "downloads are refused in a batch"
        identity = content_id.strip("<>")
        reason = HTTPStatus(answer.status).phrase
        head = [
            f"--{boundary}",
            "Content-Type: application/http",
            f"Content-ID: <response-{identity}>",
            "",
            f"HTTP/1.1 {answer.status} {reason}",
            *(f"{name}: {value}" for name, value in answer.headers.items()),
            f"Content-Length: {len(answer.body)}",
            "",
            "",
        ]
        lines.append("\r\n".join(head).encode() + answer.body + b"\r\n")
    lines.append(f"--{boundary}--\r\n".encode())
    return Response(200, {"Content-Type": f"multipart/mixed; boundary={boundary}"}, b"".join(lines))
