"""Status of a training in words: epoch, last validation, best one so far, time left."""

from __future__ import annotations

import math
import time

from contracts.artifacts import CheckpointManifest
from contracts.config import RunConfig
from pages.quantities import NBSP, seconds
from trainer.checkpoint.retention import Best, score
from trainer.evaluate import Evaluation
from trainer.supervise.budget import Budget


class TrainingStatus:
    """Status of a training, taken in step by step.

    Args:
        config: Of the run.
        steps_per_epoch: Optimizer steps of an epoch.
        total_steps: Of the whole training.
        checkpoint: That training goes on from; None: it begins.
        budget: May end training earlier.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        steps_per_epoch: int,
        total_steps: int,
        checkpoint: CheckpointManifest | None,
        budget: Budget,
    ) -> None:
        self._epochs, self._metric = config.train.epochs, config.checkpoint.best_metric
        self._steps_per_epoch, self._total_steps, self._budget = steps_per_epoch, total_steps, budget
        self._best = Best.of(checkpoint) if checkpoint else Best()
        metrics = checkpoint.metrics if checkpoint else {}
        self._accuracy, self._loss = metrics.get("validation_accuracy"), metrics.get("validation_loss")
        self._began_at: float | None = None
        self._steps = 0

    def step_taken(self) -> None:
        """Count a step of this attempt; the first one, which tries out more than a step does, is none of the rate."""
        if self._began_at is None:
            self._began_at = time.monotonic()
        else:
            self._steps += 1

    def evaluated(self, step: int, found: Evaluation) -> None:
        """Take in an evaluation on the validation split; of equal ones the earlier is the best, as in checkpoints."""
        self._accuracy, self._loss = found.accuracy, found.loss
        best, now = self._best, score(found.accuracy, found.loss, self._metric)
        if best.accuracy is not None and best.loss is not None and now <= score(best.accuracy, best.loss, self._metric):
            return
        self._best = Best(step, found.accuracy, found.loss)

    def epoch(self, step: int) -> str:
        """Return the epoch that a step, from 1, belongs to."""
        return f"epoch {self._epoch_of(step)} of {self._epochs}"

    def validation(self) -> str:
        """Return the last validation and the best one so far; empty: there was none."""
        if self._accuracy is None or self._loss is None:
            return ""
        return f"validation accuracy {self._accuracy:.4f}, loss {self._loss:.4f}; {self._describe_best()}"

    def left(self, step: int) -> str:
        """Return how long training will take after a step, evaluations and checkpoints as so far; empty: not known."""
        if self._began_at is None or not self._steps or step >= self._total_steps:
            return ""
        step_s = (time.monotonic() - self._began_at) / self._steps
        left_s = min((self._total_steps - step) * step_s, self._budget.left_s())
        return f"{seconds(math.ceil(left_s)).replace(NBSP, ' ')} left"

    def _describe_best(self) -> str:
        best = self._best
        if best.accuracy is None or best.loss is None:
            return "no best one yet"
        value = f"{best.accuracy:.4f}" if self._metric == "validation_accuracy" else f"loss {best.loss:.4f}"
        return f"best {value} at epoch {self._epoch_of(best.step)}"

    def _epoch_of(self, step: int) -> int:
        return min(self._epochs, max(1, math.ceil(step / self._steps_per_epoch)))
