"""The server: sockets, one request from its first byte to its last, and the control endpoint.

http.server's threads (one a connection, kept alive) carry it: a file is sent by sendfile without Python touching its
bytes, and what limits small requests is the clients' own Python. It binds to 127.0.0.1 and to nothing else.

The control endpoint, for clients in other processes (a test in this one uses `faults` and `access_log`):

    GET | PUT | DELETE /_gcs/rules       the rules in force; replace them by a JSON list of Rule; none
    GET | DELETE       /_gcs/requests    the access log as a JSON list; forget it
"""

from __future__ import annotations

import json
import socket
import threading
import traceback
from collections.abc import Iterable
from dataclasses import asdict
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from rehearsal.doors.access import Access
from rehearsal.gcs.access_log import AccessLog
from rehearsal.gcs.api import JsonApi
from rehearsal.gcs.connection import Connection
from rehearsal.gcs.content import STATE_FOLDER
from rehearsal.gcs.faults import Faults, Rule
from rehearsal.gcs.messages import ApiError, Request, Response, json_response
from rehearsal.gcs.objects import Objects
from rehearsal.gcs.preconditions import NOTHING
from rehearsal.gcs.uploads import Uploads
from rehearsal.gcs.xml_api import XmlApi
from rehearsal.gcs.xml_uploads import MIN_PART_BYTES, XmlUploads

HOST = "127.0.0.1"
CONTROL_PREFIX = "/_gcs/"
TOKEN_PATH = "/token"


class _Sockets(ThreadingHTTPServer):
    """The listening socket and its threads; knows the open connections, so that an end is an end."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int, owner: BucketServer) -> None:
        self.owner = owner
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        super().__init__((HOST, port), Connection)

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
        """Keep what went wrong in the server itself; a client that left is no such thing."""
        self.owner.failures.append(traceback.format_exc())

    def hang_up(self) -> None:
        """End all connections."""
        with self._open_lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue


class BucketServer:
    """A running server: a context manager, or `start` and `stop`.

    Args:
        root: Folder of the buckets, made if it is not there. A folder of plain files in it becomes a bucket.
        buckets: Buckets to make.
        access: Who may call; new credentials below the root where none are given.
        is_open: Ask nobody for a token: for tests, since clients that are led here by STORAGE_EMULATOR_HOST bring none.
        port: Port on 127.0.0.1; 0 takes a free one.
        access_log: File of JSON lines to append to.
        rules: Faults and costs from the start.
        min_part_bytes: Smallest part of an XML multipart upload; tests may lower it.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        buckets: Iterable[str] = (),
        access: Access | None = None,
        is_open: bool = False,
        port: int = 0,
        access_log: str | Path | None = None,
        rules: Iterable[Rule] = (),
        min_part_bytes: int = MIN_PART_BYTES,
    ) -> None:
        self.root = Path(root)
        self.failures: list[str] = []
        """Faults of the server itself, as tracebacks; `stop` raises when there are any."""
        self.objects = Objects(self.root)
        self.faults = Faults()
        self.faults.set(*rules)
        self.access_log = AccessLog(None if access_log is None else Path(access_log))
        self._uploads = Uploads(self.objects)
        self._xml_uploads = XmlUploads(self.objects, min_part_bytes)
        self.json_api = JsonApi(self.objects, self._uploads)
        self.xml_api = XmlApi(self.objects, self._uploads, self._xml_uploads)
        existing = {bucket.name for bucket in self.objects.buckets()}
        for bucket in buckets:
            if bucket not in existing:
                self.objects.create_bucket(bucket, {})
        self._sockets = _Sockets(port, self)
        self.is_open = is_open
        self.access = access or Access(
            self.root / STATE_FOLDER / "access", project="emulated", token_uri=self.endpoint + TOKEN_PATH
        )
        self._thread = threading.Thread(target=self._sockets.serve_forever, args=(0.05,), daemon=True)

    @property
    def endpoint(self) -> str:
        """The address, `http://127.0.0.1:PORT`."""
        return f"http://{HOST}:{self._sockets.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make clients of this and of child processes use this server, an open one, and nothing else."""
        return {
            "STORAGE_EMULATOR_HOST": self.endpoint,
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.access.key_file.absolute()),
            # Else gcsfs asks a gRPC service for the kind of every bucket, for minutes where there is none.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
            "NO_PROXY": HOST,
            "no_proxy": HOST,
        }

    def start(self) -> Self:
        """Begin to serve."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving, end all connections and close the files; RuntimeError when the server itself had faults."""
        self._sockets.shutdown()
        self._sockets.hang_up()
        self.access_log.wait()
        self._sockets.server_close()
        self._thread.join()
        self._uploads.close()
        self._xml_uploads.close()
        self.access_log.close()
        self.objects.close()
        if self.failures:
            raise RuntimeError(f"the bucket server had {len(self.failures)} faults, the first:\n{self.failures[0]}")

    def clear(self) -> None:
        """Delete every bucket with what is in it."""
        for bucket in self.objects.buckets():
            while rows := self.objects.rows(bucket.name, "", "", 1000):
                for record in rows:
                    self.objects.delete(bucket.name, record.name, None, NOTHING)
            self.objects.delete_bucket(bucket.name)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def control(self, request: Request) -> Response:
        """Answer a request to the control endpoint."""
        target = (request.method, request.path.removeprefix(CONTROL_PREFIX))
        if target == ("GET", "rules"):
            return json_response([rule.model_dump(mode="json") for rule in self.faults.rules])
        if target == ("PUT", "rules"):
            try:
                self.faults.set(*TypeAdapter(list[Rule]).validate_json(request.body.read()))
            except ValidationError as error:
                raise ApiError(400, json.dumps(error.errors(include_url=False, include_context=False))) from None
            return Response(204)
        if target == ("DELETE", "rules"):
            self.faults.set()
            return Response(204)
        if target == ("GET", "requests"):
            return json_response([asdict(entry) for entry in self.access_log.snapshot()])
        if target == ("DELETE", "requests"):
            self.access_log.forget()
            return Response(204)
        raise ApiError(404, f"{request.method} {request.path} is no control request")
