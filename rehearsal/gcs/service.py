"""Cloud Storage as a site of the HTTP server: which operation, what the rules do to it, its entry in the access log.

Whoever serves it has checked who asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rehearsal.doors.http_messages import Request, Response, Send
from rehearsal.doors.request_body import RequestBody, Reset
from rehearsal.gcs.access_log import Access, AccessLog
from rehearsal.gcs.api import JsonApi
from rehearsal.gcs.faults import Effect, Faults, Rule
from rehearsal.gcs.messages import ApiError, error_response
from rehearsal.gcs.objects import Objects
from rehearsal.gcs.preconditions import NOTHING
from rehearsal.gcs.uploads import Uploads
from rehearsal.gcs.write_rate import INTERVAL_S


class BucketService:
    """The buckets below a folder.

    Args:
        root: Folder of the buckets, made if it is not there. A folder of plain files in it becomes a bucket.
        buckets: Buckets to make.
        location: Where those are, and those that plain files make.
        access_log: File of JSON lines to append to.
        rules: Faults and costs from the start.
        write_interval_s: Shortest time between two writes to one object, by which 429 is answered; 0: no limit.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        buckets: Iterable[str] = (),
        access_log: str | Path | None = None,
        rules: Iterable[Rule] = (),
        write_interval_s: float = INTERVAL_S,
        location: str = "US",
    ) -> None:
        self.root = Path(root)
        self.objects = Objects(self.root, write_interval_s=write_interval_s, location=location)
        self.faults = Faults()
        self.faults.set(*rules)
        self.access_log = AccessLog(None if access_log is None else Path(access_log))
        self._uploads = Uploads(self.objects)
        self.json_api = JsonApi(self.objects, self._uploads)
        existing = {bucket.name for bucket in self.objects.buckets()}
        for bucket in buckets:
            if bucket not in existing:
                self.objects.create_bucket(bucket, {"location": location})

    def close(self) -> None:
        """Drop uploads on their way and close the files, once no request is under way."""
        self.access_log.wait()
        self._uploads.close()
        self.access_log.close()
        self.objects.close()

    def clear(self) -> None:
        """Delete every bucket with what is in it."""
        for bucket in self.objects.buckets():
            while rows := self.objects.rows(bucket.name, "", "", 1000):
                for record in rows:
                    self.objects.delete(bucket.name, record.name, None, NOTHING)
            self.objects.delete_bucket(bucket.name)

    # --- the HTTP server's side ---

    def serve(self, request: Request, send: Send) -> None:
        """Answer one request."""
        began_s, began, body = time.time(), time.monotonic(), request.body
        entry: dict[str, Any] = {"operation": "unknown", "bucket": "", "object": "", "fault": False}
        # Of a request that gets no answer.
        answer = Response(0)

        def answered(response: Response, effect: Effect | None = None) -> None:
            nonlocal answer
            answer = response
            send(response, (effect or Effect()).wire())

        self.access_log.begin()
        try:
            self._serve_api(request, answered, entry)
        finally:
            num_read = body.num_read if isinstance(body, RequestBody) else 0
            self._log(request, began_s, began, entry, answer, num_read)
            self.access_log.end()

    def log_refused(self, request: Request, status: str) -> None:
        """Write an entry about a request that was answered before it came here."""
        status_code = {"OK": 200, "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403}.get(status, 400)
        entry = {"operation": "access", "bucket": "", "object": "", "fault": False}
        self._log(request, time.time(), time.monotonic(), entry, Response(status_code), 0)

    def _log(
        self, request: Request, began_s: float, began: float, entry: dict[str, Any], answer: Response, num_read: int
    ) -> None:
        self.access_log.add(
            Access(
                began_s,
                request.method,
                status=answer.status,
                bytes_in=num_read,
                bytes_out=answer.num_sent,
                duration_s=time.monotonic() - began,
                **entry,
            )
        )

    def _serve_api(self, request: Request, answered: Callable[..., None], entry: dict[str, Any]) -> None:
        body = request.body
        assert isinstance(body, RequestBody)
        try:
            call = self.json_api.find(request)
        except ApiError as error:
            answered(error_response(error))
            return
        entry |= {"operation": call.operation, "bucket": call.bucket, "object": call.name}
        effect = self.faults.decide(request.method, call.operation, call.bucket, call.name)
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
                answered(_refusal(fault), effect)
                return
        if fault is not None and fault.read_at_most is not None:
            if body.num_read > fault.read_at_most:
                raise Reset
            body.reset_at = fault.read_at_most
        response = _run(call.run)
        if fault is not None and fault.after and (fault.reset or fault.status is not None):
            response.close()
            if fault.reset:
                raise Reset
            response = _refusal(fault)
        answered(response, effect)


def _run(run: Callable[[], Response]) -> Response:
    try:
        return run()
    except ApiError as error:
        return error_response(error)


def _refusal(rule: Rule) -> Response:
    assert rule.status is not None
    response = error_response(ApiError(rule.status, "A rule of this server asked for this error."))
    if rule.retry_after_s is not None:
        response.headers["Retry-After"] = str(rule.retry_after_s)
    return response
