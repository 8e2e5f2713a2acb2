"""Who asked the local cloud for what: one entry a call, by whichever door."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# Of the newest: a launcher that polls for a month makes fewer.
_MAX_ENTRIES = 200_000


@dataclass(frozen=True)
class Access:
    """One call."""

    time_s: float
    """When it ended, by the machine's clock, seconds since 1970."""
    door: str
    """"rest" or "grpc"; "proxy" for what the guard refused."""
    method: str
    """The service's method, as JobService.CreateCustomJob; the verb where a request reached none."""
    resource: str
    """The resource's or its parent's name; the host and path where a request reached none."""
    status: str
    """OK, or the code's name."""
    user_agent: str


class AccessLog:
    """The newest entries, oldest first, and the calls under way."""

    def __init__(self) -> None:
        self._entries: deque[Access] = deque(maxlen=_MAX_ENTRIES)
        self._under_way: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def running(self, method: str) -> Iterator[None]:
        """Count a call of a method as under way."""
        with self._lock:
            self._under_way[method] += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way[method] -= 1

    def under_way(self, method: str) -> int:
        """Return how many calls of a method have no answer yet."""
        with self._lock:
            return self._under_way[method]

    def add(self, door: str, method: str, resource: str, status: str, user_agent: str) -> None:
        """Write an entry."""
        with self._lock:
            self._entries.append(Access(time.time(), door, method, resource, status, user_agent))

    def entries(self, method: str = "") -> list[Access]:
        """Return the entries, or those of one method."""
        with self._lock:
            return [entry for entry in self._entries if method in ("", entry.method)]
