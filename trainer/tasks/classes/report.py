"""What a classification shows of the test split: outcomes by class, confusion, curves, and the worst samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from contracts.artifacts import EvaluationReport
from contracts.artifacts.classification import ClassificationDetails, WorstSample
from records.decode import Pixels
from trainer.report.drawing import draw_sheet, printable
from trainer.report.summaries import listed, picture
from trainer.tasks.classes.confusion import choose_classes, draw_confusion
from trainer.tasks.classes.outcomes import NUM_THRESHOLDS, Integers, Outcomes
from trainer.tasks.classes.precision_recall import precision_recall
from trainer.tasks.protocol import Batch, Sample

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

# Curves by class, those with the smallest area first; the one over all classes comes on top.
MOST_CURVES = 20
_DESCRIBED_CELLS = 10


class ClassificationReport:
    """The report on a split of one rank, and with `merge` that of all (trainer/tasks/optional.py, SplitReport).

    Args:
        classes: Names of the classes.
        device: Where the logits are.
        pixels: Returns the image [S, S, 3] of a sample as the network gets it, but for normalisation; None: samples
            are no images.
    """

    def __init__(
        self, classes: Sequence[str], device: torch.device, pixels: Callable[[Sample], Pixels] | None = None
    ) -> None:
        self._classes, self._pixels = classes, pixels
        self.outcomes = Outcomes(len(classes), device)

    def add(self, outputs: torch.Tensor, batch: Batch, *, first_place: int) -> None:
        """Take in logits [B, classes] float32 and their labels."""
        self.outcomes.add(outputs, batch["label"], first_place=first_place)

    def merge(self) -> None:
        """Take in the reports of all ranks, at the first rank; all must call this."""
        self.outcomes.merge()

    def places(self) -> list[int]:
        """Return the places of the worst samples in the split."""
        return [said.place for said in self.outcomes.worst()]

    def details(self, origins: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Return outcomes by class, confusion and the worst samples.

        Args:
            origins: Shard and key of each sample of `places`.
        """
        confusion, left_out = self.outcomes.confusion()
        worst = [
            WorstSample(
                shard=shard,
                key=key,
                place=said.place,
                label=said.label,
                predicted=said.predicted,
                probability=said.label_probability,
                predicted_probability=said.predicted_probability,
            )
            for said, (shard, key) in zip(self.outcomes.worst(), origins, strict=True)
        ]
        classes = self.outcomes.by_class(list(self._classes))
        found = ClassificationDetails(classes=classes, confusion=confusion, confusion_left_out=left_out, worst=worst)
        return found.model_dump(mode="json")

    def by_class(self) -> list[tuple[int, int, int]]:
        """Return of each class: samples, samples that were taken for it, right ones."""
        found = self.outcomes.by_class(list(self._classes))
        return [(outcome.samples, outcome.predicted, outcome.right) for outcome in found]

    def show(self, writer: SummaryWriter, report: EvaluationReport, samples: Sequence[Sample], step: int) -> None:
        """Write confusion, the worst images and curves for TensorBoard.

        Args:
            writer: Of the result.
            report: The evaluation, with `details`.
            samples: The first samples of `places`.
            step: Of the checkpoint.
        """
        details = ClassificationDetails.model_validate(report.details)
        images = [] if self._pixels is None else [self._pixels(sample) for sample in samples]
        for summary in _pictures(report, details, images):
            writer._get_file_writer().add_summary(summary, step)  # type: ignore[no-untyped-call]
        _add_curves(writer, details, self.outcomes.counts(), step)


def _pictures(report: EvaluationReport, found: ClassificationDetails, images: Sequence[Pixels]) -> list[Any]:
    classes = [outcome.name for outcome in found.classes]
    confusion = choose_classes(classes, found.confusion)
    wrong = sorted((cell for cell in found.confusion if cell[0] != cell[1]), key=lambda cell: (-cell[2], cell))
    said = (
        f"The best checkpoint on the test split: {report.samples} samples, accuracy {report.metrics['accuracy']:.4f}."
    )
    if confusion.left_out:
        said += f" The classes that are confused most; the other {confusion.left_out} are one row and column."
    if found.confusion_left_out:
        said += f" {found.confusion_left_out} samples in the smallest cells are left out of it: there were too many."
    if wrong:
        cells = (f"{classes[label]}, taken for {classes[guess]}: {samples}" for label, guess, samples in wrong)
        said += " Confused most often:\n\n" + listed(
            line for line, _ in zip(cells, range(_DESCRIBED_CELLS), strict=False)
        )
    summaries = [picture("test/confusion_matrix", draw_confusion(confusion), said)]
    if images:
        samples = found.worst[: len(images)]
        captions = [
            [f"{classes[one.label]}: {100 * one.probability:.3g} %"]
            + [f"said {classes[one.predicted]}: {100 * one.predicted_probability:.3g} %"] * (one.predicted != one.label)
            for one in samples
        ]
        said = "Samples whose label got the lowest probability, the lowest first:\n\n"
        said += listed(
            f"{one.shard} {one.key}: {', '.join(lines)}" for one, lines in zip(samples, captions, strict=True)
        )
        summaries.append(picture("test/worst_images", draw_sheet(images, captions), said))
    return summaries


def _add_curves(writer: SummaryWriter, found: ClassificationDetails, counts: Integers, step: int) -> None:
    areas = [
        (outcome.roc.area, number, outcome.name)
        for number, outcome in enumerate(found.classes)
        if outcome.roc is not None
    ]
    digits = len(str(len(found.classes) - 1))
    curves = {"all_classes": counts.sum(axis=1)}
    for _, number, name in sorted(areas)[:MOST_CURVES]:
        curves[f"{number:0{digits}d}-{printable(name)[:60]}"] = counts[:, number]
    for name, (others, own) in curves.items():
        curve = precision_recall(others, own)
        writer.add_pr_curve_raw(
            f"precision_recall/{name}",
            curve.true_positives,
            curve.false_positives,
            curve.true_negatives,
            curve.false_negatives,
            curve.precision,
            curve.recall,
            step,
            NUM_THRESHOLDS,
        )
