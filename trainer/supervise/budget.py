"""When training ends before its last step: after hours, or after money.

Both may change between attempts, so they are in no fingerprint. Time is counted from the start of the launcher, however
often that starts ranks, over all attempts that led here; what an attempt did after its last checkpoint, and was killed
with its launcher, is not known to the next one.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from contracts.config import ResourcesSection

_BEFORE_NAME = "spent_before_s"
Reason = Literal["", "max_hours", "max_cost_usd"]


class Budget:
    """The time that training has taken, and may take.

    Args:
        resources: Holds the limits.
        spent_s: Seconds of the attempts before.
        began_at: When this attempt's launcher began, on the clock of time.monotonic, which a machine's processes share.
    """

    def __init__(self, resources: ResourcesSection, spent_s: float, began_at: float) -> None:
        self._resources, self._before, self._start = resources, spent_s, began_at

    @classmethod
    def of_attempt(
        cls, resources: ResourcesSection, folder: Path, *, recorded_s: float, began_at: float, is_first: bool = True
    ) -> Budget:
        """Return the budget of a start of the ranks, which may be a later one of the attempt.

        Args:
            resources: Holds the limits.
            folder: Of the attempt.
            recorded_s: In the checkpoint that is gone on from, 0 without one.
            began_at: When the launcher began.
            is_first: Of the rank: the first one keeps the file, and its time is what all decide by.
        """
        before, path = recorded_s, folder / _BEFORE_NAME
        if not is_first:
            return cls(resources, before, began_at)
        # A checkpoint of this attempt counts some of its time already. What cannot be kept is counted a little short.
        with suppress(OSError, ValueError):
            if path.exists():
                before = float(path.read_text())
            else:
                folder.mkdir(parents=True, exist_ok=True)
                path.write_text(str(recorded_s))
        return cls(resources, before, began_at)

    def spent_s(self) -> float:
        """Return the seconds so far."""
        return self._before + time.monotonic() - self._start

    def left_s(self) -> float:
        """Return the seconds until the first limit; infinite without one."""
        limits = self._resources
        hours = [limits.max_hours] if limits.max_hours is not None else []
        if limits.price_usd_per_h and limits.max_cost_usd is not None:
            hours.append(limits.max_cost_usd / limits.price_usd_per_h)
        return max(0.0, 3600 * min(hours) - self.spent_s()) if hours else float("inf")

    def exceeded_by(self, spent_s: float) -> Reason:
        """Return which limit a time is beyond; empty: none.

        Args:
            spent_s: Of the first rank, so that all decide alike.
        """
        hours = spent_s / 3600
        limits = self._resources
        if limits.max_hours is not None and hours >= limits.max_hours:
            return "max_hours"
        price, most = limits.price_usd_per_h, limits.max_cost_usd
        return "max_cost_usd" if price is not None and most is not None and hours * price >= most else ""
