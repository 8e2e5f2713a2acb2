"""Clock of the local cloud: starts at the real time, can run faster, and can be advanced.

Schedules and times of resources use this clock. Processes, polling and deadlines use real time.
"""

from __future__ import annotations

import datetime
import threading
import time


def to_datetime(seconds: float) -> datetime.datetime:
    """Convert seconds since 1970 to the datetime of Google's messages."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


class Clock:
    """A monotonic clock with adjustable rate.

    Args:
        start: Start time in seconds since 1970; None: the real time.
        rate: Simulated seconds per real second. 0 stops it until `advance`.
    """

    def __init__(self, start: float | None = None, rate: float = 1.0) -> None:
        self._base = time.time() if start is None else start
        self._rebased_at = time.monotonic()
        self._rate = _checked_rate(rate)
        self._changed = threading.Condition()

    @property
    def rate(self) -> float:
        """Simulated seconds per real second."""
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        with self._changed:
            self._base, self._rebased_at = self._now(), time.monotonic()
            self._rate = _checked_rate(rate)
            self._changed.notify_all()

    def now(self) -> float:
        """Return the time, in seconds since 1970."""
        with self._changed:
            return self._now()

    def advance(self, seconds: float) -> None:
        """Advance the clock; ValueError for a negative number, which would start scheduled runs twice."""
        if seconds < 0:
            raise ValueError(f"cannot advance the clock by {seconds} s: scheduled runs would start twice")
        with self._changed:
            self._base += seconds
            self._changed.notify_all()

    def sleep_until(self, moment: float, stop: threading.Event) -> bool:
        """Wait until the time is `moment` (seconds since 1970); return False if `stop` is set before.

        Checks `stop` ten times per second, and whenever the clock is advanced.
        """
        with self._changed:
            while not stop.is_set():
                left_s = moment - self._now()
                if left_s <= 0:
                    return True
                self._changed.wait(min(left_s / self._rate, 0.1) if self._rate else 0.1)
        return False

    def _now(self) -> float:
        return self._base + (time.monotonic() - self._rebased_at) * self._rate


def _checked_rate(rate: float) -> float:
    if rate < 0:
        raise ValueError(f"a clock's rate is at least 0, not {rate}")
    return rate
