"""When a checkpoint is due: a step on which all ranks agree."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from contracts.config import CheckpointSection
from trainer.checkpoint.manager import CheckpointManager
from trainer.parallel.process_group import Rank


class Schedule:
    """Decides when the loop saves: every so many steps, or by time, which rank 0 turns into a step for all.

    Args:
        rules: The configuration's section.
        checkpoints: What knows the cost of a checkpoint.
        rank: This rank.
    """

    def __init__(self, rules: CheckpointSection, checkpoints: CheckpointManager, rank: Rank) -> None:
        self._rules, self._checkpoints, self._rank = rules, checkpoints, rank
        self._due_at: int | None = None
        self.restart()

    def restart(self) -> None:
        """Begin to measure a step: what was before it is none of its time."""
        self._since = time.perf_counter()

    def step_taken(self) -> None:
        """End the measurement of a step."""
        if self._rank.is_first:
            self._checkpoints.step_took(time.perf_counter() - self._since)

    def plan(self, step: int) -> None:
        """Agree on the next step with a checkpoint; all ranks together, after a save and now and then."""
        if self._rules.every_steps is not None:
            return
        due_at = step + self._checkpoints.steps_until_due() if self._rank.is_first else 0
        answer = torch.tensor(due_at, device=self._rank.device)
        dist.broadcast(answer, src=0)
        self._due_at = int(answer)

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is due after optimizer step `step`; the same on all ranks."""
        if self._rules.every_steps is not None:
            return step % self._rules.every_steps == 0
        return self._due_at is not None and step >= self._due_at
