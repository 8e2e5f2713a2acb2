"""One client's connection: reading requests, handing them to the site, sending answers as the site wants them sent."""

from __future__ import annotations

import re
import select
import socket
import struct
import time
import traceback
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, cast

from rehearsal.doors.access import find_host
from rehearsal.doors.errors import ServiceError
from rehearsal.doors.http_messages import FileBody, Request, Response, Wire, parse_target, refusal
from rehearsal.doors.request_body import RequestBody, Reset

if TYPE_CHECKING:
    from rehearsal.doors.http_server import HttpServer

_SMALL_BYTES = 128 << 10
# A stream with a speed limit is sent in pieces of up to a 50th of a second: fewer wake-ups leave the processor to the
# clients. The first ones are small, so that the first byte comes when the latency says.
_PIECES_PER_S, _FIRST_PIECE_BYTES = 50, 16 << 10
# What is left of a request that was answered early is read up to here; beyond it the connection ends.
_DRAIN_BYTES = 4 << 20
# http.HTTPStatus has no 499; Cloud Storage answers with it when an upload was cancelled.
_CLIENT_CLOSED_REQUEST = 499
# More than any file has; Python refuses to read numbers of thousands of digits.
_MAX_LENGTH_DIGITS = 18
_LINE_ENDS = re.compile(r"[\r\n\0]")


class Connection(BaseHTTPRequestHandler):
    """http.server's handler: one object per connection, one call of `_serve` per request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rbufsize = 1 << 16
    # An idle connection that a client forgot must not hold a thread for ever.
    timeout = 600

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the access log has it."""

    def handle(self) -> None:
        """Serve until the client leaves."""
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
        self._answered = False
        try:
            if not is_length:
                # Where the next request would start is unknown.
                self.close_connection = True
                raise ServiceError("INVALID_ARGUMENT", f"Invalid Content-Length: {length!r}")
            path, query, values = parse_target(self.path)
            host = headers.get("host") or "127.0.0.1"
            endpoint = f"{'https' if find_host(host) else 'http'}://{host}"
            request = Request(self.command, path, query, headers, self._body, endpoint, values, self._is_there)
            server.site.serve(request, self._send)
        except ServiceError as error:
            self._send(refusal(error))
        except Reset:
            self._reset()
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:  # noqa: BLE001 - an entry: a fault of ours is kept, and told as INTERNAL
            server.failures.append(traceback.format_exc())
            self.close_connection = True
            if not self._answered:
                self._send(refusal(ServiceError("INTERNAL", f"the rehearsal's own fault: {error!r}")))

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _serve

    def _is_there(self) -> bool:
        # The socket has a timeout, with which recv waits even when it is asked not to.
        try:
            readable = select.select([self.connection], [], [], 0)[0]
            return not readable or bool(self.connection.recv(1, socket.MSG_PEEK))
        except (OSError, ValueError):
            return False

    # --- the answer ---

    def _send(self, response: Response, wire: Wire | None = None) -> None:
        """Read what is left of the request, then send the answer."""
        self._answered = True
        body = self._body
        body.reset_at = None
        if body.left is None or body.left > _DRAIN_BYTES:
            self.close_connection = True
        else:
            while body.left:
                body.read(_SMALL_BYTES)
        try:
            self._write(response, wire or Wire())
        finally:
            response.close()

    def _write(self, response: Response, wire: Wire) -> None:
        length = response.length
        if wire.truncate_at is not None and wire.quietly:
            length = min(length, wire.truncate_at)
        status = response.status
        reason = "Client Closed Request" if status == _CLIENT_CLOSED_REQUEST else HTTPStatus(status).phrase
        lines = [f"HTTP/1.1 {status} {reason}", f"Date: {self.date_time_string()}"]
        # A client's own texts come back in headers: a line of theirs is none of ours.
        lines += [f"{name}: {_LINE_ENDS.sub(' ', value)}" for name, value in response.headers.items()]
        if status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            lines.append(f"Content-Length: {length}")
        if self.close_connection:
            lines.append("Connection: close")
        head = "\r\n".join([*lines, "", ""]).encode("utf-8")
        stop = min(at for at in (length, wire.truncate_at, wire.reset_at) if at is not None)
        if self.command == "HEAD" or status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            self.connection.sendall(head)
            return
        if isinstance(response.body, FileBody) and stop > _SMALL_BYTES and wire.corrupt_at is None:
            self.connection.sendall(head)
            for start, count in _paced(stop, wire.bytes_per_s):
                # Without Python touching its bytes.
                response.num_sent += self.connection.sendfile(response.body.file, response.body.start + start, count)
        else:
            content = _read_body(response, stop, wire.corrupt_at)
            if wire.bytes_per_s is None:
                self.connection.sendall(head + content)
                response.num_sent = len(content)
            else:
                self.connection.sendall(head)
                for start, count in _paced(len(content), wire.bytes_per_s):
                    self.connection.sendall(memoryview(content)[start : start + count])
                    response.num_sent += count
        if wire.reset_at is not None and stop == wire.reset_at:
            raise Reset
        if stop < length:
            self.close_connection = True

    def _reset(self) -> None:
        """End the connection with a reset instead of an orderly end."""
        self.close_connection = True
        # Closing with a linger time of zero sends RST: https://man7.org/linux/man-pages/man7/socket.7.html
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # The reading side holds the socket open too.
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
        content = b""
        while len(content) < length and (piece := response.body.file.read(length - len(content))):
            content += piece
    else:
        content = response.body[:length]
    if corrupt_at is not None and corrupt_at < len(content):
        flipped = bytearray(content)
        flipped[corrupt_at] ^= 1
        content = bytes(flipped)
    return content
