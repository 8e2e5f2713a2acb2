"""HTTP/1.1 server on loopback: a thread per connection, sendfile, simulated network faults."""

from __future__ import annotations

import re
import select
import socket
import struct
import threading
import time
import traceback
from collections.abc import Iterator
from http import HTTPStatus
from http.client import responses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from rehearsal.errors import ServiceError
from rehearsal.servers.access import find_host
from rehearsal.servers.http import (
    FileBody,
    Request,
    RequestBody,
    Reset,
    Response,
    Serve,
    Wire,
    error_response,
    parse_target,
)

HOST = "127.0.0.1"
_SMALL_BYTES = 128 << 10
# With a speed limit, streams are sent in pieces of up to 1/50 s, which limits CPU use. The first pieces are small, so
# that the first byte arrives in time.
_PIECES_PER_S, _FIRST_PIECE_BYTES = 50, 16 << 10
# The rest of a request with an early answer is read up to this size; if it is longer, the connection is closed.
_DRAIN_BYTES = 4 << 20
# Python does not parse numbers of thousands of digits.
_MAX_LENGTH_DIGITS = 18
_LINE_ENDS = re.compile(r"[\r\n\0]")


class HttpServer(ThreadingHTTPServer):
    """A listening socket on a free port of 127.0.0.1 and its threads; `stop` ends the open connections too.

    `failures` gets the tracebacks of the server's own faults.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, serve: Serve, failures: list[str]) -> None:
        self.serve, self.failures = serve, failures
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        super().__init__((HOST, 0), _Connection)
        self.port = int(self.server_address[1])
        self.endpoint = f"http://{HOST}:{self.port}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="http", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stop accepting, end all connections and close the port."""
        # `shutdown` waits for ever for a thread that was never started.
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
        with self._open_lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Register the connection, then serve it in a thread."""
        with self._open_lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Unregister and close the connection."""
        with self._open_lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Record a fault of the server itself."""
        self.failures.append(traceback.format_exc())


class _Connection(BaseHTTPRequestHandler):
    """One client's connection: http.server makes one object per connection and calls `_serve` per request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rbufsize = 1 << 16
    # Ends the threads of idle connections.
    timeout = 600

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing: the access log has each request."""

    def handle(self) -> None:
        """Serve until the client disconnects."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _serve(self) -> None:
        server = cast("HttpServer", self.server)
        headers = {name.lower(): value for name, value in self.headers.items()}
        chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length", "0")
        is_length = length.isascii() and length.isdigit() and len(length) <= _MAX_LENGTH_DIGITS
        self._body = RequestBody(self.rfile, None if chunked else int(length) if is_length else 0)
        self._has_answered = False
        try:
            if not is_length:
                # The start of the next request is unknown.
                self.close_connection = True
                raise ServiceError("INVALID_ARGUMENT", f"Invalid Content-Length: {length!r}")
            path, query = parse_target(self.path)
            host = headers.get("host") or HOST
            endpoint = f"{'https' if find_host(host) else 'http'}://{host}"
            request = Request(self.command, path, query, headers, self._body, endpoint, self._is_connected)
            server.serve(request, self._send)
        except ServiceError as error:
            self._send(error_response(error))
        except Reset:
            self._reset()
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:  # noqa: BLE001 - entry point: a fault of ours is recorded, and answered with INTERNAL
            server.failures.append(traceback.format_exc())
            self.close_connection = True
            if not self._has_answered:
                self._send(error_response(ServiceError("INTERNAL", f"the rehearsal's own fault: {error!r}")))

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _serve

    def _is_connected(self) -> bool:
        # With a socket timeout, recv would wait.
        try:
            readable = select.select([self.connection], [], [], 0)[0]
            return not readable or bool(self.connection.recv(1, socket.MSG_PEEK))
        except (OSError, ValueError):
            return False

    def _send(self, response: Response, wire: Wire | None = None) -> None:
        """Read the rest of the request, then send the answer."""
        self._has_answered = True
        body = self._body
        body.reset_at = None
        if body.remaining is None or body.remaining > _DRAIN_BYTES:
            self.close_connection = True
        else:
            while body.remaining:
                body.read(_SMALL_BYTES)
        try:
            self._write(response, wire or Wire())
        finally:
            response.close()

    def _write(self, response: Response, wire: Wire) -> None:
        status, length = response.status, response.length
        if wire.truncate_at is not None and wire.quietly:
            length = min(length, wire.truncate_at)
        # 499 (Cloud Storage) and codes of fault rules have no name in `http`.
        lines = [f"HTTP/1.1 {status} {responses.get(status, 'Error')}"]
        lines.append(f"Date: {self.date_time_string()}")
        # Prevents header injection: values may come from clients.
        lines += [f"{name}: {_LINE_ENDS.sub(' ', value)}" for name, value in response.headers.items()]
        has_body = status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
        if has_body:
            lines.append(f"Content-Length: {length}")
        if self.close_connection:
            lines.append("Connection: close")
        head = "\r\n".join([*lines, "", ""]).encode("utf-8")
        if self.command == "HEAD" or not has_body:
            self.connection.sendall(head)
            return
        stop = min(position for position in (length, wire.truncate_at, wire.reset_at) if position is not None)
        if isinstance(response.body, FileBody) and stop > _SMALL_BYTES and wire.corrupt_at is None:
            self.connection.sendall(head)
            for start, count in _paced(stop, wire.bytes_per_s):
                response.num_sent += self.connection.sendfile(response.body.file, response.body.start + start, count)
        else:
            content = _read_body(response, stop, wire.corrupt_at)
            if wire.bytes_per_s is None:
                # One segment for head and body.
                head += content
                response.num_sent = len(content)
            self.connection.sendall(head)
            for start, count in _paced(len(content) - response.num_sent, wire.bytes_per_s):
                self.connection.sendall(memoryview(content)[start : start + count])
                response.num_sent += count
        if wire.reset_at is not None and stop == wire.reset_at:
            raise Reset
        if stop < length:
            self.close_connection = True

    def _reset(self) -> None:
        """End the connection with a reset instead of an orderly end."""
        self.close_connection = True
        # SO_LINGER with zero time sends RST on close: https://man7.org/linux/man-pages/man7/socket.7.html
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # rfile also keeps the socket open.
        self.rfile.close()
        self.connection.close()


def _paced(length: int, bytes_per_s: float | None) -> Iterator[tuple[int, int]]:
    """Yield start and length of the pieces of a stream, each when the speed limit allows its last byte."""
    if bytes_per_s is None:
        yield 0, length
        return
    began, start = time.monotonic(), 0
    most = max(1, int(bytes_per_s / _PIECES_PER_S))
    while start < length:
        count = min(length - start, most, max(_FIRST_PIECE_BYTES, start))
        time.sleep(max(0.0, (start + count) / bytes_per_s - (time.monotonic() - began)))
        yield start, count
        start += count


def _read_body(response: Response, length: int, corrupt_at: int | None) -> bytes:
    if isinstance(response.body, FileBody):
        response.body.file.seek(response.body.start)
        content = response.body.file.read(length)
    else:
        content = response.body[:length]
    if corrupt_at is not None and corrupt_at < len(content):
        flipped = bytearray(content)
        flipped[corrupt_at] ^= 1
        content = bytes(flipped)
    return content
