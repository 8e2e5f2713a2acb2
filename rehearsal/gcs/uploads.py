"""Uploads of the JSON API: simple, multipart and resumable.

https://cloud.google.com/storage/docs/uploads-downloads and .../performing-resumable-uploads. A resumable session lives
in memory, its bytes on disk: after a restart the client gets 404 and starts again, as it must with a session that ran
out. Preconditions are checked when a session starts and again when it ends; Cloud Storage promises the second only.
"""

from __future__ import annotations

import io
import re
import threading
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from rehearsal.doors.http_messages import Request, Response, blocks, json_response
from rehearsal.gcs.content import Content, ContentWriter
from rehearsal.gcs.index import Record
from rehearsal.gcs.messages import ApiError, json_object, parse_object
from rehearsal.gcs.objects import Objects
from rehearsal.gcs.preconditions import Preconditions
from rehearsal.gcs.related import RelatedBody
from rehearsal.gcs.resources import object_resource, settable

# Chunks but the last are kept in multiples of this; the rest of one has to be sent again.
CHUNK_MULTIPLE = 256 << 10
# Cloud Storage keeps a session for a week. Here each holds an open file: the oldest goes when there are more.
MAX_UNDER_WAY = 256
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


@dataclass
class Session:
    """A resumable upload on its way."""

    bucket: str
    name: str
    resource: dict[str, Any]
    check: Preconditions
    writer: ContentWriter
    lock: threading.Lock = field(default_factory=threading.Lock)
    finished: Record | None = None


class Uploads:
    """The upload operations, and the sessions of the resumable ones."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._sessions: dict[str, Session] = {}

    def handle(self, bucket: str, request: Request) -> Response:
        """Answer a request to the upload address of a bucket."""
        if session_id := request.query.get("upload_id"):
            return self._resume(session_id, request)
        kind = request.query.get("uploadType")
        if kind == "media":
            return self._simple(bucket, request)
        if kind == "multipart":
            return self._multipart(bucket, request)
        if kind == "resumable":
            return self._start(bucket, request)
        raise ApiError(400, f"Upload type {kind!r} is not one of media, multipart, resumable")

    def close(self) -> None:
        """Drop what is on its way."""
        for session in self._sessions.values():
            self._discard(session)

    def _drop_oldest(self) -> None:
        """Make room for one more session: forget those that nobody goes on with, the oldest first."""
        for key, session in list(self._sessions.items())[: max(0, len(self._sessions) + 1 - MAX_UNDER_WAY)]:
            # One that is being used is not abandoned.
            if session.lock.acquire(blocking=False):
                try:
                    if self._sessions.pop(key, None) is not None:
                        self._discard(session)
                finally:
                    session.lock.release()

    @staticmethod
    def _discard(session: Session) -> None:
        if session.finished is None:
            session.writer.discard()

    def _store(
        self, bucket: str, name: str, pieces: Iterable[bytes], resource: dict[str, Any], request: Request
    ) -> Response:
        """Make an object of a whole body, if its checksums are those that the client named."""
        check = Preconditions.from_query(request.query)
        self._objects.check_upload(bucket, name, check)
        content = self._objects.contents.write(pieces)
        record = self._commit(bucket, name, content, resource, check, request.headers)
        return json_response(object_resource(record, request.endpoint))

    def _commit(
        self,
        bucket: str,
        name: str,
        content: Content,
        resource: dict[str, Any],
        check: Preconditions,
        headers: Mapping[str, str],
    ) -> Record:
        try:
            _check_hashes(content, resource, headers)
        except ApiError:
            self._objects.contents.remove(content.id)
            raise
        return self._objects.commit(bucket, name, content, settable(resource), check)

    def _simple(self, bucket: str, request: Request) -> Response:
        resource: dict[str, Any] = {"contentType": request.headers.get("content-type", "application/octet-stream")}
        if encoding := request.query.get("contentEncoding"):
            resource["contentEncoding"] = encoding
        return self._store(bucket, _name_of(request, {}), blocks(request.body), resource, request)

    def _multipart(self, bucket: str, request: Request) -> Response:
        related = request.body if isinstance(request.body, RelatedBody) else RelatedBody(request)
        resource = {"contentType": related.content_type} | related.resource
        return self._store(bucket, _name_of(request, resource), blocks(related), resource, request)

    # --- resumable ---

    def _start(self, bucket: str, request: Request) -> Response:
        resource = json_object(request)
        if content_type := request.headers.get("x-upload-content-type"):
            resource.setdefault("contentType", content_type)
        name, check = _name_of(request, resource), Preconditions.from_query(request.query)
        self._objects.check_upload(bucket, name, check)
        session_id = uuid.uuid4().hex
        self._drop_oldest()
        self._sessions[session_id] = Session(bucket, name, resource, check, self._objects.contents.writer())
        query = urlencode({**request.query, "name": name, "upload_id": session_id})
        location = f"{request.endpoint}{request.path}?{query}"
        return Response(200, {"Location": location, "X-GUploader-UploadID": session_id})

    def _resume(self, session_id: str, request: Request) -> Response:
        session = self._sessions.get(session_id)
        if session is None:
            raise ApiError(404, "No such upload session")
        with session.lock:
            if self._sessions.get(session_id) is not session:
                raise ApiError(404, "No such upload session")  # cancelled or refused meanwhile
            if request.method == "DELETE":
                self._sessions.pop(session_id, None)
                self._discard(session)
                # What the documentation of cancelling promises; no standard status.
                return Response(499)
            if session.finished is not None:
                return json_response(object_resource(session.finished, request.endpoint))
            return self._take_chunk(session_id, session, request)

    def _take_chunk(self, session_id: str, session: Session, request: Request) -> Response:
        start, end, total = _content_range(request.headers)
        writer = session.writer
        if end is None:
            # The whole object in one request, or the question how much is there (an empty body with a range of *).
            if "content-range" not in request.headers:
                total = _append(writer, request, None)
        elif start <= writer.size:
            for _ in blocks(request.body, writer.size - start):
                pass  # these bytes are there already
            is_last = total is not None and end + 1 == total
            _append(writer, request, end + 1 if is_last else (end + 1) // CHUNK_MULTIPLE * CHUNK_MULTIPLE)
        if total is None or writer.size < total:
            headers = {"Range": f"bytes=0-{writer.size - 1}"} if writer.size else {}
            return Response(308, headers)
        if writer.size > total:
            raise ApiError(400, f"The upload holds {writer.size} bytes, its range says {total}")
        content = writer.finish()
        # What is refused is removed. The session's own stays for the client who sends the last chunk again after 429.
        attempt = replace(content, id=self._objects.contents.duplicate(content.id))
        try:
            session.finished = self._commit(
                session.bucket, session.name, attempt, session.resource, session.check, request.headers
            )
        except ApiError as error:
            if error.status != HTTPStatus.TOO_MANY_REQUESTS:
                self._sessions.pop(session_id, None)
                writer.discard()
            raise
        writer.discard()
        return json_response(object_resource(session.finished, request.endpoint))


def _append(writer: ContentWriter, request: Request, end: int | None) -> int:
    """Append the body up to the size `end` and return the size; of a body that breaks off whole multiples are kept."""
    while end is None or writer.size < end:
        wanted = CHUNK_MULTIPLE if end is None else min(CHUNK_MULTIPLE, end - writer.size)
        piece = request.body.read(wanted)
        while piece and len(piece) < wanted and (more := request.body.read(wanted - len(piece))):
            piece += more
        if not piece:
            break
        writer.write(piece)
    return writer.size


def _check_hashes(content: Content, resource: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    """Compare a content with the checksums that came with it: in its resource, x-goog-hash and Content-MD5.

    Raises:
        ApiError: 400; one of them is that of other bytes.
    """
    given = [("crc32c", resource.get("crc32c")), ("md5", resource.get("md5Hash")), ("md5", headers.get("content-md5"))]
    for entry in headers.get("x-goog-hash", "").split(","):
        kind, _, value = entry.strip().partition("=")
        given.append((kind, value))
    for kind, expected in given:
        found = {"crc32c": content.crc32c, "md5": content.md5}.get(kind)
        if expected and found is not None and expected != found:
            text = f"Provided {kind.upper()} hash {expected!r} doesn't match calculated {kind.upper()} hash {found!r}."
            raise ApiError(400, text)


def peek_name(request: Request) -> str:
    """Return the object that an upload is about; it may stand in the body, whose media stays readable.

    Raises:
        ApiError: 400; the body is of another form.
    """
    if name := request.query.get("name"):
        return name
    if "upload_id" in request.query:
        return ""
    if request.query.get("uploadType") == "multipart":
        related = request.body = RelatedBody(request)
        return str(related.resource.get("name", ""))
    body = request.body.read()
    request.body = io.BytesIO(body)
    return str(parse_object(body).get("name", "")) if body.strip() else ""


def _name_of(request: Request, resource: Mapping[str, Any]) -> str:
    name = request.query.get("name") or resource.get("name")
    if not isinstance(name, str) or not name:
        raise ApiError(400, "Required", reason="required")
    return name


def _content_range(headers: Mapping[str, str]) -> tuple[int, int | None, int | None]:
    """Return first byte, last byte and size of the whole; None for what is not said."""
    text = headers.get("content-range")
    if text is None:
        return 0, None, None
    match = _CONTENT_RANGE.fullmatch(text.strip())
    if match is None:
        raise ApiError(400, f"Invalid Content-Range: {text!r}")
    first, last, total = match.groups()
    return int(first or 0), None if last is None else int(last), None if total == "*" else int(total)
