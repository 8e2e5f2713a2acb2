"""Metadata server of a machine: its project, its service account's token, and the notice that it is taken away.

Keys: https://docs.cloud.google.com/compute/docs/metadata/predefined-metadata-keys. Queries, wait_for_change among them:
https://docs.cloud.google.com/compute/docs/metadata/querying-metadata. Only what is named there is answered, and only to
who sends `Metadata-Flavor: Google`; who comes by another host's name, or as a proxy (X-Forwarded-For), is refused. So
is another user of this computer: the token opens the doors.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

_ADDRESS, _NAME = "169.254.169.254", "metadata.google.internal"
LOOPBACK = "127.0.0.1"
_ROOT = "/computeMetadata/v1/"
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_FLAVOR = "Metadata-Flavor: Google"
_IDLE_S = 600.0


@dataclass(frozen=True)
class Identity:
    """What a machine's metadata server says of the world around it."""

    project: str
    """Project id: clients' default project."""
    project_number: str
    zone: str
    machine_type: str
    email: str
    """Of the service account."""
    token: Callable[[], str]
    """Return an access token that the doors take."""


class Metadata:
    """Values of one machine; used in the event loop that serves them."""

    def __init__(self, name: str, identity: Identity, refuse: Callable[[str], None]) -> None:
        self._identity, self._refuse = identity, refuse
        self._changed = asyncio.Event()
        account = {"aliases": ["default"], "email": identity.email, "scopes": list(_SCOPES)}
        number = str(zlib.crc32(f"{identity.project} {name}".encode()))
        place = f"projects/{identity.project_number}"
        self._values: dict[str, Any] = {
            "project": {"project-id": identity.project, "numeric-project-id": int(identity.project_number)},
            "instance": {
                "id": int(number),
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

    def preempt(self) -> None:
        """Say that the machine is taken away; who waits for it is answered."""
        self._values["instance"]["preempted"] = "TRUE"
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        is_own = _is_own(writer.get_extra_info("peername"), writer.get_extra_info("sockname"))
        with (
            contextlib.closing(writer),
            contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError),
        ):
            while is_own:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _IDLE_S)
                status, kind, body = await self._answer(head.decode("latin-1"))
                # Of the value alone, so that the same value has the same.
                etag = hashlib.sha256(body).hexdigest()[:16]
                writer.write(
                    f"HTTP/1.1 {status}\r\n{_FLAVOR}\r\nServer: Metadata Server for VM\r\nContent-Type: {kind}\r\n"
                    f"ETag: {etag}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                    + body
                )
                await writer.drain()

    async def _answer(self, head: str) -> tuple[str, str, bytes]:
        request, *lines = head.split("\r\n")
        method, target, *_ = [*request.split(" "), "", ""]
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        text = "application/text"
        try:
            parts = urlsplit(target)
        except ValueError:
            return "400 Bad Request", text, b"no target\n"
        if (refusal := self._refusal(method, headers)) is not None:
            self._refuse(f"metadata server: {refusal}: {target}")
            return "403 Forbidden", text, f"{refusal}\n".encode()
        if parts.path == "/":
            return "200 OK", text, b"computeMetadata/\n"
        query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        if query.get("wait_for_change") == "true":
            await self._wait(parts.path, query)
        found = self._find(parts.path, query)
        if found is None:
            return "404 Not Found", text, b"not found\n"
        is_json = isinstance(found, dict | list) or query.get("alt") == "json"
        if not is_json:
            return "200 OK", text, str(found).encode()
        return "200 OK", "application/json", json.dumps(found).encode()

    @staticmethod
    def _refusal(method: str, headers: Mapping[str, str]) -> str | None:
        if method != "GET":
            return "only GET is rehearsed"
        if headers.get("metadata-flavor") != "Google":
            return "no header Metadata-Flavor: Google"
        if "x-forwarded-for" in headers or "origin" in headers:
            return "a request of a proxy or of a web page"
        host = headers.get("host", "").partition(":")[0]
        return None if host in (_ADDRESS, _NAME, "metadata", LOOPBACK) else f"asked as {host}"

    async def _wait(self, path: str, query: Mapping[str, str]) -> None:
        """Wait until a value is another than the one that is known, as long as the query says."""
        known = query.get("last_etag")
        found = self._find(path, query)
        body = json.dumps(found) if isinstance(found, dict | list) or query.get("alt") == "json" else str(found)
        if known not in (None, "0") and known != hashlib.sha256(body.encode()).hexdigest()[:16]:
            return
        if known == "0":
            return
        limit = query.get("timeout_sec", "")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), float(limit) if limit.isdecimal() else None)

    def _find(self, path: str, query: Mapping[str, str]) -> Any:
        """Return a value, or a folder's list; None: there is none."""
        if not path.startswith(_ROOT):
            return None
        words = [word for word in path.removeprefix(_ROOT).split("/") if word]
        if words[:2] == ["instance", "service-accounts"] and len(words) == 4:
            if words[2] not in self._values["instance"]["service-accounts"]:
                return None
            if words[3] == "token":
                return {
                    "access_token": self._identity.token(),
                    "expires_in": 3599,
                    "token_type": "Bearer",
                }
            if words[3] == "scopes":
                return "\n".join(_SCOPES)
        found: Any = self._values
        for word in words:
            found = found.get(word) if isinstance(found, dict) else None
        if isinstance(found, dict) and query.get("recursive") != "true":
            return "".join(f"{name}/\n" if isinstance(value, dict) else f"{name}\n" for name, value in found.items())
        return found


def _is_own(peer: tuple[str, int], here: tuple[str, int]) -> bool:
    """Whether a connection is of this user: all users of this computer share its loopback.

    Args:
        peer: Address and port of the client.
        here: Address and port of this end.

    /proc/net/tcp: https://man7.org/linux/man-pages/man5/proc_pid_net.5.html. Where there is none, nobody is known.
    """
    ports = f"{peer[1]:04X}", f"{here[1]:04X}"
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", name).read_text().splitlines()[1:]:
                _, local, remote, _, _, _, _, uid, *_ = line.split()
                if (local.rpartition(":")[2], remote.rpartition(":")[2]) == ports:
                    return int(uid) == os.getuid()
    return False
