"""The gRPC door: every method of every service, without TLS (the guard's port puts that in front).

Methods are served as if requests were streams of one message, which look the same on the wire: grpc reads the message
of a unary method before its handler is called, that of a stream when the handler asks, once the token was checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn

import grpc

from rehearsal.doors.calls import Dispatcher
from rehearsal.doors.errors import CODES, ServiceError
from rehearsal.doors.messages import deserialize, serialize
from rehearsal.doors.services import Method, methods
from rehearsal.resources.cloud_state import Caller

# A held Get keeps its thread: more than a rehearsal has jobs under way.
_THREADS = 64
# That of Google's front ends, which say "Request payload size exceeds the limit: 10485760 bytes."
_MAX_REQUEST_BYTES = 10 << 20
_STATUS = {code.value[0]: code for code in grpc.StatusCode}


class GrpcDoor:
    """A gRPC server on a free port of 127.0.0.1."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        options = [
            ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix="grpc-door"), handlers=[_Handlers(self)], options=options
        )
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    def start(self) -> None:
        """Begin to serve."""
        self._server.start()

    def stop(self) -> None:
        """End all calls and stop serving."""
        self._server.stop(grace=None).wait()

    def call(self, method: Method, requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
        """Answer one call; its message is read and parsed for who may call."""
        self._admit(method.path, context)
        try:
            if (message := next(requests, None)) is None:
                raise ServiceError("INVALID_ARGUMENT", "The call brings no message.")
            request = deserialize(method.request_type, message)
            return self._dispatcher.call(method, request, _caller(context))
        except ServiceError as error:
            _abort(context, error)

    def refuse(self, path: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
        """Say that the local cloud does not have a method."""
        self._admit(path, context)
        self._dispatcher.log.add("grpc", path, "", "UNIMPLEMENTED", _caller(context).user_agent)
        _abort(context, ServiceError("UNIMPLEMENTED", f"the rehearsal's cloud has no {path}"))

    def _admit(self, path: str, context: grpc.ServicerContext) -> None:
        """End the call, and log it, unless its metadata has a token of this rehearsal."""
        try:
            self._dispatcher.access.check(_headers(context))
        except ServiceError as error:
            self._dispatcher.log.add("grpc", path, "", error.code, _caller(context).user_agent)
            _abort(context, error)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types of its own
    def __init__(self, door: GrpcDoor) -> None:
        self._door = door
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}
        for _, method in methods():
            self._handlers[method.path] = grpc.stream_unary_rpc_method_handler(
                partial(door.call, method), response_serializer=serialize
            )

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        path = handler_call_details.method
        found = self._handlers.get(path)
        return found or grpc.stream_unary_rpc_method_handler(partial(self._door.refuse, path))


def _abort(context: grpc.ServicerContext, error: ServiceError) -> NoReturn:
    """End a call with an error; context.abort raises."""
    context.set_trailing_metadata((("grpc-status-details-bin", error.to_status()),))
    context.abort(_STATUS[CODES[error.code][0]], error.message)
    raise AssertionError("context.abort returned")


def _caller(context: grpc.ServicerContext) -> Caller:
    metadata = _headers(context)
    # A client library's own user agent stands in x-goog-api-client; user-agent has what was set beside grpc's.
    agent = " ".join(metadata[key] for key in ("user-agent", "x-goog-api-client") if key in metadata)
    is_there: Callable[[], bool] = context.is_active
    return Caller("grpc", agent, metadata["host"], is_there)


def _headers(context: grpc.ServicerContext) -> dict[str, str]:
    """Return a call's metadata, with the :authority that the client asked for as its host."""
    metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
    # The context has no name for the :authority.
    metadata["host"] = bytes(context._rpc_event.call_details.host).decode("ascii", "replace")
    return metadata
