"""Fetches ahead of need: a thread of a rank's main process that walks what is coming, and fills the cache with it."""

from __future__ import annotations

import heapq
import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Self

from contracts.errors import ShardlineError
from trainer.data.bucket.fetch import MAX_STREAMS, SAMPLE_STREAMS, Fetcher
from trainer.data.bucket.plan import BATCHES_AHEAD, NEVER, SAMPLES_AHEAD, PlannedRange, ReadPlan
from trainer.data.order.cursor import SlotRequest

# For ranges on their way to be given up: well below the budget of an agreed stop.
STOP_WAIT_S = 5.0
_log = logging.getLogger(__name__)


class Prefetcher:
    """Puts ranges into the cache in the order of need, no more than `budget_bytes` of them before they are done with.

    Loader processes are forked: start it after them, since a fork copies locks that its threads hold.

    Args:
        fetcher: Of this process; None for local shards, which need none.
        needs: What is coming.
        budget_bytes: Of ranges that were fetched, or are being fetched, and not `advance`d past. A single range is
            fetched whatever its size.
        plan: That the needs come from, for `passed`, and for what is kept.
    """

    def __init__(
        self, fetcher: Fetcher | None, needs: Iterable[PlannedRange], budget_bytes: int, plan: ReadPlan | None = None
    ) -> None:
        self._needs, self._budget, self._plan = needs, budget_bytes, plan
        self._keeps = plan is None or not plan.one_by_one
        # Small files take more room than their bytes: those of single samples are counted too.
        most = max(SAMPLES_AHEAD, BATCHES_AHEAD * plan.global_batch_size) if plan is not None else 0
        self._most_pending = sys.maxsize if self._keeps else most
        self._position = 0
        self._fetcher = fetcher
        self._changed = threading.Condition()
        self._pending: list[tuple[int, int, PlannedRange]] = []
        """Heap of (until, bytes, what)."""
        self._pending_bytes = 0
        self._running = 0
        self._stopped = False
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def start(self) -> Self:
        """Begin to fetch."""
        if self._fetcher is not None:
            self._thread.start()
        return self

    def start_with(self, requests: Iterable[SlotRequest]) -> Iterator[SlotRequest]:
        """Yield requests, and begin with the first: a loader asks for it when its processes are there."""
        self.start()
        yield from requests

    def advance(self, position: int) -> None:
        """Say that everything before a position was read: its ranges make room for others.

        A fault of the threads is raised here: without them reading would go on, and be slow for no reason to be seen.
        """
        if self._fetcher is None:
            return
        if self._fault is not None:
            raise self._fault
        done = []
        freed = 0
        with self._changed:
            self._position = position
            while self._pending and self._pending[0][0] <= position:
                _, size, need = heapq.heappop(self._pending)
                freed += size
                done.append(need)
            kept = {(need.shard, need.first) for _, _, need in self._pending} if done else set()
        for need in done:
            # Needed again soon: in the next epoch, which is looked at while this one ends.
            if (need.shard, need.first) not in kept:
                self._let_go(need)
        # Not before: on a full disk there is room only by what is done with.
        with self._changed:
            self._pending_bytes -= freed
            self._changed.notify_all()

    def passed(self, request: SlotRequest) -> None:
        """Say that a request, and all before, was read: with the last one of a batch, the batch is."""
        if self._plan is not None and request.last_of_step:
            self.advance(self._plan.position_after(request))

    def stop(self) -> None:
        """Fetch nothing more; ranges on their way are given up with the next bytes that come.

        A bucket that is silent is not waited for: the end of training must not depend on it.
        """
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(STOP_WAIT_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        with ThreadPoolExecutor(MAX_STREAMS, thread_name_prefix="ranges") as threads:
            try:
                for need in self._in_time():
                    threads.submit(self._fetch, need)
            except Exception as error:  # noqa: BLE001  # told by `advance`
                self._fault = error

    def _in_time(self) -> Iterator[PlannedRange]:
        """Yield what is coming as soon as there is room and a thread for it."""
        assert self._fetcher is not None
        for need in self._needs:
            if self._stopped:
                return
            size = self._fetcher.extent(need.shard, need.first, need.samples)[1]
            with self._changed:
                self._changed.wait_for(partial(self._has_room, need, size))
                if self._stopped:
                    return
                passed = need.until <= self._position
                self._running += not passed
                # What stays takes no room that could become free: the cache was found to be large enough for all.
                if not passed and need.until != NEVER:
                    heapq.heappush(self._pending, (need.until, size, need))
                    self._pending_bytes += size
            if passed:
                # Whoever reads was faster, and has fetched it.
                self._let_go(need)
            else:
                yield need

    def _has_room(self, need: PlannedRange, size: int) -> bool:
        """Whether there is nothing to wait for: there is room and a thread, or nobody wants it any more."""
        if self._stopped or need.until <= self._position:
            return True
        assert self._fetcher is not None
        fits = self._pending_bytes + size <= self._budget and len(self._pending) < self._most_pending
        # No more than get a turn: what waits in a queue has claimed its range, and could not be given up.
        most = min(MAX_STREAMS, self._fetcher.streams.most_requests) if self._keeps else SAMPLE_STREAMS
        return self._running < most and (fits or not self._pending)

    def _let_go(self, need: PlannedRange) -> None:
        assert self._fetcher is not None
        if self._keeps:
            self._fetcher.done(need.shard, need.first, need.samples)
        else:
            self._fetcher.drop(need.shard, need.first, need.samples)

    def _fetch(self, need: PlannedRange) -> None:
        assert self._fetcher is not None
        try:
            # What another process is at is as good as there.
            if need.until > self._position:
                given_up = partial(self._gives_up, need)
                self._fetcher.ensure(need.shard, need.first, need.samples, wait=False, given_up=given_up)
        except ShardlineError as error:
            # It is the reader who ends training, when it needs the sample and meets the same.
            _log.warning("fetching ahead failed: %s", error)
        except Exception as error:  # noqa: BLE001  # told by `advance`
            self._fault = error
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _gives_up(self, need: PlannedRange) -> bool:
        return self._stopped or need.until <= self._position
