"""What TensorBoard and pages show of a training: scalars of each attempt, and the result at its end.

The first rank alone writes. Nothing here draws random numbers, changes what is trained, or makes a step wait.

The result is one file of a fixed name, written again as a whole by an attempt that repeats the end: nothing is there
twice. It is in a folder of its own, which to TensorBoard is a run: in one whose name ends with ".", as that of the
training's own folder does, its table of hyperparameters finds no results.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts import storage
from contracts.artifacts import LOSS, CheckpointManifest, EvaluationReport
from contracts.events import print_error
from contracts.scalars import PART_BYTES, part_name, scalars_line, start_line
from trainer.tasks.optional import document_of

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from trainer.train import Training

# Whoever watches sees rows of so many seconds ago, at most; the writer's own two minutes are long beside an epoch.
FLUSH_S = 10


class Scalars:
    """Scalars of one attempt, to TensorBoard's files and as lines of JSON; ranks other than the first write nothing.

    Args:
        tensorboard_folder: For TensorBoard's files; None: none are written.
        parts: Takes the lines; None: none are written.
        first_step: The step that the attempt goes on from.
    """

    def __init__(self, tensorboard_folder: Path | None, parts: ScalarParts | None, *, first_step: int) -> None:
        self._writer: Any = None
        self._parts = parts
        if tensorboard_folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            # purge_step: what a killed attempt wrote beyond its last checkpoint is hidden.
            # The step that it went on from was written before it was saved, and does not come again.
            self._writer = SummaryWriter(str(tensorboard_folder), purge_step=first_step + 1, flush_secs=FLUSH_S)

    def add(self, step: int, values: dict[str, float]) -> None:
        """Write values by name at an optimizer step."""
        if self._parts is not None:
            self._parts.add(step, values)
        for name, value in values.items():
            self._write(lambda writer, name=name, value=value: writer.add_scalar(name, value, step))

    def show(self, step: int, summary: Any) -> None:
        """Write a summary that is no scalar, at an optimizer step."""
        self._write(lambda writer: writer.file_writer.add_summary(summary, step))

    def keep(self, name: str, content: bytes) -> None:
        """Write a file beside TensorBoard's, which pages of the run show."""
        self._write(lambda writer: (Path(writer.log_dir) / name).write_bytes(content))

    def flush(self) -> None:
        """Write what is still in memory."""
        self._write(lambda writer: writer.flush())

    def close(self) -> None:
        """Flush and close."""
        self._write(lambda writer: writer.close())

    def _write(self, write: Callable[..., object]) -> None:
        """Write something; where the disk is full nothing more of this attempt is shown, and training goes on."""
        if self._writer is None:
            return
        try:
            write(self._writer)
        except OSError as error:
            print_error(f"warning: TensorBoard's files cannot be written any more: {error}")
            self._writer = None


class ScalarParts:
    """Writes the lines of an attempt (contracts/scalars.py); none are in memory, so that a kill loses none.

    Args:
        folder: A training's scalars/.
        attempt: Number of the attempt at the training.
        first_step: The step that it goes on from.
    """

    def __init__(self, folder: Path, *, attempt: int, first_step: int) -> None:
        self._folder, self._attempt = folder, attempt
        self._part = self._bytes = 0
        self._has_failed = False
        self._write(start_line(first_step, time.time()))

    def add(self, step: int, values: dict[str, float]) -> None:
        """Append the line of a step."""
        self._write(scalars_line(step, time.time(), values))

    def _write(self, line: bytes) -> None:
        """Append a line; where the disk is full nothing more of this attempt is written, and training goes on."""
        if self._has_failed:
            return
        if self._bytes >= PART_BYTES:
            # That part is sealed.
            self._part, self._bytes = self._part + 1, 0
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if self._bytes else os.O_TRUNC)
        try:
            if not self._bytes:
                self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._folder / part_name(self._attempt, self._part), flags, 0o644)
            try:
                if os.write(descriptor, line) != len(line):
                    raise OSError("the disk is full")
            finally:
                os.close(descriptor)
        except OSError as error:
            self._has_failed = True
            print_error(f"warning: the scalars of this attempt cannot be written any more: {error}")
        self._bytes += len(line)


RESULT_NAME = "result/events.out.tfevents.0000000000.result"


def write_result(
    folder: Path,
    training: Training,
    best: CheckpointManifest,
    report: EvaluationReport | None,
    show: Callable[[SummaryWriter], None],
) -> None:
    """Write the file, or write it again.

    Args:
        folder: For TensorBoard's files of this training.
        training: At its end; the first rank's.
        best: The checkpoint that is the result.
        report: What was measured of it; None without a test split.
        show: Writes what the task shows.
    """
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    metrics = {f"best/{name}": value for name, value in best.metrics.items()}
    if report is not None:
        measured = report.metrics if report.loss is None else {**report.metrics, LOSS: report.loss}
        metrics |= {f"test/{name}": value for name, value in measured.items()}
    metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
    with tempfile.TemporaryDirectory() as temporary:
        with SummaryWriter(temporary) as writer:
            # SummaryWriter.add_hparams would write into a folder of its own, which is another run.
            for summary in hparams(_hyperparameters(training), metrics):  # type: ignore[no-untyped-call]
                writer.file_writer.add_summary(summary)
            for name, value in metrics.items():
                writer.add_scalar(name, value, best.step)
            if report is not None:
                show(writer)
        (path,) = Path(temporary).iterdir()
        (folder / RESULT_NAME).parent.mkdir(parents=True, exist_ok=True)
        storage.replace(storage.normalise(folder / RESULT_NAME), path.read_bytes())


def _hyperparameters(training: Training) -> dict[str, str | int | float]:
    config, train = training.config, training.config.train
    values: dict[str, str | int | float | bool] = {
        "task": config.task.name,
        "architecture": config.model.architecture,
        "global_batch_size": train.global_batch_size,
        "slot_size": training.layout.slot_size,
        "ranks": training.rank.ranks,
        "learning_rate": train.learning_rate,
        "schedule": train.schedule,
        "warmup_fraction": train.warmup_fraction,
        "optimizer": train.optimizer,
        "weight_decay": train.weight_decay,
        "label_smoothing": train.label_smoothing,
        "epochs": train.epochs,
        "steps": training.step,
        "precision": training.numerics.precision,
        "compile": training.numerics.compile,
        "seed": config.run.seed,
    }
    # Of the task's own: what it says of its inputs in checkpoints.
    values |= {name: value for name, value in document_of(training.data.task).items() if isinstance(value, int | float)}
    # A bool would be stored as 1.0.
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}
