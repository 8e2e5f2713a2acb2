"""A value that many ask for and one thread reads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from contracts.errors import ShardlineError
from inspection.ui.addresses import NotFoundError

T = TypeVar("T")


@dataclass(frozen=True)
class _Outcome(Generic[T]):
    """What the newest reading came to."""

    value: T | None
    error: Exception | None


class Shared(Generic[T]):
    """Reads a value when it is asked for and too old; who asks while it is read waits for that reading.

    Waiting costs no thread: of a value that takes long, one thread reads, whoever asks.

    Args:
        read: Reads the value.
        fresh_s: For how long a value is good, in seconds, given the value and how long reading it took.
        pool: Where it is read.
        patience_s: How long to wait for a newer value where there is one already; None: for as long as it takes.
    """

    def __init__(
        self,
        read: Callable[[], T],
        fresh_s: Callable[[T, float], float],
        pool: Executor,
        *,
        patience_s: float | None = None,
    ) -> None:
        self._read = read
        self._fresh_s = fresh_s
        self._pool = pool
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._reading: Future[None] | None = None
        self._outcome: _Outcome[T] | None = None
        self._good_until = float("-inf")

    async def get(self) -> T:
        """Return the value.

        Raises:
            ShardlineError, OSError, NotFoundError: It could not be read; who waited for it gets the same error.
        """
        with self._lock:
            outcome = self._outcome
            if self._reading is None and self._good_until < time.monotonic():
                self._reading = self._pool.submit(self._read_now)
            reading = self._reading
        if reading is not None:
            # Not `wait_for`: one that gives up must not take the reading from the others.
            patience_s = self._patience_s if outcome is not None else None
            done, _ = await asyncio.wait({asyncio.wrap_future(reading)}, timeout=patience_s)
            for each in done:
                # A fault of ours is for all who wait.
                each.result()
            outcome = self._outcome
        assert outcome is not None
        if outcome.error is not None:
            # Without its traceback, which would hold what the reading held.
            raise outcome.error.with_traceback(None)
        return outcome.value  # type: ignore[return-value]

    def _read_now(self) -> None:
        started_at = time.monotonic()
        good_for, outcome = float("-inf"), self._outcome
        try:
            value = self._read()
            outcome = _Outcome(value, None)
            good_for = self._fresh_s(value, time.monotonic() - started_at)
        except (ShardlineError, OSError, NotFoundError) as error:
            outcome, good_for = _Outcome(None, error.with_traceback(None)), 1.0
        finally:
            with self._lock:
                self._outcome = outcome
                self._good_until = time.monotonic() + good_for
                self._reading = None
