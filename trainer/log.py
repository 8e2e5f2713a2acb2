"""Reports of a training at some of its steps: loss, data time and gauges, to TensorBoard and to the progress line."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch

from contracts.artifacts import LOSS, CheckpointManifest
from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.events import EventLog
from trainer.data.device import map_tensors
from trainer.data.training_data import TrainingData
from trainer.evaluate import Evaluation
from trainer.parallel.process_group import Rank
from trainer.report.board import Board
from trainer.report.gauges import GpuGauges, read_memory
from trainer.report.progress import DataReport, TrainingStatus
from trainer.report.readings import Readings
from trainer.step import Stepper, Update
from trainer.supervise.limits import Budget, Reason
from trainer.tasks.task import Batch, Task

# First samples of training that TensorBoard shows (`Task.first_samples`).
SHOWN_SAMPLES = 16


class Reporting:
    """One rank's part in the reports, which the first rank writes.

    Attempt number `attempt` at the training begins at `first_step`, where it goes on from `checkpoint`; `log` writes a
    line once, not once per rank.
    """

    def __init__(
        self,
        config: RunConfig,
        rank: Rank,
        stepper: Stepper,
        feed: TrainingData,
        events: EventLog,
        log: Callable[[str], None],
        *,
        tensorboard_folder: Path,
        scalars_folder: Path,
        attempt: int,
        first_step: int,
        checkpoint: CheckpointManifest | None,
        budget: Budget,
    ) -> None:
        self._rank, self._stepper, self._log = rank, stepper, log
        self._steps_per_epoch = feed.steps_per_epoch
        self._learning_rate = config.train.learning_rate
        self.budget = budget
        self.status = TrainingStatus(
            config,
            steps_per_epoch=feed.steps_per_epoch,
            total_steps=feed.total_steps,
            checkpoint=checkpoint,
            budget=self.budget,
        )
        self.data = DataReport(rank.device, events, replace_bad=feed.dataset.replace_bad)
        self._board: Board | None = None
        self._readings = Readings(rank.device, stepper.guard)
        self._samples = self._samples_sent = 0
        self._unit, self._task = feed.task.unit, feed.task
        self._first_slot: Batch | None = None
        if not rank.is_first:
            return
        self._board = Board(tensorboard_folder, scalars_folder, attempt=attempt, first_step=first_step)
        self._gauges = GpuGauges(rank.device, log)
        # An attempt that goes on from a checkpoint finds the first slot written: step 1 is never void then.
        shows_samples = type(feed.task).first_samples is not Task.first_samples
        if first_step == 0 and config.inspect.samples == "show" and shows_samples:
            stepper.on_model_input = self._keep_first_slot

    def add(self, loss: torch.Tensor) -> None:
        """Take in the loss of a slot, summed over its samples."""
        self._readings.add(loss)

    def end_step(self, update: Update, batch_samples: int) -> None:
        """Take in a step of as many samples."""
        self._readings.end_step(update.left_out, update.count)
        self._samples += batch_samples
        self.status.step_taken()

    def send(self, step: int, rate: float) -> None:
        """Start to add loss and counts over ranks; every rank must call this at the same step."""
        spent_s = self.budget.spent_s() if self._rank.is_first else 0.0
        self._readings.send(step, rate, [spent_s, *self.data.counts()], self._stepper.loss_scale)
        self._samples_sent, self._samples = self._samples, 0

    def read(self, say: Callable[[str, int], None]) -> Reason:
        """Report the last `send` by `say`, with its step; return which budget is spent, the same on all ranks.

        Raises:
            ConfigError: The loss is not finite.
        """
        reading = self._readings.read()
        if reading is None:
            return ""
        found, loss = reading.found, reading.loss
        if loss is not None and not math.isfinite(loss) and found.in_a_row == 0:
            # The same on all ranks, so all end here.
            raise ConfigError(
                f"loss became {loss} at step {reading.step} (train.learning_rate = {self._learning_rate})",
                allowed="a finite loss",
                todo="lower train.learning_rate, or look at the data",
            )
        spent_s, *counts = reading.sums
        values, words = self.data.describe(counts)
        values |= {
            "train/gradient_norm": found.norm,
            "train/skipped_steps": float(found.skipped),
            "train/learning_rate": reading.rate,
            "train/epoch": reading.step / self._steps_per_epoch,
        }
        if reading.loss_scale is not None:
            values["train/loss_scale"] = reading.loss_scale
        if loss is not None and math.isfinite(loss):
            values["train/loss"] = loss
        # Of the steps alone, as the mean rank has it: evaluation and checkpoints are no part of it.
        if counts[0] > 0:
            mean_s = counts[0] / self._rank.ranks
            values["train/samples_per_s"] = self._samples_sent / mean_s
            if self._unit:
                values[f"train/{self._unit}_per_s"] = counts[-1] / mean_s
                words += f", {counts[-1] / mean_s:,.0f} {self._unit}/s"
        if self._board is not None:
            self._show_first_slot()
            self._board.add(reading.step, values | read_memory(self._rank.device) | self._gauges.values())
        if found.skipped:
            words += f", {found.skipped} steps left out (gradients not finite)"
        status = self.status
        # What a narrow terminal may cut off stands last.
        shown_loss = "nothing counted" if loss is None else f"loss {loss:.4f}"
        stands = (status.epoch(reading.step), status.left(reading.step), shown_loss)
        parts = (", ".join(filter(None, stands)), status.validation(), words)
        say("; ".join(filter(None, parts)), reading.step)
        return self.budget.exceeded_by(spent_s)

    def evaluated(
        self,
        step: int,
        evaluation: Evaluation | None,
        stop: Reason,
        *,
        epoch_is_over: bool,
        say: Callable[[str, int], None],
    ) -> None:
        """Report an evaluation on the validation split, None where there is none, and where training stands.

        `stop` is the budget that is spent. Without one, train.max_steps may end training within an epoch.
        """
        status, validation = self.status, "done, and there is no validation split"
        if evaluation is not None:
            if self._board is not None:
                self._board.add(step, {f"validation/{name}": value for name, value in evaluation.values().items()})
            self.warn_of_no_number("validation", evaluation)
            status.evaluated(step, evaluation)
            validation = status.validation()
        done, left = status.epoch(step), status.left(step)
        if stop:
            done, left = f"resources.{stop} is reached at step {step}, training ends", ""
        elif not epoch_is_over:
            done = f"train.max_steps {step} is reached"
        self._log("; ".join(filter(None, (f"{done}: {validation}", left))))
        say("; ".join(filter(None, (done, left, validation))), step)

    def warn_of_no_number(self, split: str, evaluation: Evaluation) -> None:
        """Warn of a loss or metrics without a finite number on a split."""
        for name in evaluation.without_number():
            what = "the loss" if name == LOSS else f"metric {name}"
            self._log(f"warning: {what} came to no finite number on the {split} split: it is left out")

    def flush(self) -> None:
        """Write what is still in memory."""
        if self._board is not None:
            self._show_first_slot()
            self._board.flush()

    def close(self) -> None:
        """Write what is still in memory, and end the file."""
        if self._board is not None:
            self._show_first_slot()
            self._board.close()

    def _keep_first_slot(self, batch: Batch) -> None:
        """Copy some samples on the device, without waiting for it."""
        self._stepper.on_model_input = None
        self._first_slot = map_tensors(batch, _copy_first)

    def _show_first_slot(self) -> None:
        if self._first_slot is None or self._board is None:
            return
        batch, self._first_slot = map_tensors(self._first_slot, lambda tensor: tensor.cpu()), None
        try:
            if (content := self._task.first_samples(batch)) is not None:
                self._board.show_first_slot(content)
        except Exception as error:  # noqa: BLE001 - drawing raises what it likes, and this is only looked at
            self._log(f"warning: the first samples are not in TensorBoard's files: {type(error).__name__}: {error}")


def _copy_first(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor[:SHOWN_SAMPLES] if tensor.ndim else tensor).detach().clone()
