"""What training says of itself now and then: loss, data time, gauges, to TensorBoard and to the progress line."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch

from contracts.artifacts import FIRST_SLOT_NAME, LOSS, CheckpointManifest
from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.events import EventLog
from trainer.data.training_data import TrainingData
from trainer.evaluate import Evaluation
from trainer.parallel.process_group import Rank
from trainer.report.board import ScalarParts, Scalars
from trainer.report.gauges import GpuGauges, read_memory
from trainer.report.progress import DataReport, TrainingStatus
from trainer.report.readings import Readings
from trainer.step import Stepper, Update
from trainer.supervise.budget import Budget, Reason
from trainer.tasks.optional import Taken, make_first_slot, unit_of
from trainer.tasks.protocol import Batch


class Reporting:
    """One rank's part in the reports; what is said is said by the first rank.

    Args:
        config: Of the run.
        rank: This rank.
        stepper: Whose steps are reported.
        feed: What they are trained on.
        events: Of this rank.
        log: Says something once, not once per rank.
        tensorboard_folder: For TensorBoard's files.
        scalars_folder: For the lines of scalars.
        attempt: Number of the attempt at the training.
        first_step: That training begins at, in this attempt.
        checkpoint: That it goes on from; None: it begins.
        budget: May end training before its last step.
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
        parts = ScalarParts(scalars_folder, attempt=attempt, first_step=first_step) if rank.is_first else None
        self.scalars = Scalars(tensorboard_folder if rank.is_first else None, parts, first_step=first_step)
        self._readings = Readings(rank.device, stepper.guard)
        self._samples = self._samples_sent = 0
        self._unit = unit_of(feed.task)
        self._first_slot = make_first_slot(feed.task) if config.inspect.samples == "show" else None
        if rank.is_first and first_step == 0 and self._first_slot is not None:
            # An attempt that goes on from a checkpoint finds them written: step 1 is never void then.
            stepper.on_model_input = self._keep_first_slot
        self._gauges = GpuGauges(rank.device if rank.is_first else torch.device("cpu"), log)

    def add(self, loss: torch.Tensor) -> None:
        """Take in the loss of a slot, summed over its samples."""
        self._readings.add(loss)

    def end_step(self, update: Update, batch_samples: int) -> None:
        """Take in a step of as many samples, as `Readings.end_step` does."""
        self._readings.end_step(update.left_out, update.count)
        self._samples += batch_samples
        self.status.step_taken()

    def send(self, step: int, rate: float) -> None:
        """Ask for the mean loss since the last report, and what else is to be known, over all ranks."""
        spent_s = self.budget.spent_s() if self._rank.is_first else 0.0
        self._readings.send(step, rate, [spent_s, *self.data.counts()], self._stepper.loss_scale)
        self._samples_sent, self._samples = self._samples, 0

    def read(self, say: Callable[[str, int], None]) -> Reason:
        """Show what was asked for last; return which budget is spent, the same on all ranks.

        Args:
            say: Takes the words of the progress line and their step.

        Raises:
            ConfigError: The loss is not finite.
        """
        reading = self._readings.read()
        if reading is None:
            return ""
        found = reading.found
        if found.in_a_row == 0 and reading.loss is not None:
            self._require_finite(reading.loss, reading.step)
        spent_s, *counts = reading.sums
        values, said = self.data.describe(counts)
        values |= {"train/gradient_norm": found.norm, "train/skipped_steps": float(found.skipped)}
        if reading.loss_scale is not None:
            values["train/loss_scale"] = reading.loss_scale
        if reading.loss is not None and math.isfinite(reading.loss):
            values["train/loss"] = reading.loss
        # Of the steps alone, as the mean rank has it: evaluation and checkpoints are no part of it.
        if counts[0] > 0:
            mean_s = counts[0] / self._rank.ranks
            values["train/samples_per_s"] = self._samples_sent / mean_s
            if self._unit:
                values[f"train/{self._unit}_per_s"] = counts[-1] / mean_s
                said += f", {counts[-1] / mean_s:,.0f} {self._unit}/s"
        values |= {"train/learning_rate": reading.rate, "train/epoch": reading.step / self._steps_per_epoch}
        if self._rank.is_first:
            self._show_first_slot()
            values |= read_memory(self._rank.device) | self._gauges.values()
            self.scalars.add(reading.step, values)
        if found.skipped:
            said += f", {found.skipped} steps left out (gradients not finite)"
        status = self.status
        # What a narrow terminal may cut off stands last.
        loss = "nothing counted" if reading.loss is None else f"loss {reading.loss:.4f}"
        stands = (status.epoch(reading.step), status.left(reading.step), loss)
        parts = (", ".join(filter(None, stands)), status.validation(), said)
        say("; ".join(filter(None, parts)), reading.step)
        return self.budget.exceeded_by(spent_s)

    def evaluated(
        self, step: int, found: Evaluation | None, stop: Reason, *, epoch_is_over: bool, say: Callable[[str, int], None]
    ) -> None:
        """Say what an evaluation on the validation split came to, and where training stands.

        Args:
            step: At which it was made.
            found: None: there is no validation split.
            stop: The budget that is spent; empty: none.
            epoch_is_over: Else train.max_steps ends training within an epoch, where no budget does.
            say: Takes the words of the progress line and their step.
        """
        status, validation = self.status, "done, and there is no validation split"
        if found is not None:
            self.scalars.add(step, {f"validation/{name}": value for name, value in found.values().items()})
            self.warn_of_no_number("validation", found)
            status.evaluated(step, found)
            validation = status.validation()
        done, left = status.epoch(step), status.left(step)
        if stop:
            done, left = f"resources.{stop} is reached at step {step}, training ends", ""
        elif not epoch_is_over:
            done = f"train.max_steps {step} is reached"
        self._log("; ".join(filter(None, (f"{done}: {validation}", left))))
        say("; ".join(filter(None, (done, left, validation))), step)

    def warn_of_no_number(self, split: str, found: Evaluation) -> None:
        """Warn of what came to no finite number on a split."""
        for name in found.without_number():
            what = "the loss" if name == LOSS else f"metric {name}"
            self._log(f"warning: {what} came to no finite number on the {split} split: it is left out")

    def flush(self) -> None:
        """Write what is still in memory."""
        self._show_first_slot()
        self.scalars.flush()

    def close(self) -> None:
        """Write what is still in memory, and end the file."""
        self._show_first_slot()
        self.scalars.close()

    def _keep_first_slot(self, batch: Batch) -> None:
        self._stepper.on_model_input = None
        if self._first_slot is not None:
            self._first_slot.keep(batch)

    def _show_first_slot(self) -> None:
        if self._first_slot is None:
            return
        try:
            taken = self._first_slot.take()
            if isinstance(taken, Taken):
                self.scalars.show(1, taken.summary)
                self.scalars.keep(taken.name, taken.content)
            elif taken is not None:
                # A task of the user's may return a summary alone; pages show its first picture.
                self.scalars.show(1, taken)
                if picture := taken.value[0].image.encoded_image_string:
                    self.scalars.keep(FIRST_SLOT_NAME, picture)
        except Exception as error:  # noqa: BLE001 - drawing raises what it likes, and this is only looked at
            self._log(f"warning: the first samples are not in TensorBoard's files: {type(error).__name__}: {error}")

    def _require_finite(self, value: float, step: int) -> None:
        """Refuse a loss from which nothing can be learnt; it is the same on all ranks, so all end here.

        Raises:
            ConfigError: It is not finite.
        """
        if not math.isfinite(value):
            raise ConfigError(
                f"loss became {value} at step {step} (train.learning_rate = {self._learning_rate})",
                allowed="a finite loss",
                todo="lower train.learning_rate, or look at the data",
            )
