"""The HTTP door: REST of all services, and the few endpoints that are no gRPC service (token, regions, registry).

http.server's threads, one a connection, kept alive. Reached directly (api_endpoint=http://127.0.0.1:PORT) and, through
the guard's TLS port, as any of Google's hosts.
"""

from __future__ import annotations

import select
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from rehearsal.doors.access import TOKEN_URI, check_origin
from rehearsal.doors.calls import Desk
from rehearsal.doors.endpoints import Answer, Asked, Endpoint
from rehearsal.doors.errors import ServiceError
from rehearsal.doors.messages import to_dict
from rehearsal.doors.routes import Routes, make_request
from rehearsal.doors.services import methods
from rehearsal.resources.world import Caller

_HOST = "127.0.0.1"


class HttpDoor:
    """An HTTP server on a free port of 127.0.0.1.

    Args:
        desk: Where calls go.
        endpoints: What is asked before the services' routes: (asked) -> an answer, or None for "not mine".
    """

    def __init__(self, desk: Desk, endpoints: tuple[Endpoint, ...]) -> None:
        self.desk, self.endpoints = desk, endpoints
        self.routes = Routes(methods())
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="http-door", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and end all connections."""
        self._server.shutdown()
        self._server.hang_up()
        self._server.server_close()
        self._thread.join()

    def answer(self, asked: Asked) -> Answer:
        """Answer one request."""
        access = self.desk.access
        try:
            if (asked.verb, f"https://{asked.host.removesuffix(':443')}{asked.path}") == ("POST", TOKEN_URI):
                check_origin(asked.headers)
                status, value = access.exchange(asked.body)
                self._log(asked, str(status))
                return Answer.of_json(value, status)
            access.check(asked.headers)
        except ServiceError as error:
            self._log(asked, error.code)
            return Answer.of_json(error.to_json(), error.http_status)
        for endpoint in self.endpoints:
            if (answer := endpoint(asked)) is not None:
                self._log(asked, str(answer.status))
                return answer
        try:
            found = self.routes.find(asked.verb, asked.path)
            if found is None:
                self._log(asked, "404")
                raise ServiceError("NOT_FOUND", f"the rehearsal's cloud has no {asked.verb} {asked.host}{asked.path}")
            route, fields = found
            request = make_request(route, fields, asked.query, asked.json())
            return Answer.of_json(to_dict(self.desk.call(route.method, request, asked.caller)))
        except ServiceError as error:
            return Answer.of_json(error.to_json(), error.http_status)

    def _log(self, asked: Asked, status: str) -> None:
        self.desk.log.add("rest", asked.verb, asked.host + asked.path, status, asked.caller.user_agent)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, door: HttpDoor) -> None:
        self.door = door
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__((_HOST, 0), _Connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no fault; what the desk does wrong it keeps itself."""

    def hang_up(self) -> None:
        with self._lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 600

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the access log has it."""

    def _serve(self) -> None:
        door = cast("_Server", self.server).door
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self._body(headers)
        parts = urlsplit(self.path)
        agent = " ".join(headers[key] for key in ("user-agent", "x-goog-api-client") if key in headers)
        host = headers.get("host", "")
        caller = Caller("rest", agent, host, self._is_there)
        query = parse_qs(parts.query, keep_blank_values=True)
        answer = door.answer(Asked(self.command, host, parts.path, query, headers, body, caller))
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _serve

    def _body(self, headers: dict[str, str]) -> bytes:
        if "chunked" not in headers.get("transfer-encoding", "").lower():
            return self.rfile.read(int(headers.get("content-length", "0")))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            continue
        return b"".join(chunks)

    def _is_there(self) -> bool:
        # The socket has a timeout, with which recv waits even when it is asked not to.
        try:
            readable = select.select([self.connection], [], [], 0)[0]
            return not readable or bool(self.connection.recv(1, socket.MSG_PEEK))
        except (OSError, ValueError):
            return False
