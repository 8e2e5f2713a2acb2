"""The bucket server as the rest of the local cloud sees it: whether a bucket is there, and storage.googleapis.com.

Clients reach the bucket server through the proxy, as storage.googleapis.com.
"""

from __future__ import annotations

import json
import re
from http.client import HTTPConnection
from urllib.parse import quote, urlencode, urlsplit

from rehearsal.doors.endpoints import Answer, Asked
from rehearsal.doors.errors import CODES, ServiceError

_HOST = re.compile(r"storage\.googleapis\.com(?::443)?")
_TIMEOUT_S = 60.0
# Of the connection, not of the message; and the answer's length, which the door sets.
_DROPPED = {"connection", "keep-alive", "transfer-encoding", "content-length", "te", "upgrade"}


class Buckets:
    """The bucket server at an address; "" where there is none. An Endpoint of the HTTP door."""

    def __init__(self, endpoint: str, token: str = "") -> None:
        self._address = urlsplit(endpoint).netloc
        self._headers = {"authorization": f"Bearer {token}"}

    def has(self, uri: str) -> bool:
        """Whether the bucket of a gs:// URI is there; True where nobody says that it is not."""
        if not self._address:
            return True
        bucket = uri.removeprefix("gs://").split("/")[0]
        try:
            return self._send("GET", f"/storage/v1/b/{quote(bucket)}", self._headers, b"").status != 404
        except OSError:
            return True

    def has_objects(self, uri: str) -> bool:
        """Whether a gs:// folder holds an object; True where nobody says that it does not."""
        if not self._address:
            return True
        bucket, _, folder = uri.removeprefix("gs://").partition("/")
        prefix = f"{folder.rstrip('/')}/" if folder else ""
        target = f"/storage/v1/b/{quote(bucket)}/o?{urlencode({'prefix': prefix, 'maxResults': 1})}"
        try:
            answer = self._send("GET", target, self._headers, b"")
        except OSError:
            return True
        return answer.status == 200 and bool(json.loads(answer.body).get("items"))

    def __call__(self, asked: Asked) -> Answer | None:
        """Hand on what is meant for storage.googleapis.com."""
        if _HOST.fullmatch(asked.host) is None:
            return None
        target = quote(asked.path, safe="/%") + (f"?{urlencode(asked.query, doseq=True)}" if asked.query else "")
        try:
            return self._send(asked.verb, target, asked.headers, asked.body)
        except OSError as error:
            gone = ServiceError("UNAVAILABLE", f"there is no bucket server: {error}")
            return Answer.of_json(gone.to_json(), CODES["UNAVAILABLE"][1])

    def _send(self, verb: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        connection = HTTPConnection(self._address or "127.0.0.1:9", timeout=_TIMEOUT_S)
        try:
            kept = {name: value for name, value in headers.items() if name not in _DROPPED}
            connection.request(verb, target, body=body or None, headers=kept)
            response = connection.getresponse()
            answer = {name: value for name, value in response.getheaders() if name.lower() not in _DROPPED}
            return Answer(response.status, response.read(), answer)
        finally:
            connection.close()
