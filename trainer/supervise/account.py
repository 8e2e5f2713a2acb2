"""Current section of a rank, and time events for contracts/goodput.py.

A rank is always in exactly one section, so the section times add up to its lifetime. The watchdog limits the same
sections. Only the main thread enters sections; any thread may read `now`.
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

# Seconds between time events; a killed rank loses the time since its last event.
EMIT_EVERY_S = 2.0


@dataclass(frozen=True)
class CurrentSection:
    """The section of a rank, and when it was entered."""

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
    """Time of one rank by section, starting in set-up."""

    def __init__(self) -> None:
        self.now = CurrentSection("set-up", time.monotonic(), 0)
        self.steps = 0
        """Optimizer steps of this process."""
        self._seconds = dict.fromkeys(SECTION_NAMES, 0.0)

    def enter(self, section: str) -> None:
        """Enter a section; it may be the current one again."""
        before, moment = self.now, time.monotonic()
        self._seconds[before.section] += moment - before.since
        # Assigned atomically, for readers in other threads.
        self.now = CurrentSection(section, moment, before.step)

    def alive(self) -> None:
        """Report progress: restart the time limit of the current section."""
        self.enter(self.now.section)

    @contextmanager
    def inside(self, section: str) -> Iterator[None]:
        """Enter a section for the block, and re-enter the previous one afterwards."""
        before = self.now.section
        self.enter(section)
        try:
            yield
        finally:
            self.enter(before)

    def steps_of(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yield a loader's items: waiting for it is section `data`, processing an item is `step`."""
        while True:
            self.enter("data")
            try:
                item = next(items)
            except StopIteration:
                self.enter("step")
                return
            self.enter("step")
            yield item

    def with_progress(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yield items, and report progress for each."""
        for item in items:
            self.alive()
            yield item

    def at_step(self, step: int) -> None:
        """Set the training's step without counting a step of this process."""
        self.now = CurrentSection(self.now.section, self.now.since, step)

    def stepped(self, step: int) -> None:
        """Count an optimizer step; `step` is the training's step now."""
        self.steps += 1
        self.at_step(step)

    def take(self) -> dict[str, float]:
        """Return the seconds per section since the last call; sections without time are omitted."""
        self.alive()
        seconds, self._seconds = self._seconds, dict.fromkeys(SECTION_NAMES, 0.0)
        return {name: value for name, value in seconds.items() if value > 0}


class Account:
    """Sections of a rank and their events, emitted by rank 0 only."""

    def __init__(self, events: EventLog, *, is_first: bool) -> None:
        self.sections = Sections()
        self._events, self._is_first = events, is_first
        started_at = time.time()
        self._life = f"{os.getpid()}.{started_at:.3f}"
        self._emitted_at = time.monotonic()
        # `tells`: without a checkpoint event, no checkpoint was committed.
        self._emit("life", started_at=started_at, tells=["checkpoint"])

    def resume(self, step: int, *, number: int, ranks: int, nodes: int) -> None:
        """Emit the step from which training continues, and the attempt number."""
        self.sections.at_step(step)
        self._emit("resume", step=step, number=number, ranks=ranks, nodes=nodes)
        self.emit_time()

    def emit_if_due(self) -> None:
        """Emit the time if `EMIT_EVERY_S` seconds have passed; at the end of a step."""
        if time.monotonic() - self._emitted_at >= EMIT_EVERY_S:
            self.emit_time()

    def emit_time(self) -> None:
        """Emit the time per section since the last time event."""
        self._emitted_at = time.monotonic()
        self._emit("spent", step=self.sections.now.step, seconds=self.sections.take())

    def committed(self, step: int, seconds: float) -> None:
        """Emit a committed checkpoint, `seconds` after its copy started; called from a thread."""
        self._emit("checkpoint", step=step, seconds=round(seconds, 6))

    def stopped(self, cause: str) -> None:
        """Emit that all ranks agreed to stop."""
        self._emit("stop", step=self.sections.now.step, cause=cause, preempted=True)

    def _emit(self, event: str, **fields: object) -> None:
        if self._is_first:
            self._events.emit(event, life=self._life, **fields)
