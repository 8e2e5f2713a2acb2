"""The time of the local cloud: it starts at the machine's, can run faster, and can be advanced.

Schedules fire by this clock, and resources have its times. Processes, polls and deadlines keep the machine's.
"""

from __future__ import annotations

import datetime
import threading
import time


def to_datetime(seconds: float) -> datetime.datetime:
    """Return a time in seconds since 1970 as Google's messages take it."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


class Clock:
    """A clock that can run ahead, never back.

    Args:
        start: Seconds since 1970 at which it begins; None: the machine's time.
        rate: Its seconds per second of the machine. 0 stands still until `advance`.
    """

    def __init__(self, start: float | None = None, rate: float = 1.0) -> None:
        self._base = time.time() if start is None else start
        self._since = time.monotonic()
        self._rate = _checked_rate(rate)
        self._changed = threading.Condition()

    @property
    def rate(self) -> float:
        """Its seconds per second of the machine."""
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        with self._changed:
            self._base, self._since = self._now(), time.monotonic()
            self._rate = _checked_rate(rate)
            self._changed.notify_all()

    def now(self) -> float:
        """Return the time, in seconds since 1970."""
        with self._changed:
            return self._now()

    def advance(self, seconds: float) -> None:
        """Move on at once; ValueError for a negative number: it would fire schedules twice."""
        if seconds < 0:
            raise ValueError(f"a clock that runs back by {-seconds} s would fire schedules twice")
        with self._changed:
            self._base += seconds
            self._changed.notify_all()

    def sleep_until(self, moment: float, stop: threading.Event) -> bool:
        """Wait until the clock shows `moment` (seconds since 1970); return False when `stop` was set before.

        `stop` is checked ten times a second, and whenever the clock is advanced.
        """
        with self._changed:
            while not stop.is_set():
                left_s = moment - self._now()
                if left_s <= 0:
                    return True
                self._changed.wait(min(left_s / self._rate, 0.1) if self._rate else 0.1)
        return False

    def _now(self) -> float:
        return self._base + (time.monotonic() - self._since) * self._rate


def _checked_rate(rate: float) -> float:
    if rate < 0:
        raise ValueError(f"a clock's rate is at least 0, not {rate}")
    return rate
