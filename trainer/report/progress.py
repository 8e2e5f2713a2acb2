"""Log lines of a training: size, and status (epoch, best metric, time left)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from torch import nn

from contracts.artifacts import LOSS, CheckpointManifest
from contracts.config import RunConfig
from contracts.events import EventLog, print_error
from trainer.checkpoint.discovery import Best, score
from trainer.evaluate import Evaluation
from trainer.supervise.limits import Budget
from trainer.tasks.metrics import metric_name

# Seconds between progress lines on stderr.
PRINT_EVERY_S = 60.0


class RankLog:
    """The training log, written by rank 0 only."""

    def __init__(self, events: EventLog, *, is_first: bool) -> None:
        self._events, self._is_first = events, is_first
        self._printed_at = time.monotonic()

    def log(self, message: str) -> None:
        """Write a line."""
        if self._is_first:
            # The next progress line would repeat it.
            self._printed_at = time.monotonic()
            self._events.emit("log", message=message)
            print_error(f"train: {message}")

    def progress(self, step: int, total_steps: int, message: str) -> None:
        """Emit the progress; print it to stderr every `PRINT_EVERY_S` seconds."""
        if not self._is_first:
            return
        self._events.emit("progress", done=step, total=total_steps, unit="steps", message=message)
        if time.monotonic() - self._printed_at >= PRINT_EVERY_S:
            self._printed_at = time.monotonic()
            print_error(f"train: step {step} of {total_steps}, {message}")


def describe_start(
    config: RunConfig, model: nn.Module, samples: Mapping[str, int], *, total_steps: int, steps_per_epoch: int
) -> str:
    """Return the size of a training: parameters (sharded ones count whole), samples of each split, and steps."""
    total = sum(parameter.numel() for parameter in model.parameters())
    learning = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    learn = f", {learning:,} of them learn" if learning < total else ""
    splits = f"{samples['train']:,} training, {samples['validation']:,} validation and {samples['test']:,} test samples"
    by = " (train.max_steps)" if total_steps < config.train.epochs * steps_per_epoch else ""
    steps = f"{total_steps:,} steps of {config.train.global_batch_size:,} samples{by}, {steps_per_epoch:,} an epoch"
    return f"{total:,} parameters{learn}; {splits}; {steps}"


class TrainingStatus:
    """Epoch, last and best validation, and time left of a training that resumes from `checkpoint`."""

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
        self._metrics: Mapping[str, float] = checkpoint.metrics if checkpoint else {}
        self._headline = checkpoint.headline if checkpoint else None
        self._began_at: float | None = None
        self._steps = 0
        self._has_evaluated = False

    def step_taken(self) -> None:
        """Count a step of this attempt. The first step is excluded from the rate: it includes one-time set-up."""
        if self._began_at is None:
            self._began_at = time.monotonic()
        else:
            self._steps += 1

    def evaluated(self, step: int, evaluation: Evaluation | None) -> None:
        """Record an evaluation (None: no validation split). If scores are equal, the earlier one stays the best."""
        self._has_evaluated = True
        if evaluation is None:
            return
        self._metrics, self._headline = evaluation.named("validation"), evaluation.headline
        best, latest = (
            score(metrics, self._metric, evaluation.headline, evaluation.directions)
            for metrics in (self._best.metrics, self._metrics)
        )
        if latest is not None and (best is None or latest > best):
            self._best = Best(step, self._metrics)

    def epoch(self, step: int) -> str:
        """Return the epoch of a step (from 1)."""
        return f"epoch {self._epoch_of(step)} of {self._epochs}"

    def validation(self) -> str:
        """Return the last and the best validation so far; empty before the first."""
        if self._headline is None or not self._metrics:
            return ""
        headline = self._headline.metric
        chosen_by = metric_name(self._metric, headline)
        values = {name: self._metrics.get(f"validation_{name}") for name in (headline, chosen_by, LOSS)}
        last = ", ".join(f"{_readable(name)} {value:.4f}" for name, value in values.items() if value is not None)
        best = self._best.metrics.get(f"validation_{chosen_by}")
        if best is None:
            return f"validation {last}; no best one yet"
        metric = "" if chosen_by == headline else f"{_readable(chosen_by)} "
        return f"validation {last}; best {metric}{best:.4f} at epoch {self._epoch_of(self._best.step)}"

    def time_remaining(self, step: int) -> str:
        """Return the estimated time after a step, with evaluations once there was one; empty if unknown."""
        if self._began_at is None or not self._steps or step >= self._total_steps:
            return ""
        step_s = (time.monotonic() - self._began_at) / self._steps
        seconds = math.ceil(min((self._total_steps - step) * step_s, self._budget.remaining_s()))
        least = "" if self._has_evaluated else "at least "
        if seconds >= 7200:
            return f"{least}{seconds / 3600:.1f} h left"
        return f"{least}{seconds} s left" if seconds < 120 else f"{least}{seconds // 60} min {seconds % 60} s left"

    def _epoch_of(self, step: int) -> int:
        return min(self._epochs, max(1, math.ceil(step / self._steps_per_epoch)))


def _readable(metric: str) -> str:
    return metric.replace("_", " ")
