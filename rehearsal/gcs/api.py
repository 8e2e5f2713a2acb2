"""The JSON API: which operation a method and a path name, and what it does.

https://cloud.google.com/storage/docs/json_api/v1: a page a resource and a method.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

from rehearsal.doors.http_messages import Request, Response, json_response
from rehearsal.gcs import media
from rehearsal.gcs.listing import list_page
from rehearsal.gcs.messages import ApiError, json_object, number_in
from rehearsal.gcs.objects import Objects
from rehearsal.gcs.preconditions import Preconditions
from rehearsal.gcs.resources import bucket_resource, object_resource, select_fields
from rehearsal.gcs.uploads import Uploads, peek_name

# https://cloud.google.com/storage/docs/buckets#naming, without the rules for names with dots.
_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


@dataclass(frozen=True)
class Call:
    """An operation with what it is about; running it is left to the server."""

    operation: str
    bucket: str
    name: str
    run: Callable[[], Response]


class JsonApi:
    """The operations of the JSON API on one server's objects."""

    def __init__(self, objects: Objects, uploads: Uploads) -> None:
        self._objects = objects
        self._uploads = uploads
        bucket, name = r"/b/(?P<bucket>[^/]+)", r"/o/(?P<name>[^/]+)"
        routes: list[tuple[str, str, str, Callable[..., Response]]] = [
            ("GET", r"/storage/v1/b", "buckets.list", self._list_buckets),
            ("POST", r"/storage/v1/b", "buckets.insert", self._insert_bucket),
            ("GET", rf"/storage/v1{bucket}", "buckets.get", self._get_bucket),
            ("DELETE", rf"/storage/v1{bucket}", "buckets.delete", self._delete_bucket),
            ("GET", rf"/storage/v1{bucket}/o", "objects.list", self._list),
            ("GET", rf"(?:/download)?/storage/v1{bucket}{name}", "objects.get", self._get),
            ("DELETE", rf"/storage/v1{bucket}{name}", "objects.delete", self._delete),
            ("POST|PUT|DELETE", rf"(?:/resumable)?/upload/storage/v1{bucket}/o", "uploads", self._upload),
        ]
        self._routes = [(re.compile(method), re.compile(path), op, run) for method, path, op, run in routes]

    def find(self, request: Request) -> Call:
        """Return the operation that a request names; ApiError 501 when it is not here."""
        for method, path, operation, run in self._routes:
            if method.fullmatch(request.method) and (match := path.fullmatch(request.path)) is not None:
                names = {key: decode(value) for key, value in match.groupdict().items()}
                if operation == "objects.get" and request.query.get("alt") == "media":
                    operation = "objects.media"
                name = names.get("name", "") if operation != "uploads" else peek_name(request)
                return Call(operation, names.get("bucket", ""), name, partial(run, request, **names))
        raise ApiError(501, f"{request.method} {request.path} is not implemented here")

    # --- buckets ---

    def _list_buckets(self, request: Request) -> Response:
        prefix = request.query.get("prefix", "")
        items = [
            bucket_resource(bucket, request.endpoint)
            for bucket in self._objects.buckets()
            if bucket.name.startswith(prefix)
        ]
        return json_response({"kind": "storage#buckets", "items": items})

    def _insert_bucket(self, request: Request) -> Response:
        fields = json_object(request)
        name = fields.pop("name", "")
        check_bucket_name(name)
        return json_response(bucket_resource(self._objects.create_bucket(name, fields), request.endpoint))

    def _get_bucket(self, request: Request, bucket: str) -> Response:
        return _selected(bucket_resource(self._objects.bucket(bucket), request.endpoint), request)

    def _delete_bucket(self, request: Request, bucket: str) -> Response:
        self._objects.delete_bucket(bucket)
        return Response(204)

    # --- objects ---

    def _list(self, request: Request, bucket: str) -> Response:
        page = list_page(self._objects, bucket, request)
        value: dict[str, object] = {"kind": "storage#objects"}
        if page.next_token:
            value["nextPageToken"] = page.next_token
        if page.prefixes:
            value["prefixes"] = page.prefixes
        if page.items:
            value["items"] = [object_resource(record, request.endpoint) for record in page.items]
        return _selected(value, request)

    def _get(self, request: Request, bucket: str, name: str) -> Response:
        generation = number_in(request.query, "generation")
        check = Preconditions.from_query(request.query)
        if request.query.get("alt") == "media":
            return media.download(self._objects, bucket, name, generation, check, request.headers)
        record = self._objects.get(bucket, name, generation, check)
        return _selected(object_resource(record, request.endpoint), request)

    def _delete(self, request: Request, bucket: str, name: str) -> Response:
        self._objects.delete(
            bucket, name, number_in(request.query, "generation"), Preconditions.from_query(request.query)
        )
        return Response(204)

    def _upload(self, request: Request, bucket: str) -> Response:
        return self._uploads.handle(bucket, request)


def check_bucket_name(name: object) -> None:
    """Raise ApiError 400 unless `name` can be a bucket's."""
    if not isinstance(name, str) or not _BUCKET_NAME.fullmatch(name) or ".." in name:
        raise ApiError(400, f"Invalid bucket name: {name!r}")


def decode(text: str) -> str:
    """Return a part of a path without its percent signs."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ApiError(400, f"{text} is not UTF-8") from None


def _selected(value: dict[str, object], request: Request) -> Response:
    fields = request.query.get("fields")
    return json_response(select_fields(value, fields) if fields else value)
