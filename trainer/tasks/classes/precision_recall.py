"""Precision and recall by threshold, out of counts of samples by the probability that a class was given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.tasks.classes.outcomes import Integers


@dataclass(frozen=True)
class PrecisionRecall:
    """Samples that pass each of `outcomes.NUM_THRESHOLDS` thresholds, evenly from 0 to 1: [thresholds] each."""

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

    It is exact: a sample passes a threshold where its probability is not below it.

    Args:
        others: [thresholds] samples that are not of the class, by the highest threshold that they pass
            (`trainer.tasks.classes.outcomes.Outcomes.counts`).
        own: [thresholds] samples of it.
    """
    true, false = own[::-1].cumsum()[::-1], others[::-1].cumsum()[::-1]
    return PrecisionRecall(true, false, others.sum() - false, own.sum() - true)
