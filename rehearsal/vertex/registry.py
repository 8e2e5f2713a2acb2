"""A KFP repository of Artifact Registry: upload, versions, tags, download.

Two hosts: REGION-kfp.pkg.dev/PROJECT/REPOSITORY takes uploads and gives templates by version or tag;
artifactregistry.googleapis.com shows packages, versions and tags. Every repository is there.

https://cloud.google.com/vertex-ai/docs/pipelines/create-pipeline-template; kfp.registry.RegistryClient is the client.
"""

from __future__ import annotations

import email
import email.message
import hashlib
import re
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import yaml

from rehearsal.doors.errors import ServiceError, not_found
from rehearsal.doors.http_messages import Request, Response, json_response
from rehearsal.resources.cloud_state import CloudState

_PACKAGE_HOST = re.compile(r"([a-z0-9-]+)-kfp\.pkg\.dev")
_API_HOST = "artifactregistry.googleapis.com"
_PLACE = re.compile(r"/v1/(projects/[^/]+/locations/[^/]+/repositories/[^/]+)/packages(?:/(.*))?")


@dataclass
class _Package:
    versions: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    """Version (sha256:HEX) -> (content, time of its upload)."""
    tags: dict[str, str] = field(default_factory=dict)
    """Tag -> version."""


class Registry:
    """All repositories; an Endpoint of the HTTP door."""

    def __init__(self, cloud: CloudState) -> None:
        self._cloud = cloud
        self._packages: dict[str, dict[str, _Package]] = {}
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Response | None:
        """Answer what belongs to the two hosts."""
        package_host = _PACKAGE_HOST.fullmatch(request.host)
        if package_host is None and request.host != _API_HOST:
            return None
        with self._lock:
            if package_host is not None:
                return self._files(request, package_host.group(1))
            return json_response(self._api(request))

    def _files(self, request: Request, location: str) -> Response:
        """POST /PROJECT/REPOSITORY, or GET /PROJECT/REPOSITORY/PACKAGE/VERSION-OR-TAG."""
        parts = [unquote(part) for part in request.path.strip("/").split("/")]
        if len(parts) < 2:
            raise not_found(request.path)
        place = self._place(f"projects/{parts[0]}/locations/{location}/repositories/{parts[1]}")
        if request.method == "POST" and len(parts) == 2:
            return self._upload(request, place)
        if request.method == "GET" and len(parts) == 4:
            package = self._package(place, parts[2])
            version = package.tags.get(parts[3], parts[3])
            if version not in package.versions:
                raise not_found(request.path)
            return Response(200, {"Content-Type": "application/octet-stream"}, package.versions[version][0])
        raise ServiceError("UNIMPLEMENTED", f"{request.method} {request.path} is not known here")

    def _upload(self, request: Request, place: str) -> Response:
        parts = _form(request)
        content = parts.get("content", b"")
        try:
            spec, *more = [document for document in yaml.safe_load_all(content) if document] or [None]
        except yaml.YAMLError as error:
            raise ServiceError("INVALID_ARGUMENT", f"content is no YAML: {error}") from None
        name = spec.get("pipelineInfo", {}).get("name") if isinstance(spec, dict) else None
        if not name:
            raise ServiceError("INVALID_ARGUMENT", "content is no compiled pipeline: pipelineInfo.name is missing")
        if more:
            said = "the second document (platforms) is for Kubernetes: the rehearsal does not play it"
            raise ServiceError("INVALID_ARGUMENT", said)
        version = f"sha256:{hashlib.sha256(content).hexdigest()}"
        package = self._packages.setdefault(place, {}).setdefault(name, _Package())
        now = datetime.fromtimestamp(self._cloud.clock.now(), UTC).isoformat().replace("+00:00", "Z")
        package.versions.setdefault(version, (content, now))
        for tag in filter(None, parts.get("tags", b"").decode().split(",")):
            package.tags[tag] = version
        return Response(200, {"Content-Type": "text/plain"}, f"{name}/{version}".encode())

    def _api(self, request: Request) -> Any:
        match = _PLACE.fullmatch(request.path)
        if match is None:
            raise not_found(request.path)
        place = self._place(match.group(1))
        rest = [unquote(part) for part in (match.group(2) or "").split("/") if part]
        if not rest:
            return {"packages": [{"name": f"{place}/packages/{name}"} for name in self._packages.get(place, {})]}
        package = self._package(place, rest[0])
        base = f"{place}/packages/{rest[0]}"
        if len(rest) == 1:
            return self._delete_package(place, rest[0]) if request.method == "DELETE" else {"name": base}
        if rest[1] == "versions":
            return self._versions(request, package, base, rest[2:])
        if rest[1] == "tags":
            return self._tags(request, package, base, rest[2:])
        raise not_found(request.path)

    def _versions(self, request: Request, package: _Package, base: str, rest: list[str]) -> Any:
        def show(version: str) -> dict[str, Any]:
            tags = [
                {"name": f"{base}/tags/{tag}", "version": f"{base}/versions/{version}"}
                for tag, its in package.tags.items()
                if its == version
            ]
            return {
                "name": f"{base}/versions/{version}",
                "createTime": package.versions[version][1],
                "relatedTags": tags,
            }

        if not rest:
            return {"versions": [show(version) for version in package.versions]}
        if rest[0] not in package.versions:
            raise not_found(f"{base}/versions/{rest[0]}")
        if request.method == "DELETE":
            if rest[0] in package.tags.values():
                raise ServiceError("FAILED_PRECONDITION", f"{base}/versions/{rest[0]} has tags: delete them first")
            del package.versions[rest[0]]
            return {"done": True}
        return show(rest[0])

    def _tags(self, request: Request, package: _Package, base: str, rest: list[str]) -> Any:
        def show(tag: str) -> dict[str, str]:
            return {"name": f"{base}/tags/{tag}", "version": f"{base}/versions/{package.tags[tag]}"}

        if request.method == "POST" or (request.method == "PATCH" and rest):
            tag = rest[0] if rest else request.query["tagId"]
            version = str((request.value() or {}).get("version", "")).rpartition("/")[2]
            if version not in package.versions:
                raise not_found(f"{base}/versions/{version}")
            if request.method == "POST" and tag in package.tags:
                raise ServiceError("ALREADY_EXISTS", f"There is a tag {base}/tags/{tag} already")
            package.tags[tag] = version
            return show(tag)
        if not rest:
            return {"tags": [show(tag) for tag in package.tags]}
        if rest[0] not in package.tags:
            raise not_found(f"{base}/tags/{rest[0]}")
        if request.method == "DELETE":
            del package.tags[rest[0]]
            return {}
        return show(rest[0])

    def _delete_package(self, place: str, name: str) -> dict[str, bool]:
        del self._packages[place][name]
        return {"done": True}

    def _package(self, place: str, name: str) -> _Package:
        package = self._packages.get(place, {}).get(name)
        if package is None:
            raise not_found(f"{place}/packages/{name}")
        return package

    def _place(self, name: str) -> str:
        """Return a repository's name with its project's id, which Artifact Registry shows."""
        parts = self._cloud.resolve_name(name, "artifactregistry.repositories.get").split("/")
        return "/".join(["projects", self._cloud.project_id(parts[1]), *parts[2:]])


def _form(request: Request) -> dict[str, bytes]:
    """Return the parts of a multipart/form-data body by name."""
    head = f"Content-Type: {request.headers.get('content-type', '')}\r\n\r\n".encode()
    message = email.message_from_bytes(head + request.body.read())
    if not message.is_multipart():
        raise ServiceError("INVALID_ARGUMENT", "an upload is multipart/form-data")
    found: dict[str, bytes] = {}
    for part in message.get_payload():
        assert isinstance(part, email.message.Message)
        name = part.get_param("name", header="content-disposition")
        payload = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(payload, bytes):
            found[name] = payload
    return found
