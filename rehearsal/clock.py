"""The rehearsed time: it starts at the real one, can run faster, and can be moved on at once.

Schedules fire by this clock, and every time that the local cloud writes into a resource is its. What runs underneath
(processes, polls, deadlines) keeps the machine's.
"""

from __future__ import annotations

import threading
import time


class Clock:
    """A clock that can run ahead, never back.

    Args:
        start: Seconds since 1970 at which it begins; the machine's time where none is given.
        rate: Seconds of the rehearsed time in one of the machine's. 0 stands still until `advance`.
    """

    def __init__(self, start: float | None = None, rate: float = 1.0) -> None:
        self._base = time.time() if start is None else start
        self._since = time.monotonic()
        self._rate = _checked_rate(rate)
        self._moved = threading.Condition()

    @property
    def rate(self) -> float:
        """Seconds of the rehearsed time in one of the machine's."""
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        with self._moved:
            self._base, self._since = self._now(), time.monotonic()
            self._rate = _checked_rate(rate)
            self._moved.notify_all()

    def now(self) -> float:
        """Return the time, in seconds since 1970."""
        with self._moved:
            return self._now()

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`, at once.

        Raises:
            ValueError: `seconds` is negative: this clock never runs back.
        """
        if seconds < 0:
            raise ValueError(f"a clock that runs back by {-seconds} s would fire schedules twice")
        with self._moved:
            self._base += seconds
            self._moved.notify_all()

    def sleep_until(self, moment: float, stop: threading.Event) -> bool:
        """Wait until the clock shows `moment` (seconds since 1970); return False when `stop` was set before.

        `stop` is looked at ten times a second, and whenever the clock is moved.
        """
        with self._moved:
            while not stop.is_set():
                left = moment - self._now()
                if left <= 0:
                    return True
                self._moved.wait(min(left / self._rate, 0.1) if self._rate else 0.1)
        return False

    def _now(self) -> float:
        return self._base + (time.monotonic() - self._since) * self._rate


def _checked_rate(rate: float) -> float:
    if rate < 0:
        raise ValueError(f"a clock's rate is at least 0, not {rate}")
    return rate
