"""What TensorBoard shows of a finished training: hyperparameters with results, and the task's report.

It is one file of a fixed name, written again as a whole by an attempt that repeats the end, here and in a bucket: so
nothing is there twice. It is in a folder of its own, which to TensorBoard is a run: in one whose name ends with ".", as
that of the training's own folder does, its table of hyperparameters finds no results.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from contracts import storage
from contracts.artifacts import LOSS, CheckpointManifest, EvaluationReport
from trainer.tasks.optional import document_of

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from trainer.train import Training

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
        metrics |= {f"test/{name}": value for name, value in {**report.metrics, LOSS: report.loss}.items()}
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
