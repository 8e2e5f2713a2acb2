"""What TensorBoard shows of a finished training: hyperparameters with results, curves, confusion, the worst images.

It is one file of a fixed name, written again as a whole by an attempt that repeats the end, here and in a bucket: so
nothing is there twice. It is in a folder of its own, which to TensorBoard is a run: in one whose name ends with ".", as
that of the training's own folder does, its table of hyperparameters finds no results.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from contracts import storage
from contracts.artifacts import CheckpointManifest, EvaluationReport
from trainer.report.drawing import choose_classes, draw_confusion, draw_sheet, printable
from trainer.report.outcomes import NUM_THRESHOLDS, Integers
from trainer.report.precision_recall import precision_recall
from trainer.report.summaries import listed, picture

if TYPE_CHECKING:
    from trainer.train import Training

RESULT_NAME = "result/events.out.tfevents.0000000000.result"
# Curves by class, those with the smallest area first; the one over all classes comes on top.
MOST_CURVES = 20
WORST_IMAGES = 16
_DESCRIBED_CELLS = 10


@dataclass(frozen=True)
class TestResult:
    """The best checkpoint on the test split."""

    report: EvaluationReport
    counts: Integers
    """[2, classes, NUM_THRESHOLDS]: `Outcomes.counts`."""
    worst: Sequence[npt.NDArray[np.uint8]]
    """[S, S, 3] each: images of the first samples in the report's `worst`, as the network gets them."""


def write_result(folder: Path, training: Training, best: CheckpointManifest, test: TestResult | None) -> None:
    """Write the file, or write it again.

    Args:
        folder: For TensorBoard's files of this training.
        training: At its end; the first rank's.
        best: The checkpoint that is the result.
        test: What was measured of it; None without a test split.
    """
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    metrics = {f"best/{name}": value for name, value in best.metrics.items()}
    if test is not None:
        metrics |= {"test/accuracy": test.report.accuracy, "test/loss": test.report.loss}
    metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
    with tempfile.TemporaryDirectory() as temporary:
        with SummaryWriter(temporary) as writer:
            # SummaryWriter.add_hparams would write into a folder of its own, which is another run.
            for summary in hparams(_hyperparameters(training), metrics):  # type: ignore[no-untyped-call]
                writer.file_writer.add_summary(summary)
            for name, value in metrics.items():
                writer.add_scalar(name, value, best.step)
            if test is not None:
                for summary in _pictures(test, best.classes):
                    writer.file_writer.add_summary(summary, best.step)
                _add_curves(writer, test, best.step)
        (path,) = Path(temporary).iterdir()
        (folder / RESULT_NAME).parent.mkdir(parents=True, exist_ok=True)
        storage.replace(storage.normalise(folder / RESULT_NAME), path.read_bytes())


def _hyperparameters(training: Training) -> dict[str, str | int | float]:
    config, train = training.config, training.config.train
    values: dict[str, str | int | float | bool] = {
        "architecture": config.model.architecture,
        "global_batch_size": train.global_batch_size,
        "slot_size": training.layout.slot_size,
        "ranks": training.rank.ranks,
        "learning_rate": train.learning_rate,
        "scale_learning_rate": train.scale_learning_rate,
        "schedule": train.schedule,
        "warmup_fraction": train.warmup_fraction,
        "optimizer": train.optimizer,
        "weight_decay": train.weight_decay,
        "label_smoothing": train.label_smoothing,
        "epochs": train.epochs,
        "steps": training.step,
        "image_size": config.data.image_size,
        "precision": training.numerics.precision,
        "compile": training.numerics.compile,
        "seed": config.run.seed,
    }
    # A bool would be stored as 1.0.
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}


def _pictures(test: TestResult, classes: Sequence[str]) -> list[Any]:
    report = test.report
    confusion = choose_classes(classes, report.confusion)
    wrong = sorted((cell for cell in report.confusion if cell[0] != cell[1]), key=lambda cell: (-cell[2], cell))
    said = f"The best checkpoint on the test split: {report.samples} samples, accuracy {report.accuracy:.4f}."
    if confusion.left_out:
        said += f" The classes that are confused most; the other {confusion.left_out} are one row and column."
    if report.confusion_left_out:
        said += f" {report.confusion_left_out} samples in the smallest cells are left out of it: there were too many."
    if wrong:
        cells = (f"{classes[label]}, taken for {classes[guess]}: {samples}" for label, guess, samples in wrong)
        said += " Confused most often:\n\n" + listed(
            line for line, _ in zip(cells, range(_DESCRIBED_CELLS), strict=False)
        )
    summaries = [picture("test/confusion_matrix", draw_confusion(confusion), said)]
    if test.worst:
        samples = report.worst[: len(test.worst)]
        captions = [
            [f"{classes[one.label]}: {100 * one.probability:.3g} %"]
            + [f"said {classes[one.predicted]}: {100 * one.predicted_probability:.3g} %"] * (one.predicted != one.label)
            for one in samples
        ]
        said = "Samples whose label got the lowest probability, the lowest first:\n\n"
        said += listed(
            f"{one.shard} {one.key}: {', '.join(lines)}" for one, lines in zip(samples, captions, strict=True)
        )
        summaries.append(picture("test/worst_images", draw_sheet(test.worst, captions), said))
    return summaries


def _add_curves(writer: Any, test: TestResult, step: int) -> None:
    areas = [
        (outcome.roc.area, number, outcome.name)
        for number, outcome in enumerate(test.report.classes)
        if outcome.roc is not None
    ]
    digits = len(str(len(test.report.classes) - 1))
    curves = {"all_classes": test.counts.sum(axis=1)}
    for _, number, name in sorted(areas)[:MOST_CURVES]:
        curves[f"{number:0{digits}d}-{printable(name)[:60]}"] = test.counts[:, number]
    for name, (others, own) in curves.items():
        found = precision_recall(others, own)
        writer.add_pr_curve_raw(
            f"precision_recall/{name}",
            found.true_positives,
            found.false_positives,
            found.true_negatives,
            found.false_negatives,
            found.precision,
            found.recall,
            step,
            NUM_THRESHOLDS,
        )
