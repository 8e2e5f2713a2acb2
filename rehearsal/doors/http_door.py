"""The HTTP door: REST of all services, Cloud Storage, and the endpoints that are no gRPC service (regions).

Reached directly (api_endpoint=http://127.0.0.1:PORT) and, through the guard's TLS port, as any of Google's hosts.
"""

from __future__ import annotations

from collections.abc import Callable

from rehearsal.doors.calls import Dispatcher
from rehearsal.doors.errors import ServiceError
from rehearsal.doors.http_messages import Request, Response, Send, Site, json_response, refusal
from rehearsal.doors.http_server import HttpServer
from rehearsal.doors.locked import Locked
from rehearsal.doors.messages import to_dict
from rehearsal.doors.routes import Routes, make_request
from rehearsal.doors.services import methods

STORAGE_HOST = "storage.googleapis.com"
Endpoint = Callable[[Request], Response | None]


class HttpDoor:
    """An HTTP server on a free port of 127.0.0.1.

    Args:
        dispatcher: Where calls go.
        endpoints: What is asked before the services' routes: (request) -> a response, or None for "not mine".
        storage: What answers as storage.googleapis.com; None: nobody.
    """

    def __init__(self, dispatcher: Dispatcher, endpoints: tuple[Endpoint, ...], storage: Site | None = None) -> None:
        self._dispatcher, self._storage, self._endpoints = dispatcher, storage, endpoints
        self._routes = Routes(methods())
        self._server = HttpServer(Locked(self, dispatcher.access, self._log), dispatcher.failures)
        self.port, self.endpoint = self._server.port, self._server.endpoint

    def start(self) -> None:
        """Begin to serve."""
        self._server.start()

    def stop(self) -> None:
        """Stop serving and end all connections."""
        self._server.stop()

    def serve(self, request: Request, send: Send) -> None:
        """Answer one request, of somebody who may ask."""
        if self._storage is not None and request.host == STORAGE_HOST:
            self._storage.serve(request, send)
        else:
            send(self._answer(request))

    def _ask(self, request: Request, endpoints: tuple[Endpoint, ...]) -> Response | None:
        try:
            for endpoint in endpoints:
                if (response := endpoint(request)) is not None:
                    self._log(request, str(response.status))
                    return response
        except ServiceError as error:
            self._log(request, error.code)
            return refusal(error)
        return None

    def _answer(self, request: Request) -> Response:
        if (response := self._ask(request, self._endpoints)) is not None:
            return response
        try:
            found = self._routes.find(request.method, request.path)
            if found is None:
                self._log(request, "404")
                raise ServiceError(
                    "NOT_FOUND",
                    f"the rehearsal's cloud has no {request.method} {request.headers.get('host')}{request.path}",
                )
            route, fields = found
            message = make_request(route, fields, request.values, request.value())
            return json_response(to_dict(self._dispatcher.call(route.method, message, request.caller)))
        except ServiceError as error:
            return refusal(error)

    def _log(self, request: Request, status: str) -> None:
        caller = request.caller
        self._dispatcher.log.add("rest", request.method, caller.host + request.path, status, caller.user_agent)


def answer_allowed_locations(request: Request) -> Response | None:
    """Say that a service account may be used from everywhere; google-auth asks iamcredentials for it."""
    if not request.path.endswith("/allowedLocations") or request.host not in ("", "iamcredentials.googleapis.com"):
        return None
    return json_response({"locations": [], "encodedLocations": "0x0"})
