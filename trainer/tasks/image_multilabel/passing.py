"""The numbers of one class: the samples at or above each threshold, average precision, and the threshold that is best.

Everything is counted in numpy on the host: the same counts give the same bits wherever they were gathered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from contracts.artifacts.multilabel import DEFAULT_THRESHOLD

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Passing:
    """Samples that are at or above each of some scores, [cuts] each; the last cut is passed by all samples."""

    scores: Floats
    """Falling, no two alike."""
    true: Integers
    """Samples of the class that pass."""
    false: Integers
    """Samples outside of the class that pass."""

    @property
    def positives(self) -> int:
        """Samples of the class."""
        return int(self.true[-1])


def count_passing(scores: npt.NDArray[np.floating], is_class: npt.NDArray[np.bool_]) -> Passing:
    """Count the samples that are at or above each score that occurs.

    Args:
        scores: [N] of one class, at least one; probabilities, logits or anything else that rises with them.
        is_class: [N] whether a sample is of the class.
    """
    order = np.argsort(-scores, kind="stable")
    sorted_scores = scores[order]
    true = np.cumsum(is_class[order], dtype=np.int64)
    # Samples of one score pass together.
    last = np.append(np.flatnonzero(np.diff(sorted_scores)), len(scores) - 1)
    return Passing(sorted_scores[last].astype(np.float64), true[last], last + 1 - true[last])


def count_bins(edges: Floats, others: Integers, own: Integers) -> Passing:
    """Count the samples that are at or above the lower edge of each bin.

    Args:
        edges: [bins] lower edges, rising.
        others: [bins] samples outside of the class.
        own: [bins] samples of it.
    """
    return Passing(edges[::-1], own[::-1].cumsum(), others[::-1].cumsum())


def average_precision(passing: Passing) -> float | None:
    """Return the precision at each cut, weighted by the recall that the cut adds; None: no sample is of the class.

    So has it scikit-learn (average_precision_score): no points are interpolated.
    """
    if not passing.positives:
        return None
    precision = passing.true / np.maximum(passing.true + passing.false, 1)
    added = np.diff(passing.true, prepend=0) / passing.positives
    return float((precision * added).sum())


def between_scores(probabilities: Floats) -> Floats:
    """Return a threshold for each cut that the same samples pass.

    It is 0.5 where that is one, else halfway to the next probability below, which other arithmetic does not reach.

    Args:
        probabilities: [cuts] falling.
    """
    below = np.append(probabilities[1:], 0.0)
    middle = (probabilities + below) / 2
    # Of two neighbouring numbers the middle is rounded to either.
    middle = np.where(middle > below, middle, probabilities)
    return np.where((below < DEFAULT_THRESHOLD) & (probabilities >= DEFAULT_THRESHOLD), DEFAULT_THRESHOLD, middle)


def best_threshold(passing: Passing, thresholds: Floats) -> float:
    """Return the threshold with the largest F1; of equal ones the nearest to 0.5, then the highest.

    It is 0.5 for a class without a sample.

    Args:
        passing: Of the class.
        thresholds: [cuts] falling, one for each cut.
    """
    if not passing.positives:
        return DEFAULT_THRESHOLD
    # Twice the true ones over both the predicted and the labelled ones: equal fractions are equal numbers.
    f1 = 2 * passing.true / (passing.true + passing.false + passing.positives)
    best = np.flatnonzero(f1 == f1.max())
    distance = np.abs(thresholds[best] - DEFAULT_THRESHOLD)
    return float(thresholds[best[np.argmin(distance)]])
