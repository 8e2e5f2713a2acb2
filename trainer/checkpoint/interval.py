"""When a checkpoint is due: the interval that loses least, from what one costs and how often machines go, in steps.

Young ("A first order approximation to the optimum checkpoint interval", 1974) and Daly ("A higher order estimate of the
optimum checkpoint interval for restart dumps", 2006): writing every T seconds costs C / T of the time, a failure loses
T / 2 on average, so the sum is least at T = sqrt(2 C M), M being the mean time between failures.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from typing import TYPE_CHECKING

from contracts.config import CheckpointSection

if TYPE_CHECKING:
    from trainer.checkpoint.manager import CheckpointManager

# Before anything was measured: early, so that a cost is known soon, and late enough for steps to have settled.
FIRST_INTERVAL_S = 60.0
PREEMPTIONS_PER_HOUR = 0.1
"""Of the whole job, all its machines together."""
# Measurements that count: a few, since a machine's neighbours come and go.
_REMEMBERED = 8
_REMEMBERED_STEPS = 256
# A save that costs less than can be measured must not be due at every step.
_LEAST_COST_S = 0.01


def optimal_interval_s(cost_s: float, mean_time_between_failures_s: float, durable_s: float) -> float:
    """Return the seconds from one checkpoint to the next.

    Args:
        cost_s: What a checkpoint costs training: the stall, and by how much the steps beside the writing are slower.
        mean_time_between_failures_s: Of the whole job.
        durable_s: From the start of a checkpoint until it is committed: the interval is never shorter.
    """
    return max(math.sqrt(2 * max(cost_s, _LEAST_COST_S) * mean_time_between_failures_s), durable_s)


class Costs:
    """What checkpoints of this training cost, as measured: the newest few count."""

    def __init__(self) -> None:
        self._stalls_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._durable_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._slowed_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._quiet_steps_s: deque[float] = deque(maxlen=_REMEMBERED_STEPS)
        self._beside_s: list[float] = []

    def step_took(self, seconds: float, *, beside_writing: bool) -> None:
        """Take in the time of an optimizer step without its stall."""
        (self._beside_s if beside_writing else self._quiet_steps_s).append(seconds)

    def stalled(self, seconds: float) -> None:
        """Take in how long a save kept training waiting."""
        self._stalls_s.append(seconds)

    def became_durable(self, seconds: float) -> None:
        """Take in the time from the start of a save to its commit; the steps beside it are over."""
        self._durable_s.append(seconds)
        if self._quiet_steps_s:
            quiet = statistics.median(self._quiet_steps_s)
            self._slowed_s.append(max(0.0, sum(self._beside_s) - quiet * len(self._beside_s)))
        self._beside_s.clear()

    @property
    def step_s(self) -> float | None:
        """Median of the newest steps' times; None before there are any."""
        times = [*self._quiet_steps_s, *self._beside_s]
        return statistics.median(times) if times else None

    @property
    def cost_s(self) -> float | None:
        """Stall plus slow-down of a checkpoint; None before one was measured."""
        if not self._stalls_s:
            return None
        return statistics.median(self._stalls_s) + (statistics.median(self._slowed_s) if self._slowed_s else 0.0)

    @property
    def durable_s(self) -> float:
        """Median time to durable; 0 before one was measured."""
        return statistics.median(self._durable_s) if self._durable_s else 0.0


def interval_s(section: CheckpointSection, costs: Costs) -> float:
    """Return the seconds between checkpoints where every_steps does not say: given, or from the costs."""
    if section.every_s is not None:
        return section.every_s
    if costs.cost_s is None or not costs.durable_s:
        return FIRST_INTERVAL_S
    return optimal_interval_s(costs.cost_s, 3600 / PREEMPTIONS_PER_HOUR, costs.durable_s)


def steps_until_due(interval_s: float, since_last_s: float, step_s: float) -> int:
    """Return after how many steps a checkpoint is due, at least one: what rank 0 tells the others."""
    return max(1, math.ceil((interval_s - since_last_s) / max(step_s, 1e-6)))


class Schedule:
    """Decides when the loop saves: every so many steps, or by time, which the first rank turns into a step for all.

    The ranks agree on that step with their vote on stopping (trainer/supervise/vote.py), so no device is waited for.

    Args:
        rules: The configuration's section.
        checkpoints: What knows the cost of a checkpoint.
        is_first: Whether this is the first rank, whose clock and costs count.
    """

    def __init__(self, rules: CheckpointSection, checkpoints: CheckpointManager, *, is_first: bool) -> None:
        self._rules, self._checkpoints, self._is_first = rules, checkpoints, is_first
        self._steps = 0
        self._due_at: int | None = None
        self.saves = 0
        """Checkpoints that the loop has begun, or left out, on all ranks alike: an older proposal counts no more."""
        self.restart()

    def restart(self) -> None:
        """Begin to measure a step: what was before it is none of its time."""
        self._since = time.perf_counter()

    def step_taken(self) -> None:
        """End the measurement of a step."""
        self._steps += 1
        if self._is_first:
            self._checkpoints.step_took(time.perf_counter() - self._since)

    def propose(self) -> int:
        """Return the step of this process at which a checkpoint is due; 0 on other ranks, and where steps decide."""
        if self._rules.every_steps is not None or not self._is_first:
            return 0
        return self._steps + self._checkpoints.steps_until_due()

    def agree(self, proposed: int, *, saves: int) -> None:
        """Take in what the first rank has proposed; all ranks together.

        Args:
            proposed: Its step.
            saves: `saves` at that time.
        """
        if saves == self.saves:
            self._due_at = proposed or None

    def saved(self) -> None:
        """Forget the step that was agreed on: a checkpoint has just begun, or was left out."""
        self.saves += 1
        self._due_at = None

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is due after optimizer step `step` of the training; the same on all ranks."""
        if self._rules.every_steps is not None:
            return step % self._rules.every_steps == 0
        return self._due_at is not None and self._steps >= self._due_at
