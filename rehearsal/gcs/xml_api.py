"""The XML API, as far as clients of the JSON API use it: objects, and multipart uploads (xml_uploads).

https://cloud.google.com/storage/docs/xml-api/overview
"""

from __future__ import annotations

import re

from rehearsal.doors.http_messages import Request, Response, blocks
from rehearsal.gcs import media
from rehearsal.gcs.api import Call, decode
from rehearsal.gcs.messages import ApiError, number_in
from rehearsal.gcs.objects import Objects
from rehearsal.gcs.preconditions import Preconditions
from rehearsal.gcs.refused import refuse_features
from rehearsal.gcs.uploads import Uploads
from rehearsal.gcs.xml_uploads import XmlUploads, object_fields

_PATH = re.compile(r"/(?P<bucket>[a-z0-9][^/]*)/(?P<name>.+)")


class XmlApi:
    """The operations of the XML API on one server's objects."""

    def __init__(self, objects: Objects, uploads: Uploads, xml_uploads: XmlUploads) -> None:
        self._objects = objects
        self._uploads = uploads
        self._xml_uploads = xml_uploads

    def find(self, request: Request) -> Call:
        """Return the operation that a request names."""
        match = _PATH.fullmatch(request.path)
        if match is None:
            raise ApiError(501, f"{request.method} {request.path} is not implemented here")
        bucket, name = decode(match["bucket"]), decode(match["name"])
        query = request.query
        refuse_features(request, f"xml.{request.method.lower()}")
        if "uploads" in query or "uploadId" in query:
            return Call("xml.multipart", bucket, name, lambda: self._xml_uploads.handle(bucket, name, request))
        runs = {"GET": self._get, "HEAD": self._get, "PUT": self._put, "DELETE": self._delete}
        run = runs.get(request.method)
        if run is None:
            raise ApiError(501, f"{request.method} of the XML API is not implemented here")
        return Call(f"xml.{request.method.lower()}", bucket, name, lambda: run(request, bucket, name))

    def _get(self, request: Request, bucket: str, name: str) -> Response:
        generation = number_in(request.query, "generation")
        check = Preconditions.from_headers(request.headers)
        return media.download(self._objects, bucket, name, generation, check, request.headers)

    def _put(self, request: Request, bucket: str, name: str) -> Response:
        check = Preconditions.from_headers(request.headers)
        fields = object_fields(request.headers)
        record = self._uploads.store(bucket, name, blocks(request.body), fields, check, request.headers)
        return Response(200, media.describe(record))

    def _delete(self, request: Request, bucket: str, name: str) -> Response:
        check = Preconditions.from_headers(request.headers)
        self._objects.delete(bucket, name, number_in(request.query, "generation"), check)
        return Response(204)
