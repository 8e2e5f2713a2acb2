"""Optimizer steps on the slots of a loader, and the loader's processes: held, let go on, ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

from trainer.data.device import DataClock, DataTime
from trainer.data.loader import SlotBatch
from trainer.data.shard_cache import Prefetcher

if TYPE_CHECKING:
    from trainer.profiling.bench import Bench


@dataclass(frozen=True)
class Passed:
    """Optimizer steps that were taken, all ranks together."""

    steps: int
    samples: int
    """Of all ranks."""
    data: DataTime
    units_per_sample: dict[str, float]
    """Mean of what the task counts besides samples, by its name; of this rank."""

    def rate(self, ranks: int) -> float:
        """Return samples per second of one rank."""
        return self.samples / ranks / self.data.wall_s


class Steps:
    """Optimizer steps on the slots of a loader; all ranks take equally many.

    Attributes:
        samples: Taken so far, by all ranks.
        workers: The loader's processes.
    """

    def __init__(self, bench: Bench, slots: Iterator[SlotBatch], clock: DataClock) -> None:
        self._bench, self._slots, self._clock = bench, slots, clock
        self._step_s = 0.0
        self.samples = 0
        self._own_samples = self._units = 0
        self.workers: list[BaseProcess] = []

    def take_one(self) -> int:
        """Take an optimizer step; return its slots."""
        number, last = 0, False
        while not last:
            slot = next(self._slots)
            with self._bench.around("slot"):
                self._bench.compute_slot(slot, self._clock)
            if slot.request.counts:
                self._own_samples += len(slot.request.samples)
                self._units += slot.units
            number, last = number + 1, slot.request.last_of_step
        with self._bench.around("update"):
            self._bench.take_step()
        self.samples += slot.request.batch_samples
        return number

    def time(self, number: int) -> None:
        """Take steps, and agree on how long one takes: a rank that took one more than others would wait for ever."""
        self._step_s = self._bench.time(self.take_one, number)

    def hold(self) -> None:
        """Stop the loader processes where they are, if nobody else can be waiting for them."""
        if self._bench.holds:
            self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def end_workers(self, *, gently: bool) -> None:
        """End the loader processes.

        Args:
            gently: Let the loader do it, which takes a second: a thread that pins memory waits for their last words.
        """
        self.go_on()
        if gently or not self.workers:
            return
        # torch watches its loader processes by this signal, and would raise what it sees here.
        watching = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._signal(signal.SIGKILL)
        for worker in self.workers:
            worker.join()
        signal.signal(signal.SIGCHLD, watching)

    def _signal(self, number: int) -> None:
        for worker in self.workers:
            if worker.pid is not None and worker.exitcode is None:
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, number)

    def for_about(self, seconds: float) -> Passed:
        """Take steps for about that long, one at least, and measure them."""
        return self.take(max(1, round(seconds / self._step_s)))

    def take(self, number: int) -> Passed:
        """Take a number of steps, and measure them."""
        self._bench.synchronise()
        self._clock.take()
        self._clock.restart()
        before = self.samples
        self._own_samples = self._units = 0
        for _ in range(number):
            self.take_one()
        self._bench.synchronise()
        unit = self._bench.unit
        units = {unit: self._units / max(1, self._own_samples)} if unit else {}
        return Passed(number, self.samples - before, self._clock.take(), units)


def passing(slots: Iterator[SlotBatch], position: int, ahead: Prefetcher) -> Iterator[SlotBatch]:
    """Pass slots on, and tell what reads ahead how far they are."""
    for slot in slots:
        yield slot
        if slot.request.last_of_step:
            position += slot.request.batch_samples
            ahead.advance(position)
