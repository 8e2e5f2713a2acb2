"""Rate limit of Cloud Storage on one object: one write per second to the same name.

https://docs.cloud.google.com/storage/quotas#objects. What the page does not say is played so: a deletion is not
counted, nor is a request that is refused.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

from rehearsal.gcs.messages import ApiError

INTERVAL_S = 1.0
"""Time between two writes to one name, in seconds."""


class WriteRate:
    """Limits of one server, in memory.

    Args:
        interval_s: Shortest time between two writes to one object; 0: no limit.
    """

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        # The oldest first, since an entry is never changed.
        self._changed_s: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, bucket: str, name: str) -> None:
        """Count a write to an object.

        Args:
            bucket: The object's bucket.
            name: Its name.

        Raises:
            ApiError: 429; the last one was less than the interval ago.
        """
        now_s = time.monotonic()
        with self._lock:
            while self._changed_s and next(iter(self._changed_s.values())) <= now_s - self.interval_s:
                self._changed_s.popitem(last=False)
            if (bucket, name) in self._changed_s:
                limit = f"one write in {self.interval_s:g} s"
                raise ApiError(429, f"The object {bucket}/{name} exceeded the rate limit of {limit}.")
            if self.interval_s:
                self._changed_s[bucket, name] = now_s

    def forget(self) -> None:
        """Count from here on, as if nothing had been changed."""
        with self._lock:
            self._changed_s.clear()
