"""A value that many ask for and one thread reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from contracts.errors import ShardlineError

T = TypeVar("T")


class Shared(Generic[T]):
    """Reads a value when it is asked for and too old; who asks while it is read waits for that reading.

    Args:
        read: Reads the value.
        fresh_s: For how long a value is good, in seconds, given the value and how long reading it took.
    """

    def __init__(self, read: Callable[[], T], fresh_s: Callable[[T, float], float]) -> None:
        self._read = read
        self._fresh_s = fresh_s
        self._lock = threading.Lock()
        self._value: T | None = None
        self._error: ShardlineError | OSError | None = None
        self._read_at = float("-inf")
        self._good_until = float("-inf")

    def get(self) -> T:
        """Return the value.

        Raises:
            ShardlineError, OSError: It could not be read; who waited for that reading gets the same error.
        """
        asked_at = time.monotonic()
        with self._lock:
            if self._read_at < asked_at and self._good_until < time.monotonic():
                self._read_now()
            if self._error is not None:
                raise self._error
            assert self._value is not None
            return self._value

    def _read_now(self) -> None:
        started_at = time.monotonic()
        good_for = 1.0
        try:
            self._value, self._error = self._read(), None
            good_for = self._fresh_s(self._value, time.monotonic() - started_at)
        except (ShardlineError, OSError) as error:
            # Without its traceback, which would hold what the reading held.
            self._error = error.with_traceback(None)
        self._read_at = time.monotonic()
        self._good_until = self._read_at + good_for
