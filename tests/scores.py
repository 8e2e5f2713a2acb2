"""Scores by their definitions, as references: of labels and answers, or of labels and scores of one class."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


def confusion_matrix(labels: Array, answers: Array, classes: int) -> npt.NDArray[np.int64]:
    """Return the number of samples by label (row) and answer (column)."""
    return np.array([[((labels == a) & (answers == b)).sum() for b in range(classes)] for a in range(classes)])


def precision(labels: Array, answers: Array) -> float:
    """Return the share of the samples answered with the class that are of it; both bool; NaN without an answer."""
    return _share((labels & answers).sum(), answers.sum())


def recall(labels: Array, answers: Array) -> float:
    """Return the share of the class's samples that are answered with it; both bool; NaN without a sample."""
    return _share((labels & answers).sum(), labels.sum())


def f1(labels: Array, answers: Array) -> float:
    """Return the harmonic mean of precision and recall; both bool; NaN without a sample and an answer."""
    return _share(2 * (labels & answers).sum(), labels.sum() + answers.sum())


def jaccard(labels: Array, answers: Array) -> float:
    """Return the intersection over the union; both bool; NaN without a sample and an answer."""
    return _share((labels & answers).sum(), (labels | answers).sum())


def average_precision(labels: Array, scores: Array) -> float:
    """Return the sum over thresholds of precision times the rise of recall, without interpolation; labels are bool."""
    total = before = 0.0
    for threshold in np.unique(scores)[::-1]:
        now = recall(labels, scores >= threshold)
        total += (now - before) * precision(labels, scores >= threshold)
        before = now
    return total


def roc_curve(labels: Array, scores: Array) -> list[tuple[float, int, int]]:
    """Return each threshold, and how many samples of neither and of the class reach it; labels are bool."""
    thresholds = np.unique(scores)[::-1]
    return [
        (float(at), int((~labels & (scores >= at)).sum()), int((labels & (scores >= at)).sum())) for at in thresholds
    ]


def roc_area(labels: Array, scores: Array) -> float:
    """Return the probability that a sample of the class scores above another, ties being half; labels are bool."""
    differences = scores[labels][:, None] - scores[~labels][None]
    return float((differences > 0).mean() + (differences == 0).mean() / 2)


def _share(part: int, whole: int) -> float:
    return float(part / whole) if whole else float("nan")
