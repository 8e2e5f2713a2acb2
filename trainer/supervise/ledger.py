"""The first rank tells where its time goes: events from which contracts/goodput.py makes the account."""

from __future__ import annotations

import os
import time

from contracts.events import EventLog
from trainer.supervise.sections import Sections
from trainer.supervise.signals import StopCause

# Seconds after which the time spent is told at the next step, whether there is something to log or not: a rank that
# dies takes with it what it has not told.
TELL_EVERY_S = 5.0


class Ledger:
    """The sections of a rank's life, and the events that tell of them.

    Args:
        events: Of the attempt.
        generation: Of the ranks within the attempt.
        is_first: Whether this is the first rank; the others tell nothing.
    """

    def __init__(self, events: EventLog, *, generation: int, is_first: bool) -> None:
        self.sections = Sections()
        self._events, self._is_first = events, is_first
        self._life = f"{generation}.{os.getpid()}"
        self._told_at = time.monotonic()
        # Who reads it knows that no checkpoint was committed where none is told.
        self._emit("life", started_at=self.sections.started_at, tells=["checkpoint"])

    def resume(self, step: int, *, number: int, ranks: int, nodes: int) -> None:
        """Say that training goes on from a step, in which attempt at it."""
        self.sections.at_step(step)
        self._emit("resume", step=step, number=number, ranks=ranks, nodes=nodes)
        self.tell()

    def tell_sometimes(self) -> None:
        """Tell where time went, when that was not told for a while; at the end of a step."""
        if time.monotonic() - self._told_at >= TELL_EVERY_S:
            self.tell()

    def tell(self) -> None:
        """Tell where time went since it was last told."""
        self._told_at = time.monotonic()
        self._emit("spent", step=self.sections.now.step, seconds=self.sections.take())

    def committed(self, step: int, seconds: float) -> None:
        """Say that a checkpoint is committed; called from the thread that writes.

        Args:
            step: Of the checkpoint.
            seconds: From the copy of the state until it was durable.
        """
        self._emit("checkpoint", step=step, seconds=round(seconds, 6))

    def stopped(self, cause: StopCause, words: str) -> None:
        """Say that all ranks agreed to stop."""
        self._emit("stop", step=self.sections.now.step, cause=words, preempted=cause.is_preemption)

    def _emit(self, event: str, **fields: object) -> None:
        if self._is_first:
            self._events.emit(event, life=self._life, **fields)
