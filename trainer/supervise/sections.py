"""What a rank is doing now: the one account that the watchdog (limits) and the goodput ledger (time) both read.

A rank is always in exactly one section, so the seconds of all sections add up to its life. Entering one costs a look at
the clock. Only the rank's main thread enters; any thread may read `now`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from contracts.goodput import SECTION_NAMES

Item = TypeVar("Item")


@dataclass(frozen=True)
class CurrentSection:
    """What a rank is in, since when."""

    section: str
    """One of `SECTION_NAMES`."""
    since: float
    """On the clock of time.monotonic."""
    step: int
    """Optimizer steps taken."""

    @property
    def lasted_s(self) -> float:
        """Seconds since it was entered."""
        return time.monotonic() - self.since


class Sections:
    """The sections of one rank's life, which begins in set-up."""

    def __init__(self) -> None:
        self.started_at = time.time()
        """Seconds since the epoch."""
        self.now = CurrentSection("set-up", time.monotonic(), 0)
        self.steps = 0
        """Optimizer steps of this process."""
        self._seconds = dict.fromkeys(SECTION_NAMES, 0.0)

    def enter(self, section: str) -> None:
        """Leave the current section for another, or for a new turn of the same."""
        before, moment = self.now, time.monotonic()
        self._seconds[before.section] += moment - before.since
        # One assignment of an unchanging object: a reading thread sees the old or the new.
        self.now = CurrentSection(section, moment, before.step)

    def alive(self) -> None:
        """Say that the current section gets on: its limit begins anew."""
        self.enter(self.now.section)

    @contextmanager
    def inside(self, section: str) -> Iterator[None]:
        """Be in a section for the length of a block, and then in the one from before."""
        before = self.now.section
        self.enter(section)
        try:
            yield
        finally:
            self.enter(before)

    def steps_of(self, items: Iterator[Item]) -> Iterator[Item]:
        """Pass on what a loader yields: waiting for it is section `data`, what the caller does with it `step`."""
        while True:
            self.enter("data")
            try:
                item = next(items)
            except StopIteration:
                self.enter("step")
                return
            self.enter("step")
            yield item

    def each_alive(self, items: Iterator[Item]) -> Iterator[Item]:
        """Pass on items, each a sign of life of the current section."""
        for item in items:
            self.alive()
            yield item

    def at_step(self, step: int) -> None:
        """Say how many optimizer steps training has taken, not counting as one of this process."""
        self.now = CurrentSection(self.now.section, self.now.since, step)

    def stepped(self, step: int) -> None:
        """Say that an optimizer step was taken; `step` is their number now."""
        self.steps += 1
        self.at_step(step)

    def take(self) -> dict[str, float]:
        """Return the seconds spent in each section since the last call, those of none left out."""
        self.alive()
        found = {name: seconds for name, seconds in self._seconds.items() if seconds > 0}
        self._seconds = dict.fromkeys(SECTION_NAMES, 0.0)
        return found
