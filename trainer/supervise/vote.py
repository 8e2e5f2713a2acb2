"""Voting at the end of a step: ranks agree whether to stop, and whether a checkpoint is due."""

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

# Seconds between votes if steps are shorter: a stop is agreed within this time plus two steps.
VOTE_EVERY_S = 0.5
# Maximum steps between votes; the step time is estimated from the last steps.
_MAX_STEPS = 1000
# A vote is cause * unit + rank: its maximum over ranks has the highest cause.
_CAUSE_UNIT = 1 << 32


@dataclass(frozen=True)
class StopAgreement:
    """A stop that all ranks agreed on."""

    cause: StopCause
    rank: int
    """A rank that requested it."""

    @property
    def description(self) -> str:
        """Return the cause and the rank for messages."""
        return f"{self.cause.description} (rank {self.rank})"


class Vote:
    """Votes of the ranks in a separate gloo group, without a device sync.

    A vote is cast at the end of one step and read at the end of the next. All ranks derive the step of the next vote
    from the same numbers. Every rank must create a Vote and call `step_done` equally often.
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
        """Vote at the end of a step or evaluation round; return the agreed stop, or None."""
        self._steps += 1
        if self._pending is not None:
            self._read()
        if self.agreed is None and self._steps >= self._next_at:
            self._cast()
        return self.agreed

    def rounds_of(self, items: Iterator[Item], rounds: int) -> Iterator[Item]:
        """Yield up to `rounds` items until a stop is agreed; `rounds` is the maximum over ranks.

        Every rank must iterate to the end: ranks with fewer items keep voting.
        """
        for _ in range(rounds):
            item = next(items, None)
            if item is not None:
                yield item
            if self.step_done() is not None:
                return

    def _cast(self) -> None:
        now = time.monotonic()
        # The slowest rank's step time decides, so that its signal does not wait too long.
        step_us = int(1e6 * (now - self._mark) / max(1, self._steps - self._mark_steps))
        self._mark, self._mark_steps = now, self._steps
        cause = self._stop.cause
        vote = cause * _CAUSE_UNIT + self._rank.rank if cause else 0
        proposed, saves = (self._schedule.propose(), self._schedule.saves) if self._schedule else (0, 0)
        values = torch.tensor([vote, step_us, proposed], dtype=torch.int64)
        work = dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._pending = (work, values, saves)

    def _read(self) -> None:
        assert self._pending is not None
        work, values, saves = self._pending
        work.wait()
        self._pending = None
        vote, step_us, proposed = (int(value) for value in values)
        if self._schedule is not None:
            self._schedule.agree(proposed, saves=saves)
        if vote:
            self.agreed = StopAgreement(StopCause(vote // _CAUSE_UNIT), vote % _CAUSE_UNIT)
        steps = int(VOTE_EVERY_S * 1e6 / max(1, step_us))
        # The next vote is cast no earlier than in this step.
        self._next_at = self._steps - 1 + min(_MAX_STEPS, max(1, steps))
