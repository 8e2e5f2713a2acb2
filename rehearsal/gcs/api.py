"""The JSON API: which operation a method and a path name, and what it does.

https://cloud.google.com/storage/docs/json_api/v1: a page a resource and a method.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

from rehearsal.doors.http_messages import Request, Response, json_response
from rehearsal.gcs import media
from rehearsal.gcs.index import Record
from rehearsal.gcs.listing import list_page
from rehearsal.gcs.messages import ApiError, json_object, number_in
from rehearsal.gcs.objects import Objects
from rehearsal.gcs.preconditions import Preconditions
from rehearsal.gcs.refused import refuse_bucket_fields, refuse_features
from rehearsal.gcs.resources import bucket_resource, object_resource, select_fields, settable
from rehearsal.gcs.uploads import MAX_UNDER_WAY, Uploads, peek_name

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
        self._rewrites: dict[str, int] = {}
        bucket, name = r"/b/(?P<bucket>[^/]+)", r"/o/(?P<name>[^/]+)"
        routes: list[tuple[str, str, str, Callable[..., Response]]] = [
            ("GET", r"/storage/v1/b", "buckets.list", self._list_buckets),
            ("POST", r"/storage/v1/b", "buckets.insert", self._insert_bucket),
            ("GET", rf"/storage/v1{bucket}", "buckets.get", self._get_bucket),
            ("PATCH|PUT", rf"/storage/v1{bucket}", "buckets.patch", self._patch_bucket),
            ("DELETE", rf"/storage/v1{bucket}", "buckets.delete", self._delete_bucket),
            ("GET", rf"/storage/v1{bucket}/o", "objects.list", self._list),
            ("GET", rf"(?:/download)?/storage/v1{bucket}{name}", "objects.get", self._get),
            ("PATCH", rf"/storage/v1{bucket}{name}", "objects.patch", self._patch),
            ("PUT", rf"/storage/v1{bucket}{name}", "objects.update", self._update),
            ("DELETE", rf"/storage/v1{bucket}{name}", "objects.delete", self._delete),
            ("POST", rf"/storage/v1{bucket}{name}/compose", "objects.compose", self._compose),
            ("POST", rf"/storage/v1{bucket}{name}/moveTo/o/(?P<to_name>[^/]+)", "objects.move", self._move),
            (
                "POST",
                rf"/storage/v1{bucket}{name}/copyTo/b/(?P<to_bucket>[^/]+)/o/(?P<to_name>[^/]+)",
                "objects.copy",
                self._copy,
            ),
            (
                "POST",
                rf"/storage/v1{bucket}{name}/rewriteTo/b/(?P<to_bucket>[^/]+)/o/(?P<to_name>[^/]+)",
                "objects.rewrite",
                self._rewrite,
            ),
            ("POST|PUT|DELETE", rf"(?:/resumable)?/upload/storage/v1{bucket}/o", "uploads", self._upload),
        ]
        self._routes = [(re.compile(method), re.compile(path), op, run) for method, path, op, run in routes]

    @staticmethod
    def is_for(path: str) -> bool:
        """Whether a path is one of the JSON API's."""
        return path.startswith(("/storage/v1/", "/download/storage/v1/", "/upload/storage/v1/", "/resumable/upload/"))

    def find(self, request: Request) -> Call:
        """Return the operation that a request names; ApiError 404 or 405 when there is none."""
        known_path = False
        for method, path, operation, run in self._routes:
            match = path.fullmatch(request.path)
            if match is None:
                continue
            known_path = True
            if method.fullmatch(request.method):
                refuse_features(request, operation)
                names = {key: decode(value) for key, value in match.groupdict().items()}
                if operation == "objects.get" and request.query.get("alt") == "media":
                    operation = "objects.media"
                name = names.get("name", "") if operation != "uploads" else peek_name(request)
                return Call(operation, names.get("bucket", ""), name, partial(run, request, **names))
        if known_path:
            raise ApiError(405, f"{request.method} is not allowed here", reason="httpMethodNotAllowed")
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
        refuse_bucket_fields(fields)
        return json_response(bucket_resource(self._objects.create_bucket(name, fields), request.endpoint))

    def _get_bucket(self, request: Request, bucket: str) -> Response:
        return _selected(bucket_resource(self._objects.bucket(bucket), request.endpoint), request)

    def _patch_bucket(self, request: Request, bucket: str) -> Response:
        changes = {key: value for key, value in json_object(request).items() if key != "name"}
        refuse_bucket_fields(changes)
        return json_response(bucket_resource(self._objects.update_bucket(bucket, changes), request.endpoint))

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

    def _patch(self, request: Request, bucket: str, name: str) -> Response:
        check = Preconditions.from_query(request.query)
        changes = settable(json_object(request))
        record = self._objects.patch(bucket, name, number_in(request.query, "generation"), changes, check)
        return _selected(object_resource(record, request.endpoint), request)

    def _update(self, request: Request, bucket: str, name: str) -> Response:
        check = Preconditions.from_query(request.query)
        wanted = settable(json_object(request))
        generation = number_in(request.query, "generation")
        record = self._objects.patch(bucket, name, generation, wanted, check, keep=False)
        return _selected(object_resource(record, request.endpoint), request)

    def _delete(self, request: Request, bucket: str, name: str) -> Response:
        self._objects.delete(
            bucket, name, number_in(request.query, "generation"), Preconditions.from_query(request.query)
        )
        return Response(204)

    def _compose(self, request: Request, bucket: str, name: str) -> Response:
        body = json_object(request)
        entries = body.get("sourceObjects")
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ApiError(400, "Invalid value for sourceObjects", reason="required")
        sources = [self._source(bucket, entry) for entry in entries]
        fields = settable(body.get("destination") or {})
        check = Preconditions.from_query(request.query)
        record = self._objects.compose(bucket, name, sources, fields, check)
        return json_response(object_resource(record, request.endpoint))

    def _source(self, bucket: str, entry: dict[str, object]) -> Record:
        conditions = entry.get("objectPreconditions")
        wanted = conditions.get("ifGenerationMatch") if isinstance(conditions, dict) else None
        generation = entry.get("generation")
        return self._objects.get(
            bucket,
            str(entry.get("name")),
            _whole_number(generation),
            Preconditions(generation_match=_whole_number(wanted)),
            reading=False,
        )

    def _found_source(self, request: Request, bucket: str, name: str) -> Record:
        generation = number_in(request.query, "sourceGeneration")
        check = Preconditions.from_query(request.query, of_source=True)
        return self._objects.get(bucket, name, generation, check, reading=False)

    def _copy(self, request: Request, bucket: str, name: str, to_bucket: str, to_name: str) -> Response:
        source = self._found_source(request, bucket, name)
        fields = settable(json_object(request)) or None
        check = Preconditions.from_query(request.query)
        record = self._objects.copy(source, to_bucket, to_name, fields, check)
        return json_response(object_resource(record, request.endpoint))

    def _rewrite(self, request: Request, bucket: str, name: str, to_bucket: str, to_name: str) -> Response:
        """Copy in steps where the client asks for small ones; the bytes are taken with the last."""
        source = self._found_source(request, bucket, name)
        token = request.query.get("rewriteToken")
        if token is not None and token not in self._rewrites:
            raise ApiError(400, "Invalid rewrite token")
        step = number_in(request.query, "maxBytesRewrittenPerCall")
        if step is not None and (step <= 0 or step % (1 << 20)):
            raise ApiError(400, "maxBytesRewrittenPerCall must be a multiple of 1 MiB")
        done = source.size if step is None else self._rewrites.get(token or "", 0) + step
        progress = {"kind": "storage#rewriteResponse", "objectSize": str(source.size)}
        if done < source.size:
            token = token or uuid.uuid4().hex
            self._rewrites[token] = done
            # Steps of a copy that nobody goes on with.
            if len(self._rewrites) > MAX_UNDER_WAY:
                del self._rewrites[next(iter(self._rewrites))]
            more = {"totalBytesRewritten": str(done), "done": False, "rewriteToken": token}
            return json_response(progress | more)
        fields = settable(json_object(request)) or None
        record = self._objects.copy(source, to_bucket, to_name, fields, Preconditions.from_query(request.query))
        self._rewrites.pop(token or "", None)
        resource = object_resource(record, request.endpoint)
        return json_response(progress | {"totalBytesRewritten": str(source.size), "done": True, "resource": resource})

    def _move(self, request: Request, bucket: str, name: str, to_name: str) -> Response:
        of_source = Preconditions.from_query(request.query, of_source=True)
        check = Preconditions.from_query(request.query)
        generation = number_in(request.query, "sourceGeneration")
        record = self._objects.move(bucket, name, to_name, generation, of_source, check)
        return json_response(object_resource(record, request.endpoint))

    def _upload(self, request: Request, bucket: str) -> Response:
        return self._uploads.handle(bucket, request)


def _whole_number(value: object) -> int | None:
    """Return a number of a JSON body, which writes 64 bits as text; None when it is absent."""
    try:
        return None if value is None else int(str(value))
    except ValueError:
        raise ApiError(400, f"Invalid value: {value!r}") from None


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
