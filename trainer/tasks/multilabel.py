"""Classification with several labels: any number of the classes for each image.

Scores are counted in bins of the logit, so that memory does not grow with the samples: average precision, F1 and the
thresholds come from these counts, in the same way at any size of a split. Samples in one bin count as tied: of 20
drawn classes with 2,000 samples each, average precision in 1,024 bins was at most 0.0012 from the exact one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from contracts.artifacts.multilabel import (
    DEFAULT_THRESHOLD,
    THRESHOLDS,
    LabelOutcome,
    LabelScore,
    MultilabelDetails,
    WorstSample,
    thresholds_of,
)
from trainer.model.build import is_of_transformers
from trainer.predict.program import sigmoid
from trainer.tasks.classification import named_weights
from trainer.tasks.image import ImageTask
from trainer.tasks.task import Baseline, Columns, Loss

if TYPE_CHECKING:
    from torchmetrics import Metric

    from contracts.artifacts import ShardManifest
    from trainer.tasks.task import Batch, Mode, TaskContext

TOTAL_BINS = 1 << 20
"""Bins over all classes: an evaluation reduces 16 MB at most, up to 16,384 classes."""
MAX_BINS, MIN_BINS = 1024, 64
"""Bounds for one class; even numbers, so that a probability of one half is an edge."""
LARGEST_LOGIT = 12.0
"""Larger absolute values are in the outermost bins: probabilities within 6e-6 of 0 or 1."""
WORST_SAMPLES, MAX_LABELS = 50, 20
"""Samples in `details`, and classes of each list of one."""

Floats = npt.NDArray[np.float64]


class ImageMultilabel(ImageTask):
    """Images to logits of classes, of which each image has any number: the sigmoid of a logit is a probability.

    Args:
        context: The configuration's sections data, model and train, and the shards' classes and pixels.
        class_weights: `balanced` (samples outside of a class over samples of it), or factors of the loss of positive
            labels by class name; empty: 1 for all.

    Raises:
        ConfigError: An argument is none of these, data.transform cannot be imported, or there is no mean and std.
    """

    fields: Mapping[str, str] = {"image": "image", "label": "classes"}
    headline = "average_precision"
    no_label = ()

    def __init__(self, context: TaskContext, *, class_weights: str | Mapping[str, float] = "") -> None:
        super().__init__(context, compare="values")
        self._smoothing = context.config.train.label_smoothing
        is_balanced = class_weights == "balanced"
        self._weights = _balanced_weights(context.shards) if is_balanced else named_weights(class_weights, context)

    def build_model(self) -> nn.Module:
        """Return the network of section `model`; its configuration has the problem type of multi-label."""
        network = super().build_model()
        if is_of_transformers(network):
            network.config.problem_type = "multi_label_classification"  # type: ignore[union-attr]
        return network

    def stack_labels(self, labels: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return [B, classes] float32: 1 for each class of a sample."""
        stacked = torch.zeros(len(labels), max(1, len(self.classes)))
        for row, places in enumerate(labels):
            stacked[row, list(places)] = 1.0
        return stacked

    def loss(self, outputs: torch.Tensor, batch: Batch, mode: Mode) -> Loss:
        """Return the binary cross-entropy in nats, a mean over classes and a sum over samples, and the samples."""
        targets, shares = batch["label"], batch.get("shares")
        if mode.training and self._smoothing:
            # Two classes for each label, yes and no (Szegedy et al., arXiv 1512.00567).
            targets = targets * (1 - self._smoothing) + self._smoothing / 2
        if shares is not None:
            # Mixing targets is exact, since the loss is linear in them.
            targets = shares[:, None] * targets + (1 - shares[:, None]) * targets.flip(0)
        return self._losses(outputs.float(), targets).sum(), len(targets)

    def _losses(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        weights = None if self._weights is None else self._weights.to(logits.device, non_blocking=True)
        losses = functional.binary_cross_entropy_with_logits(logits, targets, pos_weight=weights, reduction="none")
        return losses.mean(dim=1)

    def metrics(self) -> Mapping[str, Metric]:
        """Return mean average precision, and F1 at a probability of one half over classes and over all pairs."""
        from trainer.tasks.counts import ScoreCounts

        bins = max(MIN_BINS, min(MAX_BINS, TOTAL_BINS // max(1, len(self.classes)) // 2 * 2))
        return {
            "average_precision": ScoreCounts(len(self.classes), bin_edges(bins), mean_average_precision),
            "f1_macro": ScoreCounts(len(self.classes), bin_edges(2), f1_macro),
            "f1_micro": ScoreCounts(len(self.classes), bin_edges(2), f1_micro),
        }

    def update(self, metrics: Mapping[str, Metric], outputs: torch.Tensor, batch: Batch) -> None:
        """Add logits and labels [B, classes]."""
        for metric in metrics.values():
            metric.update(outputs, batch["label"] > 0.5)

    def calibrate(self, metrics: Mapping[str, Metric]) -> dict[str, Any]:
        """Return the threshold with the largest F1 of each class."""
        counts = _counts_of(metrics)
        edges = edge_probabilities(counts.shape[2])
        return {THRESHOLDS: [best_threshold(*of_class, edges) for of_class in counts_above(counts)]}

    def outcomes(self, outputs: torch.Tensor, batch: Batch) -> Columns:
        """Return per sample the places of its classes and of those at or above their thresholds, and the loss.

        `probability` is by class of `answer`, `label_probability` by class of `label`. NaN is a logit of 0, as in
        the metrics.
        """
        outputs = outputs.float().nan_to_num(0.0, posinf=1e30, neginf=-1e30)
        probabilities = sigmoid(outputs.cpu().numpy())
        label = batch["label"].cpu().numpy() > 0.5
        answer = probabilities >= np.array(thresholds_of(self.calibration, len(self.classes)))
        rows = range(len(probabilities))
        return {
            "label": [np.flatnonzero(label[row]).tolist() for row in rows],
            "answer": [np.flatnonzero(answer[row]).tolist() for row in rows],
            "probability": [probabilities[row, answer[row]].tolist() for row in rows],
            "label_probability": [probabilities[row, label[row]].tolist() for row in rows],
            "loss": self._losses(outputs, batch["label"]).cpu().numpy(),
        }

    def report(self, outcomes: Columns, metrics: Mapping[str, Metric]) -> dict[str, Any]:
        """Return every class at its threshold, and the samples with the largest loss."""
        counts = _counts_of(metrics)
        edges = edge_probabilities(counts.shape[2])
        thresholds = thresholds_of(self.calibration, len(self.classes))
        classes = [
            _label_outcome(name, threshold, *of_class, edges)
            for name, threshold, of_class in zip(self.classes, thresholds, counts_above(counts), strict=True)
        ]
        worst = np.argsort(-np.asarray(outcomes["loss"]), kind="stable")[:WORST_SAMPLES].tolist()
        return MultilabelDetails(
            classes=classes,
            exact=sum(label == answer for label, answer in zip(outcomes["label"], outcomes["answer"], strict=True)),
            worst=[_worst_sample(outcomes, place) for place in worst],
        ).model_dump(mode="json")

    def baseline(self, outcomes: Columns) -> Baseline:
        """Return the mean average precision of equal scores for all samples: the mean share of the classes."""
        labels = np.concatenate([*outcomes["label"], []]).astype(np.int64)
        samples = np.bincount(labels, minlength=len(self.classes))
        shares = samples[samples > 0] / len(outcomes["label"])
        value = float(shares.mean()) if len(shares) else 0.0
        return Baseline(description="the same scores for all samples", value=value)


def bin_edges(num_bins: int) -> Floats:
    """Return the lower edges of the bins [bins], as logits; the lowest bin includes all lower logits."""
    return np.linspace(-LARGEST_LOGIT, LARGEST_LOGIT, num_bins + 1)[:-1]


def edge_probabilities(num_bins: int) -> Floats:
    """Return the lower edges of the bins [bins], as probabilities; the lowest is 0."""
    edges = sigmoid(bin_edges(num_bins))
    edges[0] = 0.0
    return edges


def counts_above(counts: Floats) -> list[tuple[Floats, Floats]]:
    """Return per class the numbers of positive and negative samples at or above the lower edge of each bin."""
    outside, inside = counts[:, :, ::-1].cumsum(axis=2)[:, :, ::-1]
    return list(zip(inside, outside, strict=True))


def average_precision(true: Floats, false: Floats) -> float | None:
    """Return the precision at each edge, weighted by the recall that it adds; None: the class has no sample.

    As scikit-learn's average_precision_score: without interpolation.
    """
    if not true[0]:
        return None
    added = -np.diff(true, append=0.0) / true[0]
    return float((added * true / np.maximum(true + false, 1)).sum())


def best_threshold(true: Floats, false: Floats, edges: Floats) -> float:
    """Return the edge with the largest F1; ties go to the nearest to 0.5, then to the higher; 0.5 without a sample."""
    if not true[0]:
        return DEFAULT_THRESHOLD
    # 2 TP / (answers + labels): mathematically equal values are equal floats.
    f1 = 2 * true / (true + false + true[0])
    best = edges[f1 == f1.max()][::-1]
    return float(best[np.argmin(np.abs(best - DEFAULT_THRESHOLD))])


def mean_average_precision(counts: Floats) -> float:
    """Return the mean over the classes with samples; NaN without any."""
    values = [average_precision(*of_class) for of_class in counts_above(counts)]
    return _mean([value for value in values if value is not None])


def f1_macro(counts: Floats) -> float:
    """Return the mean F1 at a probability of one half over the classes with samples, from counts in two bins."""
    (_, false), (missed, true) = counts[0].T, counts[1].T
    labelled = true + missed > 0
    return _mean((2 * true / np.maximum(2 * true + false + missed, 1))[labelled])


def f1_micro(counts: Floats) -> float:
    """Return F1 at a probability of one half over all pairs of sample and class, from counts in two bins."""
    (_, false), (missed, true) = counts.sum(axis=1)
    return float(2 * true / (2 * true + false + missed)) if true + false + missed else float("nan")


def _mean(values: Sequence[float] | Floats) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _counts_of(metrics: Mapping[str, Metric]) -> Floats:
    counts = metrics["average_precision"].counts
    assert isinstance(counts, torch.Tensor)
    return counts.cpu().numpy()


def _balanced_weights(shards: ShardManifest) -> torch.Tensor:
    """Return samples outside of each class over samples of it, in the training split: [classes] float32."""
    train = shards.splits["train"]
    positives = torch.tensor(train.samples_by_class, dtype=torch.float64)
    negatives = train.samples - positives
    # A class without positives or negatives has weight 1.
    return torch.where((positives > 0) & (negatives > 0), negatives / positives, 1.0).float()


def _label_outcome(name: str, threshold: float, true: Floats, false: Floats, edges: Floats) -> LabelOutcome:
    place = int(np.searchsorted(edges, threshold))
    positives, right, wrong = int(true[0]), int(true[place]), int(false[place])
    predicted = right + wrong
    return LabelOutcome(
        name=name,
        threshold=threshold,
        positives=positives,
        predicted=predicted,
        right=right,
        precision=right / predicted if predicted else None,
        recall=right / positives if positives else None,
        f1=2 * right / (predicted + positives) if predicted + positives else None,
        average_precision=average_precision(true, false),
    )


def _worst_sample(outcomes: Columns, place: int) -> WorstSample:
    label, answer = outcomes["label"][place], outcomes["answer"][place]
    labels = _label_scores(label, outcomes["label_probability"][place])
    answers = _label_scores(answer, outcomes["probability"][place])
    missed = sorted((score for score in labels if score.label not in answer), key=lambda score: score.probability)
    wrong = sorted((score for score in answers if score.label not in label), key=lambda score: -score.probability)
    return WorstSample(
        shard=outcomes["shard"][place],
        key=outcomes["key"][place],
        place=place,
        loss=float(outcomes["loss"][place]),
        labels=label[:MAX_LABELS],
        missed=missed[:MAX_LABELS],
        wrong=wrong[:MAX_LABELS],
    )


def _label_scores(places: Sequence[int], probabilities: Sequence[float]) -> list[LabelScore]:
    return [LabelScore(label=place, probability=score) for place, score in zip(places, probabilities, strict=True)]
