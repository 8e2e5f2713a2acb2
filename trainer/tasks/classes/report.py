"""What a classification shows of the test split: outcomes by class, confusion, curves, and the worst samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from contracts.artifacts import EvaluationReport
from contracts.artifacts.classification import ClassificationDetails, WorstSample
from trainer.tasks.classes.outcomes import NUM_THRESHOLDS, Integers, Outcomes
from trainer.tasks.classes.precision_recall import precision_recall
from trainer.tasks.protocol import Batch

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

# Curves by class, those with the smallest area first; the one over all classes comes on top.
MOST_CURVES = 20


class ClassificationReport:
    """The report on a split of one rank, and with `merge` that of all (trainer/tasks/optional.py, SplitReport)."""

    def __init__(self, classes: Sequence[str], device: torch.device) -> None:
        self._classes = classes
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

    def show(self, writer: SummaryWriter, report: EvaluationReport, step: int) -> None:
        """Write precision-recall curves for TensorBoard."""
        _add_curves(writer, ClassificationDetails.model_validate(report.details), self.outcomes.counts(), step)


def _add_curves(writer: SummaryWriter, found: ClassificationDetails, counts: Integers, step: int) -> None:
    areas = [
        (outcome.roc.area, number, outcome.name)
        for number, outcome in enumerate(found.classes)
        if outcome.roc is not None
    ]
    digits = len(str(len(found.classes) - 1))
    curves = {"all_classes": counts.sum(axis=1)}
    for _, number, name in sorted(areas)[:MOST_CURVES]:
        curves[f"{number:0{digits}d}-{name[:60]}"] = counts[:, number]
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
