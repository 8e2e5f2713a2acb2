"""The HTTP server of the local cloud: sockets and threads for a site (REST of all services, or buckets alone).

http.server's threads, one a connection, kept alive. A file is sent by sendfile without Python touching its bytes, and
what limits small requests is the clients' own Python. It binds to 127.0.0.1 and to nothing else.
"""

from __future__ import annotations

import socket
import threading
import traceback
from http.server import ThreadingHTTPServer
from typing import Any

from rehearsal.doors.connection import Connection
from rehearsal.doors.http_messages import Site

HOST = "127.0.0.1"


class HttpServer(ThreadingHTTPServer):
    """A listening socket and its threads; it knows the open connections, so that an end is an end.

    Args:
        site: What answers.
        failures: Told of the server's own faults, as tracebacks.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, site: Site, failures: list[str]) -> None:
        self.site, self.failures = site, failures
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        super().__init__((HOST, 0), Connection)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="http", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.server_address[1])

    @property
    def endpoint(self) -> str:
        """The address, `http://127.0.0.1:PORT`."""
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stop accepting, end all connections and let go of the port."""
        self.shutdown()
        with self._open_lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
        self.server_close()
        self._thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection, then serve it in a thread."""
        with self._open_lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection and close it."""
        with self._open_lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep what went wrong in the server itself; a client that left is no such thing (Connection.handle)."""
        self.failures.append(traceback.format_exc())
