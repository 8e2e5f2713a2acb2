"""Limits that end training early: hours, cost, and early stopping.

Hours and cost may change between attempts, so no fingerprint has them. Time counts from the start of the launcher,
over all attempts; if a launcher is killed, the time since its last checkpoint is lost. The state of early stopping is
in each checkpoint, so a resumed training stops at the same step as an uninterrupted one.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from contracts.artifacts import EarlyStopping
from contracts.config import EarlyStoppingSection, ResourcesSection
from contracts.errors import ConfigError
from trainer.evaluate import Evaluation

_BEFORE_NAME = "spent_before_s"
Reason = Literal["", "max_hours", "max_cost_usd"]


class Budget:
    """Time budget of a training.

    `spent_s` are the seconds of earlier attempts. `began_at` is the start of this attempt's launcher on the clock of
    time.monotonic, which all processes of a machine share.
    """

    def __init__(self, resources: ResourcesSection, spent_s: float, began_at: float) -> None:
        self._before, self._start = spent_s, began_at
        self._limits_h: dict[Reason, float] = {}
        if resources.max_hours is not None:
            self._limits_h["max_hours"] = resources.max_hours
        if resources.price_usd_per_h and resources.max_cost_usd is not None:
            self._limits_h["max_cost_usd"] = resources.max_cost_usd / resources.price_usd_per_h

    @classmethod
    def of_attempt(
        cls, resources: ResourcesSection, folder: Path, *, recorded_s: float, began_at: float, is_first: bool
    ) -> Budget:
        """Return the budget for a start of the ranks, the first or a later one of the attempt.

        Rank 0 stores `recorded_s`, the seconds in the checkpoint from which the attempt first resumed, in the attempt's
        folder. Its time decides for all ranks.
        """
        before, path = recorded_s, folder / _BEFORE_NAME
        if not is_first:
            return cls(resources, before, began_at)
        # A checkpoint of this attempt already includes some of its time. Without the file, some time is not counted.
        with suppress(OSError, ValueError):
            if path.exists():
                before = float(path.read_text())
            else:
                folder.mkdir(parents=True, exist_ok=True)
                path.write_text(str(recorded_s))
        return cls(resources, before, began_at)

    def spent_s(self) -> float:
        """Return the seconds spent so far."""
        return self._before + time.monotonic() - self._start

    def remaining_s(self) -> float:
        """Return the seconds until the first limit; infinite without a limit."""
        return max(0.0, 3600 * min(self._limits_h.values(), default=math.inf) - self.spent_s())

    def exceeded_by(self, spent_s: float) -> Reason:
        """Return the limit that rank 0's time exceeds; empty if none."""
        return next((name for name, hours in self._limits_h.items() if spent_s >= 3600 * hours), "")


def judge(state: EarlyStopping, section: EarlyStoppingSection, evaluation: Evaluation) -> EarlyStopping:
    """Return the state of early stopping after another evaluation on the validation split.

    The first finite value is the best. Later ones must be strictly better; non-finite values never are.
    """
    value, direction = evaluation.look_up(section.metric)
    sign = 1 if direction == "max" else -1
    if value is not None and (state.best is None or sign * (value - state.best) > 0):
        return EarlyStopping(best=value, since_best=0)
    return EarlyStopping(best=state.best, since_best=state.since_best + 1)


def is_over(state: EarlyStopping | None, section: EarlyStoppingSection | None) -> bool:
    """Return whether early stopping ends training."""
    return section is not None and state is not None and state.since_best >= section.patience


def describe_stop(state: EarlyStopping, section: EarlyStoppingSection) -> str:
    """Return why training ended."""
    result = "came to no number" if state.best is None else f"was not better than {state.best:.6g}"
    return (
        f"train.early_stopping: {section.metric} {result} in {state.since_best} "
        f"evaluations in a row (patience {section.patience}): training ends"
    )


def require_validation(section: EarlyStoppingSection | None, samples: int) -> None:
    """Raise ConfigError for early stopping without validation samples."""
    if section is not None and samples == 0:
        raise ConfigError(
            f"train.early_stopping watches {section.metric}, and the shards have no validation split",
            allowed="shards with samples in their validation split",
            todo="set sharding.splits with a share for validation, or leave train.early_stopping out",
        )
