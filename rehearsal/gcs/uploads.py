"""Uploads of the JSON API: simple, multipart and resumable.

https://cloud.google.com/storage/docs/uploads-downloads and .../performing-resumable-uploads. Sessions of resumable
uploads are in memory, their bytes on disk. After a restart, clients get 404 and start again, as for expired sessions.
Preconditions are checked at the start and the end of a session; Cloud Storage guarantees only the latter.
"""

from __future__ import annotations

import io
import json
import re
import threading
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from rehearsal.errors import StorageError
from rehearsal.gcs.content import Checksums, StagedFile
from rehearsal.gcs.objects import Objects, Preconditions, Record
from rehearsal.servers.http import Request, Response, blocks, json_response

# All chunks but the last are stored in multiples of this; clients send the remainder again.
CHUNK_MULTIPLE = 256 << 10
# Fields that clients may set in an upload.
SETTABLE = (
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "contentType",
    "customTime",
    "metadata",
    "storageClass",
)
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


@dataclass
class Session:
    """A resumable upload under way."""

    bucket: str
    name: str
    resource: dict[str, Any]
    check: Preconditions
    staged: StagedFile
    lock: threading.Lock = field(default_factory=threading.Lock)
    finished: Record | None = None


class Uploads:
    """The upload operations, and the sessions of the resumable ones."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._sessions: dict[str, Session] = {}

    def handle(self, request: Request, bucket: str) -> Response:
        """Answer a request to the upload address of a bucket."""
        if session_id := request.query.get("upload_id"):
            return self._resume(session_id, request)
        kind = request.query.get("uploadType")
        if kind == "media":
            resource = {"contentType": request.headers.get("content-type", "application/octet-stream")}
            if encoding := request.query.get("contentEncoding"):
                resource["contentEncoding"] = encoding
            return self._store(bucket, blocks(request.body), resource, request)
        if kind == "multipart":
            resource, content_type, media = _split_related(request)
            return self._store(bucket, [media], {"contentType": content_type} | resource, request)
        if kind == "resumable":
            return self._start(bucket, request)
        raise StorageError(400, f"Upload type {kind!r} is not one of media, multipart, resumable")

    def close(self) -> None:
        """Discard the uploads under way."""
        for session in self._sessions.values():
            session.staged.discard()

    def _store(self, bucket: str, pieces: Iterable[bytes], resource: dict[str, Any], request: Request) -> Response:
        name, check = _name_of(request, resource), Preconditions.from_query(request.query)
        self._objects.check_upload(bucket, name, check)
        verify = partial(_check_hashes, resource, request.headers)
        record = self._objects.write(bucket, name, pieces, _settable(resource), check, verify)
        return json_response(record.resource(request.endpoint))

    # --- resumable ---

    def _start(self, bucket: str, request: Request) -> Response:
        resource = json_object(request)
        if content_type := request.headers.get("x-upload-content-type"):
            resource.setdefault("contentType", content_type)
        name, check = _name_of(request, resource), Preconditions.from_query(request.query)
        self._objects.check_upload(bucket, name, check)
        session_id = uuid.uuid4().hex
        self._sessions[session_id] = Session(bucket, name, resource, check, self._objects.stage())
        query = urlencode({**request.query, "name": name, "upload_id": session_id})
        location = f"{request.endpoint}{request.path}?{query}"
        return Response(200, {"Location": location, "X-GUploader-UploadID": session_id})

    def _end(self, session_id: str, session: Session) -> None:
        self._sessions.pop(session_id, None)
        session.staged.discard()

    def _resume(self, session_id: str, request: Request) -> Response:
        session = self._sessions.get(session_id)
        if session is None:
            raise StorageError(404, "No such upload session")
        with session.lock:
            if self._sessions.get(session_id) is not session:
                raise StorageError(404, "No such upload session")  # cancelled or refused meanwhile
            if request.method == "DELETE":
                self._end(session_id, session)
                # Documented status of a cancelled upload; not a standard one.
                return Response(499)
            if session.finished is None:
                size = self._append_chunk(session.staged, request)
                if size is not None:
                    return Response(308, {"Range": f"bytes=0-{size - 1}"} if size else {})
                session.finished = self._finish(session_id, session, request)
            return json_response(session.finished.resource(request.endpoint))

    def _append_chunk(self, staged: StagedFile, request: Request) -> int | None:
        """Append a chunk; return the size so far, None when the upload is complete."""
        start, end, total = _content_range(request.headers)
        checksums = staged.checksums
        if end is None:
            # The whole object in one request, or a status query (an empty body with a range of *).
            if "content-range" not in request.headers:
                _skip(request, checksums.size)
                _append(staged, request, None)
                total = checksums.size
        elif start <= checksums.size:
            _skip(request, checksums.size - start)
            is_last = total is not None and end + 1 == total
            _append(staged, request, end + 1 if is_last else (end + 1) // CHUNK_MULTIPLE * CHUNK_MULTIPLE)
        if total is None or checksums.size < total:
            return checksums.size
        if checksums.size > total:
            raise StorageError(400, f"The upload has {checksums.size} bytes, its range says {total}")
        return None

    def _finish(self, session_id: str, session: Session, request: Request) -> Record:
        fields = _settable(session.resource)
        try:
            _check_hashes(session.resource, request.headers, session.staged.checksums)
            return self._objects.commit(session.bucket, session.name, session.staged, fields, session.check)
        except StorageError as error:
            # After 429 the client sends the last chunk again.
            if error.status != HTTPStatus.TOO_MANY_REQUESTS:
                self._end(session_id, session)
            raise


def _skip(request: Request, count: int) -> None:
    """Skip the first bytes of the body, which were received before."""
    for _ in blocks(request.body, count):
        pass


def _append(staged: StagedFile, request: Request, end: int | None) -> None:
    """Append the body up to the size `end`; if it is incomplete, only whole multiples."""
    while end is None or staged.checksums.size < end:
        piece_bytes = CHUNK_MULTIPLE if end is None else min(CHUNK_MULTIPLE, end - staged.checksums.size)
        piece = request.body.read(piece_bytes)
        while piece and len(piece) < piece_bytes and (next_piece := request.body.read(piece_bytes - len(piece))):
            piece += next_piece
        if not piece:
            return
        staged.write(piece)


def _content_range(headers: Mapping[str, str]) -> tuple[int, int | None, int | None]:
    """Return first byte, last byte and total size; None for missing ones."""
    text = headers.get("content-range")
    if text is None:
        return 0, None, None
    match = _CONTENT_RANGE.fullmatch(text.strip())
    if match is None:
        raise StorageError(400, f"Invalid Content-Range: {text!r}")
    first, last, total = match.groups()
    return int(first or 0), None if last is None else int(last), None if total == "*" else int(total)


# --- metadata of uploads ---


def peek_name(request: Request) -> str:
    """Return an upload's object name, which may be in the body; the body stays readable.

    Raises:
        StorageError: 400: invalid body.
    """
    if name := request.query.get("name"):
        return name
    if "upload_id" in request.query:
        return ""
    body = request.body.read()
    request.body = io.BytesIO(body)
    is_related = request.query.get("uploadType") == "multipart"
    resource = _split_related(request)[0] if is_related else json_object(request)
    request.body = io.BytesIO(body)
    return str(resource.get("name", ""))


def json_object(request: Request) -> dict[str, Any]:
    """Return a request's body as a JSON object; an empty body is an empty object."""
    text = request.body.read()
    return parse_object(text) if text.strip() else {}


def parse_object(text: bytes) -> dict[str, Any]:
    """Parse a JSON object; StorageError 400 if it is invalid or has a lone surrogate."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise StorageError(400, "Parse Error", reason="parseError") from None
    if not isinstance(value, dict):
        raise StorageError(400, "Parse Error", reason="parseError")
    return value


def _settable(resource: Mapping[str, Any]) -> dict[str, Any]:
    return {key: resource[key] for key in SETTABLE if key in resource}


def _name_of(request: Request, resource: Mapping[str, Any]) -> str:
    name = request.query.get("name") or resource.get("name")
    if not isinstance(name, str) or not name:
        raise StorageError(400, "Required", reason="required")
    return name


def _check_hashes(resource: Mapping[str, Any], headers: Mapping[str, str], checksums: Checksums) -> None:
    """Verify the checksums in the resource, x-goog-hash and Content-MD5; StorageError 400 on a mismatch."""
    hashes = [("crc32c", resource.get("crc32c")), ("md5", resource.get("md5Hash")), ("md5", headers.get("content-md5"))]
    for entry in headers.get("x-goog-hash", "").split(","):
        kind, _, value = entry.strip().partition("=")
        hashes.append((kind, value))
    for kind, expected in hashes:
        actual = {"crc32c": checksums.crc32c, "md5": checksums.md5}.get(kind)
        if expected and actual is not None and expected != actual:
            text = f"Provided {kind.upper()} hash {expected!r} doesn't match calculated {kind.upper()} hash {actual!r}."
            raise StorageError(400, text)


def _split_related(request: Request) -> tuple[dict[str, Any], str, bytes]:
    """Return resource, content type and media of a multipart upload (only used for small objects).

    https://cloud.google.com/storage/docs/uploading-objects#uploading-an-object (multipart/related, RFC 2387). Like
    Cloud Storage, it accepts lines that end with LF, which gcsfs sends.
    """
    match = re.search(r'boundary="?([^";]+)"?', request.headers.get("content-type", ""))
    delimiter = b"--" + (match[1].encode() if match else b"")
    body = request.body.read()
    newline = b"\r\n" if body.partition(delimiter)[2].startswith(b"\r\n") else b"\n"
    resource_part, _, remainder = body.partition(delimiter)[2].partition(newline + delimiter)
    media_part, end, _ = remainder.rpartition(newline + delimiter + b"--")
    head, blank, media = media_part.partition(newline * 2)
    if match is None or not end or not blank:
        raise StorageError(400, "Malformed multipart body")
    text = resource_part.partition(newline * 2)[2]
    header = re.search(rb"(?im)^content-type:\s*([^\r\n]+)", head)
    content_type = header[1].decode("latin-1").strip() if header else "application/octet-stream"
    return parse_object(text) if text.strip() else {}, content_type, media
