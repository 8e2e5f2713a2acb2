"""gRPC server of all methods, without TLS (the TLS port adds it).

Unary methods are registered as streaming, which is equal on the wire: grpc reads the message of a unary method before
it calls the handler, but that of a stream only when the handler requests it, after the token check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn

import grpc

from rehearsal.errors import CODES, ServiceError
from rehearsal.servers.access import Caller
from rehearsal.servers.calls import Dispatcher, Method
from rehearsal.servers.messages import deserialize, serialize

# A waiting Get occupies a thread, so this exceeds the number of custom jobs. Threads are created on demand.
_MAX_THREADS = 4096
# Limit of Google's front ends: "Request payload size exceeds the limit: 10485760 bytes."
_MAX_REQUEST_BYTES = 10 << 20
_STATUS = {code.value[0]: code for code in grpc.StatusCode}


class GrpcServer(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types of its own
    """A gRPC server on a free port of 127.0.0.1."""

    def __init__(self, dispatcher: Dispatcher, methods: Iterable[Method]) -> None:
        self._dispatcher = dispatcher
        self._handlers = {
            method.path: grpc.stream_unary_rpc_method_handler(
                partial(self._answer, method), response_serializer=serialize
            )
            for method in methods
        }
        options = [
            ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]
        threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="grpc")
        self._server = grpc.server(threads, handlers=[self], options=options)
        self.port = int(self._server.add_insecure_port("127.0.0.1:0"))

    def start(self) -> None:
        """Begin to serve."""
        self._server.start()

    def stop(self) -> None:
        """End all calls and stop serving."""
        self._server.stop(grace=None).wait()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Return the handler of a method, for grpc."""
        path = handler_call_details.method
        return self._handlers.get(path) or grpc.stream_unary_rpc_method_handler(partial(self._refuse, path))

    def _answer(self, method: Method, requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
        caller = self._authorise(method.path, context)
        try:
            if (message := next(requests, None)) is None:
                raise ServiceError("INVALID_ARGUMENT", "The call has no message.")
            return self._dispatcher.call(method, deserialize(method.request_type, message), caller)
        except ServiceError as error:
            _abort(context, error)

    def _refuse(self, path: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
        caller = self._authorise(path, context)
        self._dispatcher.record("grpc", path, "", "UNIMPLEMENTED", caller.user_agent)
        _abort(context, ServiceError("UNIMPLEMENTED", f"the rehearsal's cloud has no {path}"))

    def _authorise(self, path: str, context: grpc.ServicerContext) -> Caller:
        """Return the caller; without a valid token, log and abort the call."""
        metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        # The client's :authority, which the context does not expose publicly.
        metadata["host"] = bytes(context._rpc_event.call_details.host).decode("ascii", "replace")
        # Client libraries set x-goog-api-client; user-agent has grpc's agent and custom ones.
        agent = " ".join(metadata[key] for key in ("user-agent", "x-goog-api-client") if key in metadata)
        try:
            self._dispatcher.access.check(metadata)
        except ServiceError as error:
            self._dispatcher.record("grpc", path, "", error.code, agent)
            _abort(context, error)
        return Caller("grpc", agent, metadata["host"], context.is_active)


def _abort(context: grpc.ServicerContext, error: ServiceError) -> NoReturn:
    """End a call with an error; context.abort raises."""
    context.set_trailing_metadata((("grpc-status-details-bin", error.to_status()),))
    context.abort(_STATUS[CODES[error.code][0]], error.message)
    raise AssertionError("context.abort returned")
