"""Precision and recall by threshold, out of counts of samples by the log-odds that a class was given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.outcomes import LARGEST_LOG_ODDS, Integers

# As many as TensorBoard's own summaries have; its format cannot tell more.
NUM_THRESHOLDS = 127


@dataclass(frozen=True)
class PrecisionRecall:
    """What passes each of `NUM_THRESHOLDS` thresholds, evenly from 0 to 1."""

    true_positives: Integers
    false_positives: Integers
    true_negatives: Integers
    false_negatives: Integers

    @property
    def precision(self) -> npt.NDArray[np.float64]:
        """Share of what passes that is of the class; 0 where nothing passes, as TensorBoard has it."""
        return np.asarray(self.true_positives / np.maximum(self.true_positives + self.false_positives, 1))

    @property
    def recall(self) -> npt.NDArray[np.float64]:
        """Share of the class that passes."""
        return np.asarray(self.true_positives / np.maximum(self.true_positives + self.false_negatives, 1))


def precision_recall(others: Integers, own: Integers) -> PrecisionRecall:
    """Return the curve of a class, or of many whose counts were added up.

    A bin of log-odds is taken as a whole: it passes a threshold where its lower edge does. The highest one, of
    probabilities that differ from 1 by less than 1e-5, passes all.

    Args:
        others: [bins] samples that are not of the class, by the log-odds that they were given (trainer/outcomes.py).
        own: [bins] samples of it.
    """
    bins = len(own)
    with np.errstate(divide="ignore"):
        thresholds = np.linspace(0.0, 1.0, NUM_THRESHOLDS)
        log_odds = np.log(thresholds) - np.log1p(-thresholds)
    first = np.ceil((log_odds + LARGEST_LOG_ODDS) * (bins / (2 * LARGEST_LOG_ODDS))).clip(0, bins - 1).astype(np.int64)
    true, false = own[::-1].cumsum()[::-1][first], others[::-1].cumsum()[::-1][first]
    return PrecisionRecall(true, false, others.sum() - false, own.sum() - true)
