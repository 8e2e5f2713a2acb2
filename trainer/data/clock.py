"""How long training waits for its data: for the loader, and for the copy to the device, measured apart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch

Item = TypeVar("Item")


@dataclass(frozen=True)
class DataTime:
    """Where the time of some steps went, in seconds."""

    wall_s: float
    """Of the steps: evaluation and checkpoints are not in it."""
    loader_s: float
    """Inside next() of the loader. A GPU computes meanwhile what it was given before: at most this was lost."""
    copy_s: float | None
    """Of copies from host to device by the GPU's own clock; None: not measured, since there is no GPU."""
    wait_s: float | None = None
    """In which the GPU had nothing to do but to wait for a copy, by its own clock; None: not measured."""

    def describe(self) -> str:
        """Say it as shares of the time, in percent."""
        copy = "not measured" if self.copy_s is None else f"{self.share(self.copy_s):.1f} %"
        return f"data time {self.share(self.loader_s):.1f} % (host to device {copy})"

    def share(self, seconds: float) -> float:
        """Return seconds as percent of the wall time."""
        return 100 * seconds / self.wall_s if self.wall_s > 0 else 0.0


class DataClock:
    """Adds up the waiting of one rank between two reports.

    Args:
        device: Of the steps.
        waits: On a GPU, measure its standing still for copies too.
    """

    def __init__(self, device: torch.device, *, waits: bool = False) -> None:
        self._on_gpu = device.type == "cuda"
        self._counts_waits = waits and self._on_gpu
        self._copies: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._wall_s = self._loader_s = 0.0
        self._mark = time.perf_counter()

    def slots(self, slots: Iterator[Item]) -> Iterator[Item]:
        """Pass on what a loader yields, and measure how long it takes to."""
        self.restart()
        while True:
            self._count_wall()
            asked = self._mark
            try:
                slot = next(slots)
            except StopIteration:
                return
            self._count_wall()
            self._loader_s += self._mark - asked
            yield slot

    def copying(self) -> AbstractContextManager[None]:
        """Measure copies to the device that are started inside, without waiting for them."""
        return self._between(self._copies)

    def waiting(self) -> AbstractContextManager[None]:
        """Measure how long the stream that computes stands still for what it is told inside to wait for.

        Only where the clock was made for it: reading it waits for the newest computation.
        """
        return self._between(self._waits) if self._counts_waits else nullcontext()

    @contextmanager
    def _between(self, found: list[tuple[torch.cuda.Event, torch.cuda.Event]]) -> Iterator[None]:
        """Add what the GPU needs from the beginning of the block to its end, on the current stream."""
        if not self._on_gpu:
            yield
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        yield
        end.record()
        found.append((begin, end))

    def step_done(self) -> None:
        """Count what the step's last slot took; what follows until `restart` is no step."""
        self._count_wall()

    def restart(self) -> None:
        """Leave out the time since the last slot, step or report: something else than a step was done."""
        self._mark = time.perf_counter()

    def take(self) -> DataTime:
        """Return what was counted since the last call; on a GPU it waits for the newest copy."""
        self._count_wall()
        copy_s = _take(self._copies) if self._on_gpu else None
        wait_s = _take(self._waits) if self._counts_waits else None
        found = DataTime(self._wall_s, self._loader_s, copy_s, wait_s)
        self._wall_s = self._loader_s = 0.0
        return found

    def _count_wall(self) -> None:
        now = time.perf_counter()
        self._wall_s += now - self._mark
        self._mark = now


def _take(events: list[tuple[torch.cuda.Event, torch.cuda.Event]]) -> float:
    """Return the seconds between pairs of events, once the last of them has happened, and forget them."""
    if events:
        events[-1][1].synchronize()
    seconds: float = sum(begin.elapsed_time(end) for begin, end in events) / 1000
    events.clear()
    return seconds
