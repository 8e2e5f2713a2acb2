"""What the logs say about data: how long training waited for it, and which samples others stepped in for."""

from __future__ import annotations

import torch

from contracts.events import EventLog
from trainer.data.clock import DataClock, DataTime
from trainer.data.loader import SlotBatch


class DataReport:
    """One rank's account of its data between two reports."""

    def __init__(self, device: torch.device, events: EventLog, *, replace_bad: bool) -> None:
        self.clock = DataClock(device)
        self._device, self._events, self._replace_bad = device, events, replace_bad
        self._replaced = self._units = 0
        self._named: set[int] = set()

    def count(self, slot: SlotBatch) -> None:
        """Count the task's units, and bad samples that others stepped in for; name each of these once an attempt."""
        if not slot.request.counts:
            return
        self._units += slot.units
        self._replaced += len(slot.replaced)
        for one in slot.replaced:
            if one.sample not in self._named:
                self._named.add(one.sample)
                self._events.emit("log", message=f"sample {one.sample} is replaced by {one.by}: {one.reason}")

    def counts(self) -> list[float]:
        """Return what this rank counted since the last call, to be added over ranks for `describe`."""
        own = self.clock.take()
        counts = [own.wall_s, own.loader_s, own.copy_s or 0.0, float(self._replaced), float(self._units)]
        self._replaced = self._units = 0
        return counts

    def describe(self, sums: list[float]) -> tuple[dict[str, float], str]:
        """Return scalars and words about what all ranks counted.

        Args:
            sums: `counts`, added over ranks.
        """
        time = DataTime(sums[0], sums[1], sums[2] if self._device.type == "cuda" else None)
        values, said = {"data/time_percent": time.share(time.loader_s)}, time.describe()
        if time.copy_s is not None:
            values["data/host_to_device_percent"] = time.share(time.copy_s)
        if self._replace_bad:
            values["data/replaced_samples"] = sums[3]
        if sums[3]:
            said += f", bad samples replaced: {sums[3]:.0f}"
        return values, said
