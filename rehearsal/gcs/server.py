"""Cloud Storage service: routing, fault injection and access log of requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rehearsal.errors import StorageError
from rehearsal.gcs.api import JsonApi
from rehearsal.gcs.content import STATE_FOLDER
from rehearsal.gcs.faults import Effect, Faults, Rule
from rehearsal.gcs.objects import WRITE_INTERVAL_S, Objects
from rehearsal.gcs.uploads import Uploads
from rehearsal.servers.access import Access
from rehearsal.servers.access_log import AccessLog, StorageRequest
from rehearsal.servers.http import Request, RequestBody, Reset, Response, Send, json_response, locked
from rehearsal.servers.http_server import HOST, HttpServer


class BucketService:
    """Buckets below a folder, without a port and without authentication.

    Args:
        root: Folder of the buckets, created if missing. Folders of plain files in it become buckets.
        buckets: Buckets to create.
        access_log: File of JSON lines to append to.
        rules: Initial fault rules.
        write_interval_s: Minimum time between writes to an object, else 429; 0: no limit.
        clock: Clock of that interval.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        buckets: Iterable[str] = (),
        access_log: str | Path | None = None,
        rules: Iterable[Rule] = (),
        write_interval_s: float = WRITE_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.root = Path(root)
        self.objects = Objects(self.root, write_interval_s=write_interval_s, clock=clock)
        self.faults = Faults()
        self.faults.set(*rules)
        self.access_log = AccessLog[StorageRequest](None if access_log is None else Path(access_log), settle_s=5.0)
        self._uploads = Uploads(self.objects)
        self._api = JsonApi(self.objects, self._uploads)
        existing = {bucket.name for bucket in self.objects.buckets()}
        for bucket in buckets:
            if bucket not in existing:
                self.objects.create_bucket(bucket, {})

    def close(self) -> None:
        """Wait for requests under way, discard unfinished uploads, close the files."""
        self.access_log.wait()
        self._uploads.close()
        self.access_log.close()

    def clear(self) -> None:
        """Delete every bucket with its objects."""
        for bucket in self.objects.buckets():
            while rows := self.objects.rows(bucket.name, "", "", 1000):
                for record in rows:
                    self.objects.delete(bucket.name, record.name)
            self.objects.delete_bucket(bucket.name)

    # --- the HTTP server's side ---

    def serve(self, request: Request, send: Send) -> None:
        """Answer one request; Reset ends the connection without an answer."""
        began_s, began, body = time.time(), time.monotonic(), request.body
        entry: dict[str, Any] = {"operation": "unknown", "bucket": "", "object": "", "fault": False}
        answer = Response(0)

        def send_answer(response: Response, effect: Effect | None = None) -> None:
            nonlocal answer
            answer = response
            send(response, (effect or Effect()).wire())

        with self.access_log.running():
            try:
                self._serve_api(request, send_answer, entry)
            finally:
                bytes_in = body.num_read if isinstance(body, RequestBody) else 0
                self._log(request, began_s, time.monotonic() - began, answer, bytes_in, entry)

    def log_refused(self, request: Request, status: str) -> None:
        """Log a request that authentication answered."""
        answer = Response({"OK": 200, "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403}.get(status, 400))
        self._log(request, time.time(), 0.0, answer, 0, {"operation": "access", "bucket": "", "object": ""})

    def _log(
        self,
        request: Request,
        began_s: float,
        duration_s: float,
        answer: Response,
        bytes_in: int,
        entry: dict[str, Any],
    ) -> None:
        self.access_log.add(
            StorageRequest(
                time_s=began_s,
                method=request.method,
                status=answer.status,
                bytes_in=bytes_in,
                bytes_out=answer.num_sent,
                duration_s=duration_s,
                **entry,
            )
        )

    def _serve_api(self, request: Request, send_answer: Callable[..., None], entry: dict[str, Any]) -> None:
        body = request.body
        assert isinstance(body, RequestBody)
        try:
            call = self._api.find(request)
        except StorageError as error:
            send_answer(_error_response(error))
            return
        entry |= {"operation": call.operation, "bucket": call.bucket, "object": call.name}
        effect = self.faults.decide(request.method, call.operation, call.bucket, call.name)
        fault = effect.fault
        entry["fault"] = fault is not None
        body.bytes_per_s = effect.bytes_per_s
        # If its body has the object's name, an upload was already read.
        body.keep_pace()
        time.sleep(effect.latency_s)
        refuses = fault is not None and (fault.reset or fault.status is not None)
        if fault is not None and refuses and not fault.after:
            send_answer(_refusal(fault), effect)
            return
        if fault is not None and fault.read_at_most is not None:
            if body.num_read > fault.read_at_most:
                raise Reset
            body.reset_at = fault.read_at_most
        try:
            response = call.run()
        except StorageError as error:
            response = _error_response(error)
        if fault is not None and refuses:
            response.close()
            response = _refusal(fault)
        send_answer(response, effect)


class BucketServer(BucketService):
    """A bucket service with its own port: a context manager, or `start` and `stop`.

    `is_open` disables authentication: clients with STORAGE_EMULATOR_HOST send no token. By default, the write rate has
    no limit.
    """

    def __init__(
        self, root: str | Path, *, is_open: bool = False, write_interval_s: float = 0.0, **options: Any
    ) -> None:
        super().__init__(root, write_interval_s=write_interval_s, **options)
        self.failures: list[str] = []
        """Tracebacks of faults of the server itself; `stop` raises if there are any."""
        self._http = HttpServer(self.serve, self.failures)
        self.access = Access(
            self.root / STATE_FOLDER / "access", project="emulated", token_uri=f"{self.endpoint}/token"
        )
        self._http.serve = locked(self.serve, self.access, self.log_refused, is_open=is_open)

    @property
    def endpoint(self) -> str:
        """The address, `http://127.0.0.1:PORT`."""
        return self._http.endpoint

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables by which clients use only this (open) server."""
        return {
            "STORAGE_EMULATOR_HOST": self.endpoint,
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.access.key_file.absolute()),
            # Else gcsfs queries a gRPC service for the kind of each bucket, and waits minutes for a time-out.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "NO_PROXY": HOST,
            "no_proxy": HOST,
        }

    def start(self) -> Self:
        """Begin to serve."""
        self._http.start()
        return self

    def stop(self) -> None:
        """Stop serving, end all connections, close the files; RuntimeError after faults of the server itself."""
        self._http.stop()
        self.close()
        if self.failures:
            raise RuntimeError(f"the bucket server had {len(self.failures)} faults, the first:\n{self.failures[0]}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _error_response(error: StorageError) -> Response:
    return Response(304) if error.status == 304 else json_response(error.to_json(), error.status)


def _refusal(rule: Rule) -> Response:
    """Return a rule's error response; raise Reset if the rule resets the connection."""
    if rule.reset or rule.status is None:
        raise Reset
    response = _error_response(
        StorageError(rule.status, "A rule of this server asked for this error (--faults or --storage-faults).")
    )
    if rule.retry_after_s is not None:
        response.headers["Retry-After"] = str(rule.retry_after_s)
    return response
