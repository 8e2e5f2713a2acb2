"""What a rank is doing now, and the events from which contracts/goodput.py makes the account of its time.

A rank is always in exactly one section, so the seconds of all sections add up to its life. The watchdog limits the same
sections. Only the rank's main thread enters them; any thread may read `now`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from contracts.events import EventLog
from contracts.goodput import SECTION_NAMES

Item = TypeVar("Item")

# Seconds after which the time spent is emitted at the next step: a rank that is killed loses what it has not emitted.
EMIT_EVERY_S = 2.0


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
        self.now = CurrentSection("set-up", time.monotonic(), 0)
        self.steps = 0
        """Optimizer steps of this process."""
        self._seconds = dict.fromkeys(SECTION_NAMES, 0.0)

    def enter(self, section: str) -> None:
        """Leave the current section for another, or for a new turn of the same."""
        before, moment = self.now, time.monotonic()
        self._seconds[before.section] += moment - before.since
        # One assignment of a frozen object: a thread that reads sees the old or the new.
        self.now = CurrentSection(section, moment, before.step)

    def alive(self) -> None:
        """Restart the limit of the current section: it makes progress."""
        self.enter(self.now.section)

    @contextmanager
    def inside(self, section: str) -> Iterator[None]:
        """Be in a section in the block, and then in the one from before."""
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
        """Pass on items, each as progress of the current section."""
        for item in items:
            self.alive()
            yield item

    def at_step(self, step: int) -> None:
        """Set the number of optimizer steps that training has taken, without counting one of this process."""
        self.now = CurrentSection(self.now.section, self.now.since, step)

    def stepped(self, step: int) -> None:
        """Count an optimizer step; `step` is the training's number of them now."""
        self.steps += 1
        self.at_step(step)

    def take(self) -> dict[str, float]:
        """Return the seconds spent in each section since the last call, sections without any left out."""
        self.alive()
        spent = {name: seconds for name, seconds in self._seconds.items() if seconds > 0}
        self._seconds = dict.fromkeys(SECTION_NAMES, 0.0)
        return spent


class Account:
    """The sections of a rank, and the first rank's events of them; the other ranks emit none."""

    def __init__(self, events: EventLog, *, is_first: bool) -> None:
        self.sections = Sections()
        self._events, self._is_first = events, is_first
        started_at = time.time()
        self._life = f"{os.getpid()}.{started_at:.3f}"
        self._emitted_at = time.monotonic()
        # A reader then knows that no checkpoint was committed where none is emitted.
        self._emit("life", started_at=started_at, tells=["checkpoint"])

    def resume(self, step: int, *, number: int, ranks: int, nodes: int) -> None:
        """Emit that training continues from a step, and in which attempt at it."""
        self.sections.at_step(step)
        self._emit("resume", step=step, number=number, ranks=ranks, nodes=nodes)
        self.tell()

    def tell_sometimes(self) -> None:
        """Emit the time spent if the last event of it is old; at the end of a step."""
        if time.monotonic() - self._emitted_at >= EMIT_EVERY_S:
            self.tell()

    def tell(self) -> None:
        """Emit the time spent since the last event of it."""
        self._emitted_at = time.monotonic()
        self._emit("spent", step=self.sections.now.step, seconds=self.sections.take())

    def committed(self, step: int, seconds: float) -> None:
        """Emit that a checkpoint is committed, `seconds` after its copy was begun; called from a thread."""
        self._emit("checkpoint", step=step, seconds=round(seconds, 6))

    def stopped(self, words: str) -> None:
        """Emit that all ranks agreed to stop."""
        self._emit("stop", step=self.sections.now.step, cause=words, preempted=True)

    def _emit(self, event: str, **fields: object) -> None:
        if self._is_first:
            self._events.emit(event, life=self._life, **fields)
