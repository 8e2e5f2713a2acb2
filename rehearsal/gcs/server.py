"""A bucket server by itself: the service behind a port of its own. In a rehearsal it is behind the HTTP door."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rehearsal.doors.access import Access
from rehearsal.doors.http_server import HOST, HttpServer
from rehearsal.doors.locked import Locked
from rehearsal.gcs.content import STATE_FOLDER
from rehearsal.gcs.service import BucketService


class BucketServer(BucketService):
    """A running server: a context manager, or `start` and `stop`.

    Args:
        root: See BucketService.
        is_open: Ask nobody for a token: for tests, since clients that are led here by STORAGE_EMULATOR_HOST bring none.
        write_interval_s: See BucketService; no limit unless one is given, since tests write as fast as they can.
        options: See BucketService.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        is_open: bool = False,
        write_interval_s: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(root, write_interval_s=write_interval_s, **options)
        self.failures: list[str] = []
        """Faults of the server itself, as tracebacks; `stop` raises when there are any."""
        self._http = HttpServer(self, self.failures)
        self.access = Access(
            self.root / STATE_FOLDER / "access", project="emulated", token_uri=f"{self.endpoint}/token"
        )
        self._http.site = Locked(self, self.access, self.log_refused, is_open=is_open)

    @property
    def endpoint(self) -> str:
        """The address, `http://127.0.0.1:PORT`."""
        return self._http.endpoint

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
        self._http.start()
        return self

    def stop(self) -> None:
        """Stop serving, end all connections and close the files; RuntimeError when the server itself had faults."""
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
