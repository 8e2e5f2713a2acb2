"""One client's connection: reading requests, running them, sending answers, with the faults that rules ask for."""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, cast

from rehearsal.doors.access import check_origin
from rehearsal.doors.errors import ServiceError
from rehearsal.gcs.access_log import Access
from rehearsal.gcs.api import Call, JsonApi
from rehearsal.gcs.batch import answer_batch
from rehearsal.gcs.faults import Effect, Rule
from rehearsal.gcs.messages import ApiError, FileBody, Request, Response, error_response, json_response, parse_target
from rehearsal.gcs.request_body import RequestBody, Reset

if TYPE_CHECKING:
    from rehearsal.gcs.server import BucketServer

_BATCH_PATHS = ("/batch/storage/v1", "/batch")
_SMALL_BYTES = 128 << 10
# A stream with a speed limit is sent in pieces of up to a 50th of a second: fewer wake-ups leave the processor to the
# clients. The first ones are small, so that the first byte comes when the latency says.
_PIECES_PER_S, _FIRST_PIECE_BYTES = 50, 16 << 10
# What is left of a request that was answered early is read up to here; beyond it the connection ends.
_DRAIN_BYTES = 4 << 20
# http.HTTPStatus has no 499; Cloud Storage answers with it when an upload was cancelled.
_CLIENT_CLOSED_REQUEST = 499
_LINE_ENDS = re.compile(r"[\r\n\0]")


class Connection(BaseHTTPRequestHandler):
    """http.server's handler: one object a connection, one call of `_serve` a request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rbufsize = 1 << 16
    # An idle connection that a client forgot must not hold a thread for ever.
    timeout = 600

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the access log has it."""

    def handle(self) -> None:
        """Serve until the client leaves."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    @property
    def _owner(self) -> BucketServer:
        return cast("BucketServer", self.server.owner)  # type: ignore[attr-defined]

    def _serve(self) -> None:
        log = self._owner.access_log
        log.begin()
        try:
            self._serve_logged()
        finally:
            log.end()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _serve

    def _serve_logged(self) -> None:
        began_s, began = time.time(), time.monotonic()
        headers = {name.lower(): value for name, value in self.headers.items()}
        chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length", "0")
        is_length = length.isascii() and length.isdigit()
        body = RequestBody(self.rfile, None if chunked else int(length) if is_length else 0)
        entry = {"operation": "unknown", "bucket": "", "object": "", "status": 0, "bytes_out": 0, "fault": False}
        try:
            if not is_length:
                # Where the next request would start is unknown.
                self.close_connection = True
                raise ApiError(400, f"Invalid Content-Length: {length!r}")
            path, query = parse_target(self.path)
            host = headers.get("host") or "127.0.0.1"
            # Who came by Google's name came by TLS, which ends before this server.
            endpoint = f"{'https' if host.endswith('googleapis.com') else 'http'}://{host}"
            request = Request(self.command, path, query, headers, body, endpoint)
            is_token_request = (self.command, path) == ("POST", "/token")
            self._check_access(headers, needs_token=not is_token_request)
            if path.startswith("/_gcs/"):
                entry["operation"] = "control"
                response = self._run(lambda: self._owner.control(request), xml=False)
                self._finish(response, Effect(), body, entry)
            elif is_token_request:
                entry["operation"] = "token"
                status, value = self._owner.access.exchange(body.read())
                self._finish(json_response(value, status), Effect(), body, entry)
            else:
                self._serve_api(request, body, entry)
        except ApiError as error:
            self._finish(error_response(error, xml=False), Effect(), body, entry)
        except Reset:
            self._reset()
        finally:
            if entry["operation"] != "control":
                duration = time.monotonic() - began
                self._owner.access_log.add(
                    Access(began_s, self.command, bytes_in=body.num_read, duration_s=duration, **entry)  # type: ignore[arg-type]
                )

    def _check_access(self, headers: Mapping[str, str], *, needs_token: bool) -> None:
        owner = self._owner
        try:
            if needs_token and not owner.is_open:
                owner.access.check(headers)
            else:
                check_origin(headers)
        except ServiceError as error:
            raise ApiError(error.http_status, error.message) from None

    def _serve_api(self, request: Request, body: RequestBody, entry: dict[str, Any]) -> None:
        xml = not JsonApi.is_for(request.path) and request.path not in _BATCH_PATHS
        try:
            call = self._find(request)
        except ApiError as error:
            self._finish(error_response(error, xml=xml), Effect(), body, entry)
            return
        entry |= {"operation": call.operation, "bucket": call.bucket, "object": call.name}
        effect = self._owner.faults.decide(self.command, call.operation, call.bucket, call.name)
        fault = effect.fault
        entry["fault"] = fault is not None
        body.bytes_per_s = effect.bytes_per_s
        # An upload that names its object in its body has been read already.
        body.keep_pace()
        time.sleep(effect.latency_s)
        if fault is not None and not fault.after:
            if fault.reset:
                raise Reset
            if fault.status is not None:
                self._finish(_refusal(fault, xml=xml), effect, body, entry)
                return
        if fault is not None and fault.read_at_most is not None:
            if body.num_read > fault.read_at_most:
                raise Reset
            body.reset_at = fault.read_at_most
        response = self._run(call.run, xml=xml)
        if fault is not None and fault.after and (fault.reset or fault.status is not None):
            response.close()
            if fault.reset:
                raise Reset
            response = _refusal(fault, xml=xml)
        self._finish(response, effect, body, entry)

    def _find(self, request: Request) -> Call:
        if request.path in _BATCH_PATHS and request.method == "POST":
            return Call("batch", "", "", lambda: answer_batch(request, self._run_part))
        return (self._owner.json_api if JsonApi.is_for(request.path) else self._owner.xml_api).find(request)

    def _run_part(self, request: Request) -> Response:
        """Run one part of a batch: of the faults it knows latency and status."""
        began_s, began = time.time(), time.monotonic()
        try:
            call = self._owner.json_api.find(request)
            if call.operation in ("objects.media", "uploads"):
                raise ApiError(400, "Media is not supported in a batch")
        except ApiError as error:
            return error_response(error, xml=False)
        effect = self._owner.faults.decide(request.method, call.operation, call.bucket, call.name)
        time.sleep(effect.latency_s)
        fault = effect.fault
        fails = fault is not None and fault.status is not None
        response = self._run(call.run, xml=False) if fault is None or not fails or fault.after else Response()
        if fault is not None and fails:
            response = _refusal(fault, xml=False)
        self._owner.access_log.add(
            Access(
                began_s,
                request.method,
                call.operation,
                call.bucket,
                call.name,
                response.status,
                0,
                response.length,
                time.monotonic() - began,
                fails,
            )
        )
        return response

    def _run(self, run: Any, *, xml: bool) -> Response:
        try:
            return cast(Response, run())
        except ApiError as error:
            return error_response(error, xml=xml)

    # --- the answer ---

    def _finish(self, response: Response, effect: Effect, body: RequestBody, entry: dict[str, Any]) -> None:
        """Read what is left of the request, then send the answer."""
        body.reset_at = None
        if body.left is None or body.left > _DRAIN_BYTES:
            self.close_connection = True
        else:
            while body.left:
                body.read(_SMALL_BYTES)
        entry["status"] = response.status
        try:
            self._send(response, effect, entry)
        finally:
            response.close()

    def _send(self, response: Response, effect: Effect, entry: dict[str, Any]) -> None:
        fault = effect.fault or Rule()
        length = response.length
        if fault.truncate_at is not None and fault.quietly:
            length = min(length, fault.truncate_at)
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
        stop = min(at for at in (length, fault.truncate_at, fault.reset_at) if at is not None)
        if self.command == "HEAD" or status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            self.connection.sendall(head)
            return
        if isinstance(response.body, FileBody) and stop > _SMALL_BYTES and fault.corrupt_at is None:
            self.connection.sendall(head)
            self._send_file(response.body, stop, effect.bytes_per_s, entry)
        else:
            self._send_slowly(head, _read_body(response, stop, fault.corrupt_at), effect.bytes_per_s, entry)
        if fault.reset_at is not None and stop == fault.reset_at:
            raise Reset
        if stop < length:
            self.close_connection = True

    def _send_file(self, body: FileBody, length: int, bytes_per_s: float | None, entry: dict[str, Any]) -> None:
        """Send from a file without Python touching its bytes."""
        for start, count in _paced(length, bytes_per_s):
            entry["bytes_out"] += self.connection.sendfile(body.file, body.start + start, count)

    def _send_slowly(self, head: bytes, content: bytes, bytes_per_s: float | None, entry: dict[str, Any]) -> None:
        if bytes_per_s is None:
            self.connection.sendall(head + content)
            entry["bytes_out"] += len(content)
            return
        self.connection.sendall(head)
        view = memoryview(content)
        for start, count in _paced(len(content), bytes_per_s):
            self.connection.sendall(view[start : start + count])
            entry["bytes_out"] += count

    def _reset(self) -> None:
        """End the connection with a reset instead of an orderly end."""
        self.close_connection = True
        # Closing with a linger time of zero sends RST: https://man7.org/linux/man-pages/man7/socket.7.html
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # The reading side holds the socket open too.
        self.rfile.close()
        self.connection.close()


def _refusal(rule: Rule, *, xml: bool) -> Response:
    assert rule.status is not None
    response = error_response(ApiError(rule.status, "A rule of this server asked for this error."), xml=xml)
    if rule.retry_after_s is not None:
        response.headers["Retry-After"] = str(rule.retry_after_s)
    return response


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
