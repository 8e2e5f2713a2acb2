"""The platform's notice that this machine is taken away: Compute Engine's metadata server says so before it happens.

`instance/preempted` turns TRUE at once, seconds before a signal (if one comes at all; under Vertex AI and on Compute
Engine it is the same server). See https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption and
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
# The server answers after this long when nothing has changed; the connection is given a little longer.
_POLL_S = 60
_SLACK_S = 15
# Between two questions at least, should a server answer at once what it was to hold back.
_PAUSE_S = 0.2
# Between tries while the server does not answer.
_RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)
_PRODUCT_PATH = Path("/sys/class/dmi/id/product_name")
# Google's guest agent writes the server's name there; not all containers see the product's name.
_HOSTS_PATH = Path("/etc/hosts")


def metadata_host() -> str | None:
    """Return the metadata server's host and port; None where there is none: the variable is unset and no GCE."""
    if host := os.environ.get(HOST_VARIABLE):
        return host
    if _read(_PRODUCT_PATH).strip() == "Google Compute Engine":
        return _HOST
    lines = (line.partition("#")[0].split() for line in _read(_HOSTS_PATH).splitlines())
    return _HOST if any(_HOST in words[1:] for words in lines) else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


class NoticeWatch:
    """Waits for the notice in a thread, by long polls, and calls once when it has come."""

    def __init__(self, host: str, on_notice: Callable[[], None], log: Callable[[str], None]) -> None:
        self._host, self._on_notice, self._log = host, on_notice, log
        self._done = threading.Event()
        # No proxy: this server is on this machine's own link.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        threading.Thread(target=self._watch, name="preemption notice", daemon=True).start()

    def close(self) -> None:
        """Ask no more."""
        self._done.set()

    def _watch(self) -> None:
        # The first answer comes at once; from then on the server holds it back until there is a newer one.
        known: str | None = None
        failures = 0
        while not self._done.wait(_PAUSE_S):
            try:
                value, known = self._ask(known)
            except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
                if failures == len(_RETRY_S):
                    self._log(f"the metadata server {self._host} does not say whether this machine goes away: {error}")
                self._done.wait(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
                known, failures = None, failures + 1
                continue
            failures = 0
            if value == "TRUE":
                self._on_notice()
                return

    def _ask(self, known: str | None) -> tuple[str, str]:
        """Return the value and its etag; where an earlier etag is known, once it has changed or the poll is over."""
        query = ""
        if known is not None:
            query = f"?wait_for_change=true&timeout_sec={_POLL_S}" + (f"&last_etag={known}" if known else "")
        request = urllib.request.Request(f"http://{self._host}{_PATH}{query}", headers={"Metadata-Flavor": "Google"})
        with self._opener.open(request, timeout=_POLL_S + _SLACK_S) as answer:
            return answer.read().decode().strip(), answer.headers.get("ETag", "")
