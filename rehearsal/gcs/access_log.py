"""Who asked for what: one entry a request, in memory and as a file of JSON lines."""

from __future__ import annotations

import json
import threading
from collections import deque
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

# Of the newest: some 60 MB. The file has all.
_MAX_IN_MEMORY = 200_000


@dataclass(frozen=True)
class Access:
    """One request."""

    time_s: float
    """When it began, seconds since 1970."""
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


class AccessLog:
    """The entries so far; a request counts as running until its entry is written."""

    def __init__(self, path: Path | None = None) -> None:
        self._entries: deque[Access] = deque(maxlen=_MAX_IN_MEMORY)
        self._file = None if path is None else path.open("a", buffering=1)
        self._running = 0
        self._idle = threading.Condition()

    def begin(self) -> None:
        """Count a request as running."""
        with self._idle:
            self._running += 1

    def end(self) -> None:
        """Count it as done; its entry is written."""
        with self._idle:
            self._running -= 1
            self._idle.notify_all()

    def add(self, entry: Access) -> None:
        """Write an entry."""
        with self._idle:
            self._entries.append(entry)
            if self._file is not None:
                self._file.write(json.dumps(asdict(entry)) + "\n")

    def entries(self, *, method: str = "*", operation: str = "*", bucket: str = "*", object: str = "*") -> list[Access]:
        """Return the entries that match, oldest first, once the requests under way have ended (5 s at most)."""
        self.wait()
        return [
            entry
            for entry in self.snapshot()
            if fnmatchcase(entry.method, method)
            and fnmatchcase(entry.operation, operation)
            and fnmatchcase(entry.bucket, bucket)
            and fnmatchcase(entry.object, object)
        ]

    def wait(self, timeout_s: float = 5) -> None:
        """Wait until no request is under way: a client may have its answer before the entry is written."""
        with self._idle:
            self._idle.wait_for(lambda: self._running == 0, timeout=timeout_s)

    def snapshot(self) -> list[Access]:
        """Return the entries so far, whatever is under way."""
        with self._idle:
            return list(self._entries)

    def clear(self) -> None:
        """Forget the entries in memory, those of requests under way too; the file keeps them."""
        self.wait()
        with self._idle:
            self._entries.clear()

    def close(self) -> None:
        """Close the file."""
        with self._idle:
            if self._file is not None:
                self._file.close()
                self._file = None
