"""The server of `shardline ui` on a free port of this machine, and requests to it byte by byte."""

from __future__ import annotations

import faulthandler
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from inspection.ui.app import build_app
from inspection.ui.guard import allowed_hosts
from inspection.ui.server import listen
from inspection.ui.store import RunStore

# Catches a hang; a loaded machine is slow.
TIMEOUT_S = 120
_LONGEST_END_S = 20
# Pages that run this first ask again after a tenth of the time; they wait for an answer as long as ever.
IMPATIENT = """
const timer = globalThis.setTimeout;
globalThis.setTimeout = (act, ms, ...rest) => timer(act, ms / 10, ...rest);
"""


@dataclass
class Answer:
    """What the server said."""

    status: int
    headers: dict[str, str]
    """By their names in lower case."""
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()

    def json(self) -> Any:
        return json.loads(self.content)


@dataclass
class Serving:
    """A server that runs."""

    port: int
    store: RunStore
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, *, method: str = "GET", host: str | None = None) -> Answer:
        """Send a request whose path is not touched on the way."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            connection.putrequest(method, path, skip_host=host is not None)
            if host is not None:
                connection.putheader("Host", host)
            connection.endheaders()
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def body(self, path: str) -> str:
        """Return all sections of a page that follows what runs."""
        return "".join(self.get(path)["parts"].values())

    def get(self, path: str) -> Any:
        """Return the JSON at a path."""
        answer = self.ask(path)
        assert answer.status == 200, answer.text
        return answer.json()


@contextmanager
def serving(root: Path | str, **options: Any) -> Iterator[Serving]:
    """Serve a root in a thread; `stop` of what is yielded ends it before."""
    store = RunStore(str(root), **options)
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(
        build_app(store, hosts=allowed_hosts("127.0.0.1", "127.0.0.1")),
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    # The command ends its process, whatever is being read (inspection/ui/server.py): nothing hangs on this thread.
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    found = Serving(listener.getsockname()[1], store)

    def watch() -> None:
        found.stop.wait()
        server.should_exit = True

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        found.stop.set()
        watcher.join()
        thread.join(_LONGEST_END_S)
        if thread.is_alive():
            # Seen twice in whole suites, after the last test of a process: where it waits is worth knowing.
            faulthandler.dump_traceback(all_threads=True)
        listener.close()
