"""Training reports: losses and counts, read one step late, for TensorBoard and the progress line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from contracts.artifacts import LOSS, CheckpointManifest
from contracts.errors import ConfigError
from trainer.data.device import DataClock, DataTime, map_tensors
from trainer.data.loader import SlotBatch
from trainer.evaluate import Evaluation
from trainer.model.numerics import GradientCounts, GradientGuard
from trainer.report.board import Board
from trainer.report.gauges import GpuGauges, read_memory
from trainer.report.progress import TrainingStatus
from trainer.step import Update
from trainer.supervise.limits import Budget, Reason
from trainer.tasks.task import Batch, Task


@dataclass(frozen=True)
class Reading:
    """Values reduced over ranks up to a step."""

    step: int
    """Optimizer steps taken."""
    rate: float
    """Learning rate of this step."""
    loss: float | None
    """Mean loss since the last reading, without skipped steps; None if the denominator is 0."""
    gradients: GradientCounts
    loss_scale: float | None
    sums: list[float]
    """The `extra` values of `send`, summed over ranks."""


class Readings:
    """Accumulates losses and counts on the device between two readings; also reads the guard's counts."""

    def __init__(self, device: torch.device, guard: GradientGuard) -> None:
        self._device, self._guard = device, guard
        self._step_loss = torch.zeros((), device=device)
        # Loss sum and count since the last reading.
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)
        self._pending: tuple[int, float, bool, torch.Tensor, torch.cuda.Event | None] | None = None

    def add(self, loss: torch.Tensor) -> None:
        """Add the loss sum of a slot."""
        self._step_loss += loss

    def end_step(self, skipped: torch.Tensor, count: torch.Tensor | int) -> None:
        """Add a step, unless `skipped` is 1.0; `count` is its loss denominator."""
        is_counted = skipped == 0
        self._sums[0] += torch.where(is_counted, self._step_loss, 0.0)
        self._sums[1] += torch.where(is_counted, count, 0)
        self._step_loss.zero_()

    def send(self, step: int, rate: float, extra: list[float], scale: torch.Tensor | None) -> None:
        """Reduce over ranks and start the copy to the host; every rank must call this at the same step.

        `extra` values are summed over ranks too.
        """
        loss, count = self._sums
        sums = torch.cat([loss[None], torch.tensor(extra, dtype=torch.float64).to(self._device, non_blocking=True)])
        dist.all_reduce(sums)
        values = torch.cat(
            [torch.stack([count if scale is None else scale.double(), count]), self._guard.tensors(), sums]
        )
        self._sums.zero_()
        arrived = None
        if self._device.type == "cuda":
            values = torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        self._pending = (step, rate, scale is not None, values, arrived)

    def read(self) -> Reading | None:
        """Wait for the last `send` and return its values; None if there was none.

        Raises:
            DataError: Non-finite gradients end training (trainer/model/numerics.py).
        """
        if self._pending is None:
            return None
        step, rate, scaled, values, arrived = self._pending
        self._pending = None
        if arrived is not None:
            arrived.synchronize()
        scale, count, *rest = values.tolist()
        gradients, loss, sums = self._guard.read(rest[:4]), rest[4], rest[5:]
        return Reading(step, rate, loss / count if count else None, gradients, scale if scaled else None, sums)


if TYPE_CHECKING:
    from trainer.train import Training

# Number of training samples shown in TensorBoard (`Task.first_samples`).
SHOWN_SAMPLES = 16


class Reporting:
    """Reports of a training that resumes from `checkpoint`; only rank 0 writes."""

    def __init__(self, training: Training, checkpoint: CheckpointManifest | None, budget: Budget) -> None:
        config, data, assignment = training.config, training.data, training.assignment
        self._rank, self._stepper = training.rank, training.stepper
        self._log, self._show = training.log, training.show_progress
        self._steps_per_epoch, self._learning_rate = data.steps_per_epoch, config.train.learning_rate
        self.budget = budget
        self.status = TrainingStatus(
            config,
            steps_per_epoch=data.steps_per_epoch,
            total_steps=data.total_steps,
            checkpoint=checkpoint,
            budget=budget,
        )
        self.clock = DataClock(self._rank.device)
        self._events, self._replace_bad = training.events, data.dataset.replace_bad
        # Bad samples that the log of this attempt has.
        self._named: set[int] = set()
        self._board: Board | None = None
        self._readings = Readings(self._rank.device, self._stepper.guard)
        self._samples = self._samples_sent = self._replaced = self._units = 0
        self._task = data.task
        self._first_slot: Batch | None = None
        if not self._rank.is_first:
            return
        self._board = Board(
            assignment.tensorboard_folder,
            assignment.scalars_folder,
            attempt=training.checkpoints.attempt_number,
            first_step=training.step,
        )
        self._gauges = GpuGauges(self._rank.device, self._log)
        shows_samples = config.inspect.samples == "show" and type(self._task).first_samples is not Task.first_samples
        if training.step == 0 and shows_samples:
            self._stepper.on_model_input = self._keep_first_slot

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

    def add(self, loss: torch.Tensor) -> None:
        """Add the loss of a slot, summed over its samples."""
        self._readings.add(loss)

    def end_step(self, update: Update, batch_samples: int) -> None:
        """Add a step of `batch_samples` samples."""
        self._readings.end_step(update.skipped, update.count)
        self._samples += batch_samples
        self.status.step_taken()

    def send(self, step: int, rate: float) -> None:
        """Start to reduce loss and counts over ranks; every rank must call this at the same step."""
        spent_s = self.budget.spent_s() if self._rank.is_first else 0.0
        times = self.clock.take()
        counts = [times.wall_s, times.loader_s, times.copy_s or 0.0, float(self._replaced), float(self._units)]
        self._readings.send(step, rate, [spent_s, *counts], self._stepper.loss_scale)
        self._samples_sent, self._samples, self._replaced, self._units = self._samples, 0, 0, 0

    def read(self) -> Reason:
        """Report the last `send`; return the exceeded budget, equal on all ranks.

        Raises:
            ConfigError: The loss is not finite.
        """
        reading = self._readings.read()
        if reading is None:
            return ""
        gradients, loss = reading.gradients, reading.loss
        if loss is not None and not math.isfinite(loss) and gradients.consecutive == 0:
            raise ConfigError(
                f"loss became {loss} at step {reading.step} (train.learning_rate = {self._learning_rate})",
                allowed="a finite loss",
                todo="lower train.learning_rate, or check the data",
            )
        spent_s, wall_s, loader_s, copy_s, replaced, units = reading.sums
        times = DataTime(wall_s, loader_s, copy_s if self._rank.device.type == "cuda" else None)
        details = times.describe()
        values = {
            "data/time_percent": times.share(loader_s),
            "train/gradient_norm": gradients.norm,
            "train/skipped_steps": float(gradients.skipped),
            "train/learning_rate": reading.rate,
            "train/epoch": reading.step / self._steps_per_epoch,
        }
        if times.copy_s is not None:
            values["data/host_to_device_percent"] = times.share(times.copy_s)
        if self._replace_bad:
            values["data/replaced_samples"] = replaced
        if replaced:
            details += f", bad samples replaced: {replaced:.0f}"
        if reading.loss_scale is not None:
            values["train/loss_scale"] = reading.loss_scale
        if loss is not None and math.isfinite(loss):
            values["train/loss"] = loss
        # Mean over ranks, without evaluations and checkpoints.
        if wall_s > 0:
            mean_s = wall_s / self._rank.ranks
            values["train/samples_per_s"] = self._samples_sent / mean_s
            if unit := self._task.unit:
                values[f"train/{unit}_per_s"] = units / mean_s
                details += f", {units / mean_s:,.0f} {unit}/s"
        if self._board is not None:
            self._show_first_slot()
            self._board.add(reading.step, values | read_memory(self._rank.device) | self._gauges.values())
        if gradients.skipped:
            details += f", {gradients.skipped} steps skipped (gradients not finite)"
        status, shown_loss = self.status, "nothing counted" if loss is None else f"loss {loss:.4f}"
        if reading.step % self._steps_per_epoch == 0:
            # `evaluated` reports the rest.
            parts = [shown_loss, details]
        else:
            # Less important parts last: a narrow terminal cuts them off.
            position = (status.epoch(reading.step), status.time_remaining(reading.step), shown_loss)
            parts = [", ".join(filter(None, position)), status.validation(), details]
        self._show("; ".join(filter(None, parts)), reading.step)
        return self.budget.exceeded_by(spent_s)

    def evaluated(self, step: int, evaluation: Evaluation | None, stop: Reason, *, epoch_is_over: bool) -> None:
        """Report an evaluation on the validation split (None: no such split); `stop` is an exceeded budget."""
        status, validation = self.status, "done, and there is no validation split"
        status.evaluated(step, evaluation)
        if evaluation is not None:
            if self._board is not None:
                self._board.add(step, {f"validation/{name}": value for name, value in evaluation.values().items()})
            self.warn_of_no_number("validation", evaluation)
            validation = status.validation()
        position, remaining = status.epoch(step), status.time_remaining(step)
        if stop:
            position, remaining = f"resources.{stop} is reached at step {step}, training ends", ""
        elif not epoch_is_over:
            position = f"train.max_steps {step} is reached"
        self._log("; ".join(filter(None, (f"{position}: {validation}", remaining))))
        self._show("; ".join(filter(None, (position, remaining, validation))), step)

    def warn_of_no_number(self, split: str, evaluation: Evaluation) -> None:
        """Warn about non-finite loss or metrics on a split."""
        for name in evaluation.without_number():
            subject = "the loss" if name == LOSS else f"metric {name}"
            self._log(f"warning: {subject} came to no finite number on the {split} split: it is left out")

    def flush(self) -> None:
        """Write buffered values."""
        if self._board is not None:
            self._show_first_slot()
            self._board.flush()

    def close(self) -> None:
        """Write buffered values and close the file."""
        if self._board is not None:
            self._show_first_slot()
            self._board.close()

    def _keep_first_slot(self, batch: Batch) -> None:
        """Copy some samples on the device, without a sync."""
        self._stepper.on_model_input = None
        self._first_slot = map_tensors(batch, _copy_first)

    def _show_first_slot(self) -> None:
        if self._first_slot is None or self._board is None:
            return
        batch, self._first_slot = map_tensors(self._first_slot, lambda tensor: tensor.cpu()), None
        try:
            if (content := self._task.first_samples(batch)) is not None:
                self._board.show_first_slot(content)
        except Exception as error:  # noqa: BLE001 - user code; TensorBoard's files are optional
            self._log(f"warning: the first samples are not in TensorBoard's files: {type(error).__name__}: {error}")


def _copy_first(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor[:SHOWN_SAMPLES] if tensor.ndim else tensor).detach().clone()
