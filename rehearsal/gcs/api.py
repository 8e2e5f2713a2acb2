"""Routes and operations of the JSON API: https://cloud.google.com/storage/docs/json_api/v1."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import partial
from typing import Any
from urllib.parse import unquote

from rehearsal.errors import StorageError
from rehearsal.gcs.objects import Objects, Preconditions, Record, number_in
from rehearsal.gcs.uploads import Uploads, json_object, peek_name
from rehearsal.servers.http import FileBody, Request, Response, json_response

MAX_RESULTS = 1000
# https://cloud.google.com/storage/docs/buckets#naming, without the rules for names with dots.
_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_LAST_CHARACTER = chr(0x10FFFF)


@dataclass(frozen=True)
class Call:
    """An operation on a resource; the server runs it."""

    operation: str
    bucket: str
    name: str
    run: Callable[[], Response]


class JsonApi:
    """The operations of the JSON API on one server's objects."""

    def __init__(self, objects: Objects, uploads: Uploads) -> None:
        self._objects, self._uploads = objects, uploads
        bucket, name = r"/b/(?P<bucket>[^/]+)", r"/o/(?P<name>[^/]+)"
        routes: list[tuple[str, str, str, Callable[..., Response]]] = [
            ("GET", r"/storage/v1/b", "buckets.list", self._list_buckets),
            ("POST", r"/storage/v1/b", "buckets.insert", self._insert_bucket),
            ("GET", rf"/storage/v1{bucket}", "buckets.get", self._get_bucket),
            ("DELETE", rf"/storage/v1{bucket}", "buckets.delete", self._delete_bucket),
            ("GET", rf"/storage/v1{bucket}/o", "objects.list", self._list),
            ("GET", rf"(?:/download)?/storage/v1{bucket}{name}", "objects.get", self._get),
            ("DELETE", rf"/storage/v1{bucket}{name}", "objects.delete", self._delete),
            ("POST|PUT|DELETE", rf"(?:/resumable)?/upload/storage/v1{bucket}/o", "uploads", self._uploads.handle),
        ]
        self._routes = [(re.compile(method), re.compile(path), op, run) for method, path, op, run in routes]

    def find(self, request: Request) -> Call:
        """Return the operation of a request; StorageError 501 if it is not implemented."""
        for method, path, operation, run in self._routes:
            if method.fullmatch(request.method) and (match := path.fullmatch(request.path)) is not None:
                names = {key: _decode(value) for key, value in match.groupdict().items()}
                if operation == "objects.get" and request.query.get("alt") == "media":
                    operation = "objects.media"
                name = names.get("name", "") if operation != "uploads" else peek_name(request)
                return Call(operation, names.get("bucket", ""), name, partial(run, request, **names))
        raise StorageError(501, f"{request.method} {request.path} is not implemented here")

    # --- buckets ---

    def _list_buckets(self, request: Request) -> Response:
        prefix = request.query.get("prefix", "")
        buckets = [bucket for bucket in self._objects.buckets() if bucket.name.startswith(prefix)]
        items = [bucket.resource(request.endpoint) for bucket in buckets]
        return json_response({"kind": "storage#buckets", "items": items})

    def _insert_bucket(self, request: Request) -> Response:
        fields = json_object(request)
        name = fields.pop("name", "")
        if not isinstance(name, str) or not _BUCKET_NAME.fullmatch(name) or ".." in name:
            raise StorageError(400, f"Invalid bucket name: {name!r}")
        return json_response(self._objects.create_bucket(name, fields).resource(request.endpoint))

    def _get_bucket(self, request: Request, bucket: str) -> Response:
        return _selected(self._objects.bucket(bucket).resource(request.endpoint), request)

    def _delete_bucket(self, request: Request, bucket: str) -> Response:
        self._objects.delete_bucket(bucket)
        return Response(204)

    # --- objects ---

    def _list(self, request: Request, bucket: str) -> Response:
        page = list_page(self._objects, bucket, request.query)
        value: dict[str, object] = {"kind": "storage#objects"}
        if page.next_token:
            value["nextPageToken"] = page.next_token
        if page.prefixes:
            value["prefixes"] = page.prefixes
        if page.items:
            value["items"] = [record.resource(request.endpoint) for record in page.items]
        return _selected(value, request)

    def _get(self, request: Request, bucket: str, name: str) -> Response:
        generation, check = number_in(request.query, "generation"), Preconditions.from_query(request.query)
        if request.query.get("alt") != "media":
            return _selected(self._objects.get(bucket, name, generation, check).resource(request.endpoint), request)
        record, file = self._objects.open(bucket, name, generation, check)
        try:
            first, length, partial = _range(request.headers.get("range"), record.size)
        except StorageError:
            file.close()
            raise
        headers = _media_headers(record)
        if partial:
            headers["Content-Range"] = f"bytes {first}-{first + length - 1}/{record.size}"
        return Response(206 if partial else 200, headers, FileBody(file, first, length))

    def _delete(self, request: Request, bucket: str, name: str) -> Response:
        check = Preconditions.from_query(request.query)
        self._objects.delete(bucket, name, number_in(request.query, "generation"), check)
        return Response(204)


def _decode(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise StorageError(400, f"{text} is not UTF-8") from None


# --- media: https://cloud.google.com/storage/docs/xml-api/reference-headers, and RFC 9110, section 14 ---


def _media_headers(record: Record) -> dict[str, str]:
    fields = record.fields
    headers = {
        "Content-Type": str(fields.get("contentType", "application/octet-stream")),
        "Accept-Ranges": "bytes",
        "ETag": f'"{record.etag}"',
        "Last-Modified": formatdate(record.generation / 1e6, usegmt=True),
        "x-goog-generation": str(record.generation),
        "x-goog-metageneration": "1",
        "x-goog-stored-content-encoding": str(fields.get("contentEncoding", "identity")),
        "x-goog-stored-content-length": str(record.size),
        "x-goog-storage-class": str(fields.get("storageClass", "STANDARD")),
        "x-goog-hash": f"crc32c={record.crc32c},md5={record.md5}",
    }
    for name, header in (("contentEncoding", "Content-Encoding"), ("cacheControl", "Cache-Control")):
        if name in fields:
            headers[header] = str(fields[name])
    return headers | {f"x-goog-meta-{key}": str(value) for key, value in fields.get("metadata", {}).items()}


def _range(text: str | None, size: int) -> tuple[int, int, bool]:
    """Return first byte, number of bytes, and whether that is a range."""
    match = _RANGE.fullmatch(text or "")
    if match is None or match.groups() == ("", ""):
        # RFC 9110: Range headers of other forms are ignored.
        return 0, size, False
    first_text, last_text = match.groups()
    if not first_text:
        first, last = max(0, size - int(last_text)), size - 1
    else:
        first, last = int(first_text), min(size - 1, int(last_text) if last_text else size - 1)
    if first >= size or last < first:
        raise StorageError(416, "The requested range cannot be satisfied.")
    return first, last - first + 1, True


# --- listings: https://cloud.google.com/storage/docs/json_api/v1/objects/list ---


@dataclass
class Page:
    """Objects and prefixes of a listing, and the token of the next page."""

    items: list[Record] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    next_token: str | None = None


def list_page(objects: Objects, bucket: str, query: Mapping[str, str]) -> Page:
    """Return the page of a listing query.

    Names are in UTF-8 order. With a delimiter, names that contain it after the prefix are grouped by common prefix. A
    page has at most 1,000 objects and prefixes.
    """
    if _is_true(query, "versions"):
        raise StorageError(501, "objects.list with versions is not implemented here: only live generations exist")
    objects.bucket(bucket)
    limit = number_in(query, "maxResults")
    if limit is not None and limit < 0:
        raise StorageError(400, f"Invalid value for maxResults: {limit}")
    limit = min(limit or MAX_RESULTS, MAX_RESULTS)
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    with_delimited = _is_true(query, "includeTrailingDelimiter")
    start, end = max(prefix, query.get("startOffset", "")), query.get("endOffset", "")
    if prefix and (not end or _after_prefix(prefix) < end):
        end = _after_prefix(prefix)
    if token := query.get("pageToken"):
        start = max(start, _name_of_token(token))

    page = Page()
    last_prefix = None
    # With a delimiter, most rows of a large batch would be discarded.
    num_rows = min(limit + 1, 32) if delimiter else limit + 1
    while True:
        rows = objects.rows(bucket, start, end, num_rows)
        for record in rows:
            cut = record.name.find(delimiter, len(prefix)) if delimiter else -1
            common = record.name[: cut + len(delimiter)] if cut >= 0 else None
            is_item = common is None or (with_delimited and record.name == common)
            is_prefix = common is not None and common != last_prefix
            is_full = len(page.items) + len(page.prefixes) + is_item + is_prefix > limit
            # Rows that add no entry do not end a page: the next one would repeat their prefix.
            if is_full and (is_item or is_prefix) and (page.items or page.prefixes):
                page.next_token = base64.urlsafe_b64encode(record.name.encode()).decode()
                return page
            if is_prefix and common is not None:
                page.prefixes.append(common)
                last_prefix = common
            if is_item:
                page.items.append(record)
            elif common is not None:
                # Skips the other names below the prefix.
                start = _after_prefix(common)
                break
            start = record.name + "\0"
        else:
            if len(rows) < num_rows:
                return page


def _after_prefix(prefix: str) -> str:
    """Return the first name after all that start with `prefix`."""
    last = ord(prefix[-1])
    if prefix[-1] == _LAST_CHARACTER:
        return prefix + _LAST_CHARACTER
    # Skips the surrogates, which UTF-8 does not encode.
    return prefix[:-1] + chr(0xE000 if last + 1 == 0xD800 else last + 1)


def _is_true(query: Mapping[str, str], name: str) -> bool:
    # Python clients send True.
    return query.get(name, "").lower() == "true"


def _name_of_token(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise StorageError(400, "Invalid page token") from None


# --- partial responses: https://cloud.google.com/storage/docs/json_api#partial-response ---


def _selected(value: dict[str, object], request: Request) -> Response:
    fields = request.query.get("fields")
    return json_response(_select(value, _parse_fields(fields)) if fields else value)


def _parse_fields(text: str) -> dict[str, Any]:
    """Parse `a,b(c,d/e)` to {"a": {}, "b": {"c": {}, "d": {"e": {}}}}."""
    tree: dict[str, Any] = {}
    stack = [tree]
    current, name = tree, ""
    for character in text + ",":
        if character not in ",()/":
            name += character
            continue
        if name.strip():
            current = current.setdefault(name.strip(), {})
        name = ""
        if character == "(":
            stack.append(current)
        elif character != "/":
            if character == ")":
                stack.pop()
            if not stack:
                break
            current = stack[-1]
    if len(stack) != 1:
        raise StorageError(400, f"Invalid field selection {text}", reason="invalidParameter")
    return tree


def _select(value: Any, tree: dict[str, Any]) -> Any:
    if not tree or "*" in tree:
        return value
    if isinstance(value, list):
        return [_select(item, tree) for item in value]
    if isinstance(value, dict):
        return {key: _select(item, tree[key]) for key, item in value.items() if key in tree}
    return value
