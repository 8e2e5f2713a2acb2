"""Classification with one class per sample: loss, metrics, outcomes, report and baseline.

Base of the tasks on images (image.py) and texts (text.py), which add inputs and a network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from contracts.artifacts.classification import ClassificationDetails, ClassOutcome, RocCurve, WorstSample
from contracts.errors import ConfigError
from trainer.tasks.task import Baseline, Columns, Loss, Task

if TYPE_CHECKING:
    from torchmetrics import Metric

    from contracts.artifacts import ShardManifest
    from trainer.tasks.task import Batch, Mode, TaskContext

WORST_SAMPLES = 50
"""Samples in `details`."""
MAX_CELLS = 100_000
"""Off-diagonal cells of the confusion matrix in `details`, the largest ones."""
MAX_ROC_POINTS = 1000

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Classification(Task):
    """Logits [B, classes] to the class of each sample: the output side of a task.

    Args:
        context: The configuration's section train, and the shards' classes and their counts.
        class_weights: `balanced`, or factors of the loss by class name; empty: 1 for all.

    Raises:
        ConfigError: class_weights is something else.
    """

    headline = "accuracy"

    def __init__(self, context: TaskContext, class_weights: str | Mapping[str, float]) -> None:
        self.classes = context.shards.classes
        self._samples_by_class = context.shards.splits["train"].samples_by_class
        self._smoothing = context.config.train.label_smoothing
        is_balanced = class_weights == "balanced"
        self._weights = balanced_weights(context.shards) if is_balanced else named_weights(class_weights, context)

    def loss(self, outputs: torch.Tensor, batch: Batch, mode: Mode) -> Loss:
        """Return the cross-entropy in nats, summed over the batch, and the number of samples.

        With mixed images (`shares` of the batch) the partner's label has the remaining share.
        """
        logits, label, shares = outputs.float(), batch["label"], batch.get("shares")
        smoothing = self._smoothing if mode.training else 0.0
        if shares is None and self._weights is None:
            # A single kernel.
            return functional.cross_entropy(logits, label, reduction="sum", label_smoothing=smoothing), len(label)
        losses = self._losses(logits, label, smoothing)
        if shares is not None:
            losses = shares * losses + (1 - shares) * self._losses(logits, label.flip(0), smoothing)
        return losses.sum(), len(label)

    def _losses(self, logits: torch.Tensor, label: torch.Tensor, smoothing: float) -> torch.Tensor:
        losses = functional.cross_entropy(logits, label, reduction="none", label_smoothing=smoothing)
        return losses if self._weights is None else losses * self._weights.to(losses.device, non_blocking=True)[label]

    def metrics(self) -> Mapping[str, Metric]:
        """Return accuracy, and the means over classes of F1 and of recall."""
        from torchmetrics.classification import MulticlassAccuracy

        from trainer.tasks.counts import ClassMean

        return {
            "accuracy": MulticlassAccuracy(len(self.classes), average="micro", validate_args=False),
            "f1_macro": ClassMean(len(self.classes), f1_score),
            "recall_macro": ClassMean(len(self.classes), recall_score),
        }

    def update(self, metrics: Mapping[str, Metric], outputs: torch.Tensor, batch: Batch) -> None:
        """Add logits [B, classes] and labels."""
        answers = outputs.argmax(dim=1)
        for metric in metrics.values():
            metric.update(answers, batch["label"])

    def outcomes(self, outputs: torch.Tensor, batch: Batch) -> Columns:
        """Return label and answer [B] int64 with the probability [B] float64 of each; 0 for NaN."""
        label, answer = batch["label"], outputs.argmax(dim=1)
        probabilities = functional.softmax(outputs.double(), dim=1).nan_to_num(0.0)
        return {
            "label": label.cpu().numpy(),
            "answer": answer.cpu().numpy(),
            "probability": probabilities.gather(1, answer[:, None])[:, 0].cpu().numpy(),
            "label_probability": probabilities.gather(1, label[:, None])[:, 0].cpu().numpy(),
        }

    def report(self, outcomes: Columns, metrics: Mapping[str, Metric]) -> dict[str, Any]:
        """Return counts by class, confusion, the ROC curve of two classes, and the samples with the worst answers."""
        labels, answers = np.asarray(outcomes["label"]), np.asarray(outcomes["answer"])
        confusion, left_out = confusion_cells(labels, answers, len(self.classes))
        return ClassificationDetails(
            classes=_class_outcomes(self.classes, labels, answers),
            confusion=confusion,
            confusion_left_out=left_out,
            roc=_roc_of_two(labels, answers, np.asarray(outcomes["probability"])) if len(self.classes) == 2 else None,
            worst=_worst_samples(outcomes),
        ).model_dump(mode="json")

    def baseline(self, outcomes: Columns) -> Baseline:
        """Return the accuracy of always answering the most frequent class of the training split."""
        most = int(np.argmax(self._samples_by_class))
        share = float((np.asarray(outcomes["label"]) == most).mean())
        return Baseline(description=f'always "{self.classes[most]}"', value=share)


def recall_score(correct: torch.Tensor, labelled: torch.Tensor, answered: torch.Tensor) -> torch.Tensor:
    """Return the recall of each class."""
    return correct / labelled


def f1_score(correct: torch.Tensor, labelled: torch.Tensor, answered: torch.Tensor) -> torch.Tensor:
    """Return the F1 score of each class."""
    return 2 * correct / (labelled + answered)


def balanced_weights(shards: ShardManifest) -> torch.Tensor:
    """Return samples / (classes * samples of the class) over the training split [classes] float32, as scikit-learn."""
    counts = torch.tensor(shards.splits["train"].samples_by_class, dtype=torch.float64)
    present = counts > 0
    # The weight of a class without samples has no effect.
    return torch.where(present, counts.sum() / (present.sum() * counts), 1.0).float()


def named_weights(weights: str | Mapping[str, float], context: TaskContext) -> torch.Tensor | None:
    """Return factors of the loss by class [classes] float32, 1 where a class is not named; None: all are 1.

    Before the shards are written, classes are unknown and every name is accepted.

    Raises:
        ConfigError: It is no mapping, a name is no class, or a factor is not above 0.
    """
    if not weights:
        return None
    if not isinstance(weights, Mapping):
        raise ConfigError(
            f"task.arguments.class_weights is {weights!r}",
            allowed="balanced, or a factor above 0 by class name",
            todo="choose one of them",
        )
    classes = context.shards.classes
    unknown = sorted(str(name) for name in weights if name not in classes)
    if unknown and context.shards_uri:
        raise ConfigError(
            f"task.arguments.class_weights names {unknown[0]!r}, which is no class",
            allowed=", ".join(classes[:20]),
            todo="correct the name",
        )
    for name, factor in weights.items():
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
            raise ConfigError(
                f"task.arguments.class_weights.{name} is {factor!r}", allowed="a number above 0", todo="correct it"
            )
    return torch.tensor([float(weights.get(name, 1.0)) for name in classes])


def confusion_cells(labels: Integers, answers: Integers, num_classes: int) -> tuple[list[tuple[int, int, int]], int]:
    """Return the cells (label, answer, samples) that are not empty, and the samples in cells beyond `MAX_CELLS`.

    All cells of the diagonal are included, and the largest of the others.
    """
    cells, counts = np.unique(labels * num_classes + answers, return_counts=True)
    wrong = np.flatnonzero(cells // num_classes != cells % num_classes)
    left_out = wrong[np.argsort(-counts[wrong], kind="stable")][MAX_CELLS:]
    included = np.delete(np.arange(len(cells)), left_out)
    label, answer = np.divmod(cells[included], num_classes)
    rows = zip(label.tolist(), answer.tolist(), counts[included].tolist(), strict=True)
    return list(rows), int(counts[left_out].sum())


def roc_curve(scores: Floats, positive: npt.NDArray[np.bool_]) -> RocCurve | None:
    """Return the ROC curve of scores [N] float64, with the exact area; None: all samples are of one class.

    Of more than `MAX_ROC_POINTS` different scores, as many points spread evenly are included.
    """
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    # Samples with equal scores pass a threshold together.
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    true = np.cumsum(positive[order], dtype=np.int64)[last]
    false = last + 1 - true
    if not true[-1] or not false[-1]:
        return None
    heights = true + np.append(0, true[:-1])
    area = float((np.diff(false, prepend=0) * heights).sum() / (2 * true[-1] * false[-1]))
    shown = np.unique(np.linspace(0, len(last) - 1, MAX_ROC_POINTS).round().astype(np.int64))
    points = zip(ranked[last[shown]].tolist(), false[shown].tolist(), true[shown].tolist(), strict=True)
    return RocCurve(area=area, points=list(points))


def _roc_of_two(labels: Integers, answers: Integers, probability: Floats) -> RocCurve | None:
    # Only from the probability of the answer, so that equal logits have equal scores.
    return roc_curve(np.where(answers == 1, probability, 1 - probability), labels == 1)


def _class_outcomes(classes: Any, labels: Integers, answers: Integers) -> list[ClassOutcome]:
    samples, predicted, right = (
        np.bincount(places, minlength=len(classes)).tolist() for places in (labels, answers, labels[labels == answers])
    )
    return [
        ClassOutcome(name=name, samples=samples[place], predicted=predicted[place], right=right[place])
        for place, name in enumerate(classes)
    ]


def _worst_samples(outcomes: Columns) -> list[WorstSample]:
    worst = np.argsort(np.asarray(outcomes["label_probability"]), kind="stable")[:WORST_SAMPLES]
    return [
        WorstSample(
            shard=outcomes["shard"][place],
            key=outcomes["key"][place],
            place=place,
            label=int(outcomes["label"][place]),
            predicted=int(outcomes["answer"][place]),
            probability=float(outcomes["label_probability"][place]),
            predicted_probability=float(outcomes["probability"][place]),
        )
        for place in worst.tolist()
    ]
