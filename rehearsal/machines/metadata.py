"""Metadata server of a machine: its project, its service account's token, and the notice that it is taken away.

Keys: https://docs.cloud.google.com/compute/docs/metadata/predefined-metadata-keys. Queries, wait_for_change among them:
https://docs.cloud.google.com/compute/docs/metadata/querying-metadata. Other keys are not found.

All users of this computer share its loopback, and the token authorises calls of the local cloud. So the server answers
only below a secret path, which is part of the address in the machine's environment; and, as the real one, only requests
with `Metadata-Flavor: Google`, to this host's name, that come from no proxy and no web page.
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
    """What a metadata server says of its machine."""

    project: str
    """Project id: clients' default project."""
    project_number: str
    zone: str
    machine_type: str
    email: str
    """Of the service account."""
    token: Callable[[], str]
    """Returns an access token of the local cloud."""


class MetadataServer:
    """A running metadata server; `close` ends it.

    `on_refused` is called with each refused request, in a thread.
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
        # A client that does not wait for its answer has no part in a fault.
        self._server = HttpServer(self._serve, [])
        self._server.start()
        address = f"{LOOPBACK}:{self._server.port}/{self._secret}"
        self.environment = {"GCE_METADATA_HOST": address, "GCE_METADATA_IP": address}
        """Variables by which clients find it; google-auth asks the second whether there is such a server at all."""

    def preempt(self) -> None:
        """Say that the machine is taken away; who waits for it is answered."""
        with self._changed:
            self._values["instance"]["preempted"] = "TRUE"
            self._changed.notify_all()

    def close(self) -> None:
        """Answer no more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._server.stop()

    def _serve(self, request: Request, send: Send) -> None:
        status, kind, body = self._answer(request)
        send(Response(status, {"Metadata-Flavor": "Google", "Content-Type": kind, "ETag": etag_of(body)}, body))

    def _answer(self, request: Request) -> tuple[int, str, bytes]:
        """Return the HTTP status, type and body for a request; wait where it asks to wait for a change."""
        text, query = "application/text", request.query
        secret, _, rest = request.path.removeprefix("/").partition("/")
        if (refusal := self._find_refusal(request.method, secret, request.headers)) is not None:
            self._on_refused(f"metadata server: {refusal}: /{rest}")
            return 403, text, f"{refusal}\n".encode()
        if not rest:
            return 200, text, b"computeMetadata/\n"
        if query.get("wait_for_change") == "true":
            self._wait(f"/{rest}", query)
        value = self._find(f"/{rest}", query)
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
        """Wait until a value differs from the one of `last_etag`, at most `timeout_sec`."""
        known, limit = query.get("last_etag"), query.get("timeout_sec", "")
        with self._changed:
            before = etag_of(str(self._find(path, query)).encode())
            if known is None or known == before:
                self._changed.wait_for(
                    lambda: self._is_closed or etag_of(str(self._find(path, query)).encode()) != before,
                    float(limit) if limit.isdecimal() else None,
                )

    def _find(self, path: str, query: Mapping[str, str]) -> Any:
        """Return a value, or the names in a folder; None: there is none."""
        if not path.startswith(_ROOT):
            return None
        words = [word for word in path.removeprefix(_ROOT).split("/") if word]
        accounts = self._values["instance"]["service-accounts"]
        if words[:2] == ["instance", "service-accounts"] and len(words) == 4 and words[2] in accounts:
            if words[3] == "token":
                return {"access_token": self._identity.token(), "expires_in": 3599, "token_type": "Bearer"}
            if words[3] == "scopes":
                return "\n".join(_SCOPES)
        value: Any = self._values
        for word in words:
            value = value.get(word) if isinstance(value, dict) else None
        if isinstance(value, dict) and query.get("recursive") != "true":
            return "".join(f"{name}/\n" if isinstance(inner, dict) else f"{name}\n" for name, inner in value.items())
        return value


def etag_of(body: bytes) -> str:
    """Return the ETag of an answer: of the value alone, so equal values have equal ones."""
    return hashlib.sha256(body).hexdigest()[:16]
