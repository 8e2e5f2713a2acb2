"""Metadata server of a machine: project, access token of the service account, preemption notice.

Keys: https://docs.cloud.google.com/compute/docs/metadata/predefined-metadata-keys. Queries, including wait_for_change:
https://docs.cloud.google.com/compute/docs/metadata/querying-metadata. Other keys are not found.

All users of this computer share the loopback interface, and the token authorises calls to the local cloud. So the URL
contains a secret path, which is part of the address in the machine's environment. Like the real server, it requires
`Metadata-Flavor: Google` and this host's name, and refuses proxies and web pages.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rehearsal.servers.http import Request, Response, Send
from rehearsal.servers.http_server import HttpServer

LOOPBACK = "127.0.0.1"
_HOSTS = ("169.254.169.254", "metadata.google.internal", "metadata", LOOPBACK)
_ROOT = "/computeMetadata/v1/"
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


@dataclass(frozen=True)
class Identity:
    """Identity of a machine, as served by its metadata server."""

    project: str
    """Project id: the default project of clients."""
    project_number: str
    zone: str
    machine_type: str
    email: str
    """Email of the service account."""
    token: Callable[[], str]
    """Returns an access token of the local cloud."""


class MetadataServer:
    """A running metadata server; `close` ends it.

    `on_refused` is called with each refused request, in the server's thread.
    """

    def __init__(self, name: str, identity: Identity, on_refused: Callable[[str], None]) -> None:
        self._identity, self._on_refused = identity, on_refused
        self._changed, self._is_closed = threading.Condition(), False
        account = {"aliases": ["default"], "email": identity.email, "scopes": list(_SCOPES)}
        place = f"projects/{identity.project_number}"
        self._values: dict[str, Any] = {
            "project": {"project-id": identity.project, "numeric-project-id": int(identity.project_number)},
            "instance": {
                "id": zlib.crc32(f"{identity.project} {name}".encode()),
                "name": name,
                "hostname": f"{name}.c.{identity.project}.internal",
                "zone": f"{place}/zones/{identity.zone}",
                "region": f"{place}/regions/{identity.zone.rpartition('-')[0]}",
                "machine-type": f"{place}/machineTypes/{identity.machine_type}",
                "preempted": "FALSE",
                "maintenance-event": "NONE",
                "attributes": {},
                "service-accounts": {"default": account, identity.email: account},
            },
            "universe": {"universe-domain": "googleapis.com"},
        }
        self._secret = secrets.token_urlsafe(24)
        # Failures are discarded: clients may disconnect before the answer.
        self._server = HttpServer(self._serve, [])
        self._server.start()
        address = f"{LOOPBACK}:{self._server.port}/{self._secret}"
        self.environment = {"GCE_METADATA_HOST": address, "GCE_METADATA_IP": address}
        """Variables with the server's address; google-auth probes the second to detect the server."""

    def preempt(self) -> None:
        """Set `preempted` to TRUE and answer the clients that wait for a change."""
        with self._changed:
            self._values["instance"]["preempted"] = "TRUE"
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the server."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._server.stop()

    def _serve(self, request: Request, send: Send) -> None:
        status, kind, body = self._answer(request)
        send(Response(status, {"Metadata-Flavor": "Google", "Content-Type": kind, "ETag": etag_of(body)}, body))

    def _answer(self, request: Request) -> tuple[int, str, bytes]:
        """Return HTTP status, content type and body; with wait_for_change, wait first."""
        text, query = "application/text", request.query
        secret, _, key = request.path.removeprefix("/").partition("/")
        if (refusal := self._find_refusal(request.method, secret, request.headers)) is not None:
            self._on_refused(f"metadata server: {refusal}: /{key}")
            return 403, text, f"{refusal}\n".encode()
        if not key:
            return 200, text, b"computeMetadata/\n"
        if query.get("wait_for_change") == "true":
            self._wait(f"/{key}", query)
        value = self._find(f"/{key}", query)
        if value is None:
            return 404, text, b"not found\n"
        if isinstance(value, dict | list) or query.get("alt") == "json":
            return 200, "application/json", json.dumps(value).encode()
        return 200, text, str(value).encode()

    def _find_refusal(self, method: str, secret: str, headers: Mapping[str, str]) -> str | None:
        if not secrets.compare_digest(secret.encode(), self._secret.encode()):
            return "wrong secret path: not a client of this machine"
        if method != "GET":
            return "only GET is served"
        if headers.get("metadata-flavor") != "Google":
            return "no header Metadata-Flavor: Google"
        if "x-forwarded-for" in headers or "origin" in headers:
            return "a request of a proxy or of a web page"
        host = headers.get("host", "").partition(":")[0]
        return None if host in _HOSTS else f"asked as {host}"

    def _wait(self, path: str, query: Mapping[str, str]) -> None:
        """Wait until the value's ETag differs from `last_etag`, at most `timeout_sec`."""
        last_etag, limit = query.get("last_etag"), query.get("timeout_sec", "")
        with self._changed:
            current_etag = etag_of(str(self._find(path, query)).encode())
            if last_etag is None or last_etag == current_etag:
                self._changed.wait_for(
                    lambda: self._is_closed or etag_of(str(self._find(path, query)).encode()) != current_etag,
                    float(limit) if limit.isdecimal() else None,
                )

    def _find(self, path: str, query: Mapping[str, str]) -> Any:
        """Return a value, or the names in a folder; None if not found."""
        if not path.startswith(_ROOT):
            return None
        parts = [part for part in path.removeprefix(_ROOT).split("/") if part]
        accounts = self._values["instance"]["service-accounts"]
        if parts[:2] == ["instance", "service-accounts"] and len(parts) == 4 and parts[2] in accounts:
            if parts[3] == "token":
                return {"access_token": self._identity.token(), "expires_in": 3599, "token_type": "Bearer"}
            if parts[3] == "scopes":
                return "\n".join(_SCOPES)
        value: Any = self._values
        for part in parts:
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, dict) and query.get("recursive") != "true":
            return "".join(f"{name}/\n" if isinstance(inner, dict) else f"{name}\n" for name, inner in value.items())
        return value


def etag_of(body: bytes) -> str:
    """Return the ETag of an answer, a hash of the value."""
    return hashlib.sha256(body).hexdigest()[:16]
