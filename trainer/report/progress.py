"""Log lines of a training: size, status (epoch, best metric, time left), data time and replaced samples."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import torch
from torch import nn

from contracts.artifacts import LOSS, CheckpointManifest
from contracts.config import RunConfig
from contracts.events import EventLog, print_error
from trainer.checkpoint.discovery import Best, score
from trainer.data.device import DataClock, DataTime
from trainer.data.loader import SlotBatch
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

    def step_taken(self) -> None:
        """Count a step of this attempt. The first step is excluded from the rate: it includes one-time set-up."""
        if self._began_at is None:
            self._began_at = time.monotonic()
        else:
            self._steps += 1

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        """Record an evaluation on the validation split. If scores are equal, the earlier one stays the best."""
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
        """Return the estimated time after a step, including evaluations and checkpoints; empty if unknown."""
        if self._began_at is None or not self._steps or step >= self._total_steps:
            return ""
        step_s = (time.monotonic() - self._began_at) / self._steps
        seconds = math.ceil(min((self._total_steps - step) * step_s, self._budget.remaining_s()))
        if seconds < 120:
            return f"{seconds} s left"
        return f"{seconds // 60} min {seconds % 60} s left" if seconds < 7200 else f"{seconds / 3600:.1f} h left"

    def _epoch_of(self, step: int) -> int:
        return min(self._epochs, max(1, math.ceil(step / self._steps_per_epoch)))


def _readable(metric: str) -> str:
    return metric.replace("_", " ")


class DataReport:
    """Data time, units and replaced samples of one rank between two reports."""

    def __init__(self, device: torch.device, events: EventLog, *, replace_bad: bool) -> None:
        self.clock = DataClock(device)
        self._device, self._events, self._replace_bad = device, events, replace_bad
        self._replaced = self._units = 0
        self._named: set[int] = set()

    def count(self, slot: SlotBatch) -> None:
        """Count the task's units and replaced samples; log each replaced sample once per attempt."""
        if not slot.request.counts:
            return
        self._units += slot.units
        self._replaced += len(slot.replaced)
        for bad in slot.replaced:
            if bad.sample not in self._named:
                self._named.add(bad.sample)
                self._events.emit("log", message=f"sample {bad.sample} is replaced by {bad.by}: {bad.reason}")

    def counts(self) -> list[float]:
        """Return the counts of this rank since the last call, to be added over ranks for `describe`."""
        times = self.clock.take()
        counts = [times.wall_s, times.loader_s, times.copy_s or 0.0, float(self._replaced), float(self._units)]
        self._replaced = self._units = 0
        return counts

    def describe(self, sums: list[float]) -> tuple[dict[str, float], str]:
        """Return scalars and log text for `sums`, the `counts` summed over ranks."""
        data_time = DataTime(sums[0], sums[1], sums[2] if self._device.type == "cuda" else None)
        values, text = {"data/time_percent": data_time.share(data_time.loader_s)}, data_time.describe()
        if data_time.copy_s is not None:
            values["data/host_to_device_percent"] = data_time.share(data_time.copy_s)
        if self._replace_bad:
            values["data/replaced_samples"] = sums[3]
        if sums[3]:
            text += f", bad samples replaced: {sums[3]:.0f}"
        return values, text
