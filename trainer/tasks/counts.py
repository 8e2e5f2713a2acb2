"""Metrics of built-in tasks from counts of samples; this module imports torchmetrics, the tasks do not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torchmetrics import Metric

Floats = npt.NDArray[np.float64]


class ClassMean(Metric):
    """Mean over classes of a score, in float64: scikit-learn's `average="macro"` over the classes that are a label.

    torchmetrics' own means count all pairs of classes: 800 MB per batch with 10,000 of them.

    Args:
        num_classes: Width of the logits.
        score: Maps correct answers, labels and answers of each class to its score.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    correct: torch.Tensor
    labelled: torch.Tensor
    answered: torch.Tensor

    def __init__(
        self, num_classes: int, score: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__()
        self._score = score
        for name in ("correct", "labelled", "answered"):
            self.add_state(name, torch.zeros(num_classes, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, answers: torch.Tensor, labels: torch.Tensor) -> None:
        """Count a batch: both [B] int64."""
        ones = self.correct.new_ones(()).expand(len(labels))
        self.correct.index_add_(0, labels, (answers == labels).to(ones.dtype))
        self.labelled.index_add_(0, labels, ones)
        self.answered.index_add_(0, answers, ones)

    def compute(self) -> torch.Tensor:
        """Return the mean, [] float64; NaN without samples."""
        present = self.labelled > 0
        return self._score(self.correct[present], self.labelled[present], self.answered[present]).mean()


class ScoreCounts(Metric):
    """A statistic of the numbers of samples by class and bin of the logit.

    Args:
        num_classes: Width of the logits.
        edges: Lower edges of the bins of each class [bins], as logits; the lowest bin holds what is below it too.
        statistic: Maps counts [2, classes, bins] float64 (samples outside of each class, samples of it) to a number.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    counts: torch.Tensor

    def __init__(self, num_classes: int, edges: Floats, statistic: Callable[[Floats], float]) -> None:
        super().__init__()
        self._statistic = statistic
        self._edges = edges
        counts = torch.zeros(2, num_classes, len(edges), dtype=torch.float64)
        self.add_state("counts", counts, dist_reduce_fx="sum")

    def update(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Count a batch: logits [B, classes] float32, and whether a sample is of the class [B, classes] bool.

        A logit that is not a number counts as 0.
        """
        _, num_classes, num_bins = self.counts.shape
        edges = torch.from_numpy(self._edges).to(logits.device)
        # A logit on an edge is in the bin above it, as a probability equal to its threshold is positive.
        bins = torch.bucketize(logits.double().nan_to_num(0.0), edges, right=True).sub_(1).clamp_(min=0)
        classes = torch.arange(num_classes, device=logits.device)
        places = ((labels.long() * num_classes + classes) * num_bins + bins).view(-1)
        self.counts.view(-1).index_add_(0, places, self.counts.new_ones(()).expand(len(places)))

    def compute(self) -> torch.Tensor:
        """Return the statistic, [] float64."""
        return torch.tensor(self._statistic(self.counts.cpu().numpy()), dtype=torch.float64, device=self.counts.device)
