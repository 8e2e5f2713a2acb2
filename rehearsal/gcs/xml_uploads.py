"""Multipart uploads of the XML API: parts in any order, by any number of processes, then one object.

https://cloud.google.com/storage/docs/multipart-uploads. As there, the finished object has no MD5, preconditions have no
say, and a part below 5 MiB is refused unless it is the last.
"""

from __future__ import annotations

import base64
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from rehearsal.doors.http_messages import Request, Response, blocks
from rehearsal.gcs.content import Content, read_in_turn
from rehearsal.gcs.messages import ApiError, number_in, xml_response
from rehearsal.gcs.objects import Objects
from rehearsal.gcs.uploads import check_hashes, drop_oldest

# https://cloud.google.com/storage/quotas#requests
MIN_PART_BYTES = 5 << 20
MAX_PARTS = 10_000
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


@dataclass
class PartedUpload:
    """An upload on its way."""

    bucket: str
    name: str
    fields: dict[str, Any]
    parts: dict[int, Content] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class XmlUploads:
    """The uploads on their way, in memory; their parts are on disk."""

    def __init__(self, objects: Objects, min_part_bytes: int = MIN_PART_BYTES) -> None:
        self._objects = objects
        self._min_part_bytes = min_part_bytes
        self._uploads: dict[str, PartedUpload] = {}

    def handle(self, bucket: str, name: str, request: Request) -> Response:
        """Answer a request with ?uploads or ?uploadId."""
        if "uploads" in request.query:
            if request.method != "POST":
                raise ApiError(501, "listing multipart uploads is not implemented here")
            return self._start(bucket, name, request)
        upload_id = request.query["uploadId"]
        upload = self._uploads.get(upload_id)
        if upload is None or (upload.bucket, upload.name) != (bucket, name):
            raise ApiError(404, "The requested upload was not found.", code="NoSuchUpload")
        if request.method == "PUT":
            return self._take_part(upload_id, upload, request)
        with upload.lock:
            self._check_there(upload_id, upload)
            if request.method == "POST":
                return self._complete(upload_id, upload, request)
            if request.method == "DELETE":
                self._uploads.pop(upload_id, None)
                self._drop(upload)
                return Response(204)
        raise ApiError(501, f"{request.method} of a multipart upload is not implemented here")

    def close(self) -> None:
        """Drop what is on its way."""
        for upload in self._uploads.values():
            self._drop(upload)

    def _drop(self, upload: PartedUpload) -> None:
        for part in upload.parts.values():
            self._objects.contents.remove(part.id)

    def _start(self, bucket: str, name: str, request: Request) -> Response:
        self._objects.bucket(bucket)
        upload_id = uuid.uuid4().hex
        drop_oldest(self._uploads, self._drop)
        self._uploads[upload_id] = PartedUpload(bucket, name, object_fields(request.headers))
        return xml_response(
            f'<InitiateMultipartUploadResult xmlns="{_NAMESPACE}"><Bucket>{escape(bucket)}</Bucket>'
            f"<Key>{escape(name)}</Key><UploadId>{upload_id}</UploadId></InitiateMultipartUploadResult>"
        )

    def _check_there(self, upload_id: str, upload: PartedUpload) -> None:
        """Raise ApiError 404 when an upload was completed or aborted meanwhile."""
        if self._uploads.get(upload_id) is not upload:
            raise ApiError(404, "The requested upload was not found.", code="NoSuchUpload")

    def _take_part(self, upload_id: str, upload: PartedUpload, request: Request) -> Response:
        number = number_in(request.query, "partNumber")
        if number is None or not 1 <= number <= MAX_PARTS:
            raise ApiError(400, f"Part number must be an integer between 1 and {MAX_PARTS}.")
        # Read before the lock is taken: parts come at the same time.
        content = self._objects.contents.write(blocks(request.body))
        try:
            check_hashes(content, {}, request.headers)
            with upload.lock:
                self._check_there(upload_id, upload)
                former, upload.parts[number] = upload.parts.get(number), content
        except ApiError:
            self._objects.contents.remove(content.id)
            raise
        if former is not None:
            self._objects.contents.remove(former.id)
        return Response(200, {"ETag": _etag(content), "x-goog-hash": f"crc32c={content.crc32c},md5={content.md5}"})

    def _complete(self, upload_id: str, upload: PartedUpload, request: Request) -> Response:
        wanted = _wanted_parts(request.body.read())
        if any(one[0] >= following[0] for one, following in pairwise(wanted)):
            raise ApiError(400, "The parts are not in ascending order.", code="InvalidPartOrder")
        parts = []
        for place, (number, etag) in enumerate(wanted):
            part = upload.parts.get(number)
            if part is None or etag.strip('"') != _etag(part).strip('"'):
                raise ApiError(400, f"Part {number} was not found or has another ETag.", code="InvalidPart")
            if part.size < self._min_part_bytes and place < len(wanted) - 1:
                raise ApiError(400, f"Part {number} has {part.size} bytes, too few.", code="EntityTooSmall")
            parts.append(part)
        contents = self._objects.contents
        whole = contents.write(read_in_turn([contents.open(part.id) for part in parts]))
        record = self._objects.commit(upload.bucket, upload.name, whole, upload.fields, with_md5=False)
        self._uploads.pop(upload_id, None)
        self._drop(upload)
        answer = xml_response(
            f'<CompleteMultipartUploadResult xmlns="{_NAMESPACE}"><Bucket>{escape(upload.bucket)}</Bucket>'
            f'<Key>{escape(upload.name)}</Key><ETag>"{record.generation}"</ETag></CompleteMultipartUploadResult>'
        )
        answer.headers |= {"x-goog-hash": f"crc32c={record.crc32c}", "x-goog-generation": str(record.generation)}
        return answer


def object_fields(headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of an object that an XML request's headers set."""
    names = {
        "content-type": "contentType",
        "content-encoding": "contentEncoding",
        "content-disposition": "contentDisposition",
        "content-language": "contentLanguage",
        "cache-control": "cacheControl",
    }
    fields: dict[str, Any] = {name: headers[header] for header, name in names.items() if header in headers}
    prefix = "x-goog-meta-"
    if metadata := {key.removeprefix(prefix): value for key, value in headers.items() if key.startswith(prefix)}:
        fields["metadata"] = metadata
    return fields


def _etag(part: Content) -> str:
    return f'"{base64.b64decode(part.md5).hex()}"'


def _wanted_parts(body: bytes) -> list[tuple[int, str]]:
    try:
        root = ElementTree.fromstring(body)
        found = []
        for part in root:
            values = {child.tag.rpartition("}")[2]: (child.text or "").strip() for child in part}
            found.append((int(values["PartNumber"]), values["ETag"]))
    except (ElementTree.ParseError, KeyError, ValueError):
        raise ApiError(400, "The XML you provided was not well-formed.", code="MalformedXML") from None
    if not found:
        raise ApiError(400, "You must specify at least one part.", code="MalformedXML")
    return found
