"""Shards fetched ahead of reading, in the order of need."""

from __future__ import annotations

import heapq
import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from contracts.errors import ShardlineError
from trainer.data.shard_cache import ShardCache

# Shards that a process fetches at a time.
STREAMS = 8
# `Prefetcher.stop` waits so long for fetches on their way: well below the budget of an agreed stop.
STOP_WAIT_S = 5.0
NEVER = sys.maxsize

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Need(NamedTuple):
    """A shard that will be read."""

    until: int
    """Position from which on it is not read any more; NEVER: it stays needed."""
    shard: int
    """Its number in the manifest."""


class Prefetcher:
    """Fetches shards ahead of reading, in threads, as far as the cache holds them before they are done with.

    Loader processes are forked: start it after them, since a fork copies locks that its threads hold.

    Args:
        cache: Of the shards; None: they are local, and nothing happens.
        needs: What is coming, the first needed first.
    """

    def __init__(self, cache: ShardCache | None, needs: Iterable[Need] = ()) -> None:
        self._cache, self._needs = cache, iter(needs)
        self._turn, self._changed = threading.Lock(), threading.Condition()
        self._pending: list[Need] = []
        """Heap of what was fetched, or is being fetched, by `until`."""
        self._pending_bytes = self._position = 0
        self._stopped = False
        self._fault: Exception | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> Self:
        """Begin to fetch."""
        if self._cache is not None:
            target = partial(self._work, self._cache)
            self._threads = [threading.Thread(target=target, name="prefetch", daemon=True) for _ in range(STREAMS)]
            for thread in self._threads:
                thread.start()
        return self

    def start_with(self, requests: Iterable[T]) -> Iterator[T]:
        """Yield requests, and begin with the first: a loader asks for it when its processes are there."""
        self.start()
        yield from requests

    def advance(self, position: int) -> None:
        """Say that everything before a position was read. A fault of the threads is raised here."""
        if self._fault is not None:
            raise self._fault
        if self._cache is None:
            return
        with self._changed:
            self._position = position
            done: list[int] = []
            while self._pending and self._pending[0].until <= position:
                done.append(heapq.heappop(self._pending).shard)
            # Not what is needed again soon: in the next epoch.
            for shard in set(done) - {need.shard for need in self._pending}:
                self._cache.done(shard)
            self._pending_bytes -= sum(map(self._cache.bytes_of, done))
            self._changed.notify_all()

    def stop(self) -> None:
        """Fetch nothing more. A bucket that is silent is not waited for."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        deadline = time.monotonic() + STOP_WAIT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _work(self, cache: ShardCache) -> None:
        try:
            while (need := self._next(cache)) is not None:
                try:
                    cache.prefetch(need.shard, partial(self._is_done_with, need))
                except ShardlineError as error:
                    # Whoever reads meets the same, and ends training by it.
                    _log.warning("fetching ahead failed: %s", error)
        except Exception as error:  # noqa: BLE001  # raised by `advance`
            self._fault = error

    def _next(self, cache: ShardCache) -> Need | None:
        """Return what is to be fetched next, as soon as there is room for it; None: nothing is."""
        with self._turn:
            for need in self._needs:
                size = cache.bytes_of(need.shard)
                with self._changed:
                    self._changed.wait_for(partial(self._has_room, need, size, cache.limit_bytes))
                    if self._stopped:
                        return None
                    if not self._is_done_with(need):
                        heapq.heappush(self._pending, need)
                        self._pending_bytes += size
                        return need
        return None

    def _has_room(self, need: Need, size: int, limit_bytes: int) -> bool:
        fits = self._pending_bytes + size <= limit_bytes or not self._pending
        return fits or self._is_done_with(need)

    def _is_done_with(self, need: Need) -> bool:
        return self._stopped or need.until <= self._position
