"""Preemption notices of Compute Engine's metadata server, for Compute Engine and Vertex AI.

`instance/preempted` becomes TRUE seconds before the stop signal, if there is one. See
https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption and
https://cloud.google.com/compute/docs/metadata/querying-metadata#waitforchange.
"""

from __future__ import annotations

import http.client
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

HOST_VARIABLE = "GCE_METADATA_HOST"
_HOST = "metadata.google.internal"
_PATH = "/computeMetadata/v1/instance/preempted"
# The server responds after this time if nothing changed; the connection times out `_SLACK_S` later.
_POLL_S = 60
_SLACK_S = 15
# Minimum pause between polls, in case the server responds early.
_PAUSE_S = 0.2
# Pauses while the server does not respond.
_RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)
_PRODUCT_PATH = Path("/sys/class/dmi/id/product_name")
# Google's guest agent adds the server's name; some containers cannot read the product name.
_HOSTS_PATH = Path("/etc/hosts")


def metadata_host() -> str | None:
    """Return the metadata server's host; None if the variable is unset and this is not Compute Engine."""
    if host := os.environ.get(HOST_VARIABLE):
        return host
    if _read(_PRODUCT_PATH).strip() == "Google Compute Engine":
        return _HOST
    lines = (line.partition("#")[0].split() for line in _read(_HOSTS_PATH).splitlines())
    return _HOST if any(_HOST in fields[1:] for fields in lines) else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


class NoticeWatch:
    """Polls for the notice in a thread and calls `on_notice` once."""

    def __init__(self, host: str, on_notice: Callable[[], None], log: Callable[[str], None]) -> None:
        self._host, self._on_notice, self._log = host, on_notice, log
        self._closed = threading.Event()
        # The server is link-local: no proxy.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        threading.Thread(target=self._watch, name="preemption notice", daemon=True).start()

    def close(self) -> None:
        """Stop polling."""
        self._closed.set()

    def _watch(self) -> None:
        # The first response is immediate; later ones wait for a change.
        etag: str | None = None
        failures = 0
        while not self._closed.wait(_PAUSE_S):
            try:
                value, etag = self._poll(etag)
            except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
                if failures == len(_RETRY_S):
                    self._log(f"the metadata server {self._host} does not say whether this machine goes away: {error}")
                self._closed.wait(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
                etag, failures = None, failures + 1
                continue
            failures = 0
            if value == "TRUE":
                self._on_notice()
                return

    def _poll(self, etag: str | None) -> tuple[str, str]:
        """Return the value and its etag; with an earlier etag, wait for a change or the poll's time-out."""
        query = ""
        if etag is not None:
            query = f"?wait_for_change=true&timeout_sec={_POLL_S}" + (f"&last_etag={etag}" if etag else "")
        request = urllib.request.Request(f"http://{self._host}{_PATH}{query}", headers={"Metadata-Flavor": "Google"})
        with self._opener.open(request, timeout=_POLL_S + _SLACK_S) as response:
            return response.read().decode().strip(), response.headers.get("ETag", "")
