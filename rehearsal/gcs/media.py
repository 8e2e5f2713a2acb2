"""The bytes of an object in an answer: whole or a range, with the headers that say what they are.

https://cloud.google.com/storage/docs/xml-api/reference-headers names the headers; ranges follow RFC 9110, section 14.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import formatdate

from rehearsal.doors.http_messages import FileBody, Response
from rehearsal.gcs.index import Record
from rehearsal.gcs.messages import ApiError
from rehearsal.gcs.objects import Objects
from rehearsal.gcs.preconditions import Preconditions
from rehearsal.gcs.resources import etag

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def download(
    objects: Objects,
    bucket: str,
    name: str,
    generation: int | None,
    check: Preconditions,
    headers: Mapping[str, str],
) -> Response:
    """Answer with an object's bytes, those of the Range header where it has one."""
    record, file = objects.open(bucket, name, generation, check)
    try:
        first, length, partial = _range(headers.get("range"), record.size)
    except ApiError:
        file.close()
        raise
    described = describe(record)
    if partial:
        described["Content-Range"] = f"bytes {first}-{first + length - 1}/{record.size}"
    return Response(206 if partial else 200, described, FileBody(file, first, length))


def describe(record: Record) -> dict[str, str]:
    """Return the headers about an object."""
    hashes = f"crc32c={record.crc32c}" + ("" if record.md5 is None else f",md5={record.md5}")
    headers = {
        "Content-Type": str(record.fields.get("contentType", "application/octet-stream")),
        "Accept-Ranges": "bytes",
        "ETag": f'"{etag(record)}"',
        "Last-Modified": formatdate(record.updated_us / 1e6, usegmt=True),
        "x-goog-generation": str(record.generation),
        "x-goog-metageneration": str(record.metageneration),
        "x-goog-stored-content-encoding": str(record.fields.get("contentEncoding", "identity")),
        "x-goog-stored-content-length": str(record.size),
        "x-goog-storage-class": str(record.fields.get("storageClass", "STANDARD")),
        "x-goog-hash": hashes,
    }
    for field, header in (("contentEncoding", "Content-Encoding"), ("cacheControl", "Cache-Control")):
        if field in record.fields:
            headers[header] = str(record.fields[field])
    for key, value in record.fields.get("metadata", {}).items():
        headers[f"x-goog-meta-{key}"] = str(value)
    return headers


def _range(text: str | None, size: int) -> tuple[int, int, bool]:
    """Return first byte, number of bytes, and whether that is a range."""
    match = _RANGE.fullmatch(text or "")
    if match is None or match.groups() == ("", ""):
        # A Range header of another form is ignored, as RFC 9110 says.
        return 0, size, False
    first_text, last_text = match.groups()
    if not first_text:
        first, last = max(0, size - int(last_text)), size - 1
    else:
        first, last = int(first_text), min(size - 1, int(last_text) if last_text else size - 1)
    if first >= size or last < first:
        raise ApiError(416, "The requested range cannot be satisfied.")
    return first, last - first + 1, True
