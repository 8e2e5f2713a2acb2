"""Access log: one entry per request, in memory and as a file of JSON lines, and the requests under way."""

from __future__ import annotations

import itertools
import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Generic, TypeVar

# Entries in memory, about 60 MB; the file has all.
_MAX_ENTRIES = 200_000


@dataclass(frozen=True)
class Call:
    """A call of a service's method, or a request to the proxy."""

    time_s: float
    """Real time of its end, seconds since 1970."""
    transport: str
    """"rest", "grpc" or "proxy"."""
    method: str
    """Method of the service, e.g. JobService.CreateCustomJob; the HTTP verb if no method matched."""
    resource: str
    """Name of the resource or its parent; host and path if no method matched."""
    status: str
    """OK, or the name of the status code."""
    user_agent: str


@dataclass(frozen=True)
class StorageRequest:
    """One request to Cloud Storage."""

    time_s: float
    """Start time, seconds since 1970."""
    method: str
    operation: str
    """objects.get, objects.media, objects.list, uploads, ..."""
    bucket: str
    object: str
    status: int
    """0 where the connection was reset before an answer."""
    bytes_in: int
    """Bytes of the request's body that were read."""
    bytes_out: int
    """Bytes of the answer's body that were sent."""
    duration_s: float
    fault: bool = False
    """A rule changed the answer."""


Entry = TypeVar("Entry", Call, StorageRequest)


class AccessLog(Generic[Entry]):
    """The newest entries, oldest first, and the requests under way.

    Args:
        path: File of JSON lines to append to.
        settle_s: How long `entries` waits for requests under way: entries are written after the answer.
    """

    def __init__(self, path: Path | None = None, settle_s: float = 0.0) -> None:
        self._entries: deque[Entry] = deque(maxlen=_MAX_ENTRIES)
        self._file = None if path is None else path.open("a", buffering=1)
        self._settle_s = settle_s
        self._under_way = 0
        self._changed = threading.Condition()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count a request as under way."""
        with self._changed:
            self._under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def add(self, entry: Entry) -> None:
        """Write an entry."""
        with self._changed:
            self._entries.append(entry)
            if self._file is not None:
                self._file.write(json.dumps(asdict(entry)) + "\n")

    def entries(self, method: str = "*", **patterns: str) -> list[Entry]:
        """Return the entries whose fields match the patterns, oldest first."""
        self.wait()
        patterns["method"] = method
        with self._changed:
            entries = list(self._entries)
        matching = [all(fnmatchcase(getattr(e, name), text) for name, text in patterns.items()) for e in entries]
        return list(itertools.compress(entries, matching))

    def wait(self) -> None:
        """Wait until no request is under way, at most `settle_s`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way, timeout=self._settle_s)

    def clear(self) -> None:
        """Remove the entries in memory, including those of requests under way, but not from the file."""
        self.wait()
        with self._changed:
            self._entries.clear()

    def close(self) -> None:
        """Close the file."""
        with self._changed:
            if self._file is not None:
                self._file.close()
                self._file = None
