"""A threshold for each class, chosen on the validation split with the best weights."""

from __future__ import annotations

from typing import Any

import torch

from contracts.artifacts.multilabel import DEFAULT_THRESHOLD, THRESHOLDS
from trainer.tasks.image_multilabel.passing import best_threshold, between_scores
from trainer.tasks.image_multilabel.scores import SplitScores
from trainer.tasks.protocol import Batch


class ThresholdChoice:
    """Chooses the threshold with the largest F1 of each class (trainer/tasks/optional.py, Calibration).

    Args:
        num_classes: Width of the logits.
        device: Where the logits are.
        exact: Whether all scores of the split are gathered; else thresholds are edges of bins.
    """

    def __init__(self, num_classes: int, device: torch.device, *, exact: bool) -> None:
        self._num_classes = num_classes
        self._scores = SplitScores(num_classes, device, exact=exact)

    def add(self, outputs: torch.Tensor, batch: Batch, *, first_place: int) -> None:
        """Take in logits [B, classes] float32 and their labels."""
        self._scores.add(outputs, batch["label"] > 0.5, first_place=first_place)

    def merge(self) -> None:
        """Take in what other ranks have, at the first rank; all must call this."""
        self._scores.merge()

    def document(self) -> dict[str, Any]:
        """Return the thresholds, in the order of the classes: probabilities from which on an image has the class."""
        found = self._scores.by_class()
        if found is None:
            return {THRESHOLDS: [DEFAULT_THRESHOLD] * self._num_classes}
        passing = [(one.probabilities, one.exact) for one in found]
        return {
            THRESHOLDS: [
                best_threshold(one, between_scores(one.scores) if exact else one.scores) for one, exact in passing
            ]
        }
