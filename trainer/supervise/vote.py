"""The ranks agree, at the end of a step, to stop (some of them may want to) and when the next checkpoint is due."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from trainer.checkpoint.manager import Schedule
from trainer.parallel.process_group import Rank
from trainer.supervise.stop import StopCause, StopRequest

Item = TypeVar("Item")

# Seconds between votes where steps are shorter: a stop is agreed within this and two steps.
VOTE_EVERY_S = 0.5
# Steps between votes at most: the length of the next steps is guessed from the last ones.
_MAX_STEPS = 1000
# A cause and a rank in one number, whose maximum is a highest cause and a rank that gave it.
_CAUSE_UNIT = 1 << 32


@dataclass(frozen=True)
class StopAgreement:
    """What all ranks agreed on."""

    cause: StopCause
    rank: int
    """One that wanted it."""

    @property
    def words(self) -> str:
        """Say why training stops."""
        return f"{self.cause.words} (rank {self.rank})"


class Vote:
    """The ranks' votes, on a group of its own: processors only, so no device is waited for.

    A vote is cast at the end of one step and read at the end of the next, when it has long arrived. All ranks derive
    the number of steps to the next vote from the same numbers, so they cast at the same steps. Every rank must make
    one, and call `step_done` equally often.
    """

    def __init__(self, stop: StopRequest, rank: Rank, *, timeout_s: float, schedule: Schedule | None = None) -> None:
        self.agreed: StopAgreement | None = None
        self._stop, self._rank, self._schedule = stop, rank, schedule
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self._pending: tuple[Any, torch.Tensor, int] | None = None
        self._steps = 0
        self._next_at = 1
        self._mark = time.monotonic()
        self._mark_steps = 0

    def step_done(self) -> StopAgreement | None:
        """Take part at the end of a step, or of an evaluation's round; return why all ranks stop here, if they do."""
        self._steps += 1
        if self._pending is not None:
            self._read()
        if self.agreed is None and self._steps >= self._next_at:
            self._cast()
        return self.agreed

    def rounds_of(self, items: Iterator[Item], rounds: int) -> Iterator[Item]:
        """Pass on at most `rounds` items, the number on the rank that has most, until a stop is agreed.

        Every rank must go through to the end: one with fewer items votes on without them.
        """
        for _ in range(rounds):
            item = next(items, None)
            if item is not None:
                yield item
            if self.step_done() is not None:
                return

    def _cast(self) -> None:
        now = time.monotonic()
        # Every rank's own measure, of which the longest counts: the slowest rank's signal must not wait too long.
        step_us = int(1e6 * (now - self._mark) / max(1, self._steps - self._mark_steps))
        self._mark, self._mark_steps = now, self._steps
        wanted = self._stop.wanted
        wish = wanted * _CAUSE_UNIT + self._rank.rank if wanted else 0
        proposed, saves = (self._schedule.propose(), self._schedule.saves) if self._schedule else (0, 0)
        values = torch.tensor([wish, step_us, proposed], dtype=torch.int64)
        work = dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._pending = (work, values, saves)

    def _read(self) -> None:
        assert self._pending is not None
        work, values, saves = self._pending
        work.wait()
        self._pending = None
        wish, step_us, proposed = (int(value) for value in values)
        if self._schedule is not None:
            self._schedule.agree(proposed, saves=saves)
        if wish:
            self.agreed = StopAgreement(StopCause(wish // _CAUSE_UNIT), wish % _CAUSE_UNIT)
        steps = int(VOTE_EVERY_S * 1e6 / max(1, step_us))
        # The step that reads casts again at the earliest.
        self._next_at = self._steps - 1 + min(_MAX_STEPS, max(1, steps))
