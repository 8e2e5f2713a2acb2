"""Metrics of classifications: accuracy, and the means over classes of F1 and of recall.

torchmetrics' own means over classes count all pairs of classes: 800 MB for each batch with 10,000 of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from trainer.tasks.protocol import Batch


class MeanOverClasses(Metric):
    """Mean of F1 or recall over the classes that are the label of any sample.

    So has it scikit-learn (average="macro") with the labels of the samples as `labels`: a class without a sample has no
    recall, and a mean over one more or less class would depend on what is predicted wrongly.

    Args:
        num_classes: Width of the logits.
        score: What is averaged.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    right: torch.Tensor
    labelled: torch.Tensor
    predicted: torch.Tensor

    def __init__(self, num_classes: int, score: Literal["f1", "recall"]) -> None:
        super().__init__(sync_on_compute=False)
        self._score = score
        for name in ("right", "labelled", "predicted"):
            self.add_state(name, torch.zeros(num_classes, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, predicted: torch.Tensor, labels: torch.Tensor) -> None:
        """Count a batch: predicted classes [B] int64 and labels [B] int64."""
        one = self.right.new_ones(()).expand(len(labels))
        self.right.index_add_(0, labels, (predicted == labels).to(one.dtype))
        self.labelled.index_add_(0, labels, one)
        self.predicted.index_add_(0, predicted, one)

    def compute(self) -> torch.Tensor:
        """Return the mean, [] float64."""
        found = 2 * self.right if self._score == "f1" else self.right
        whole = self.labelled + self.predicted if self._score == "f1" else self.labelled
        has_samples = self.labelled > 0
        return (found[has_samples] / whole[has_samples]).mean()


def make_metrics(num_classes: int) -> dict[str, Metric]:
    """Return the metrics by name.

    Args:
        num_classes: Width of the logits.
    """
    return {
        "accuracy": MulticlassAccuracy(num_classes, average="micro", sync_on_compute=False, validate_args=False),
        "f1_macro": MeanOverClasses(num_classes, "f1"),
        "recall_macro": MeanOverClasses(num_classes, "recall"),
    }


def update_metrics(metrics: Mapping[str, Metric], logits: torch.Tensor, batch: Batch) -> None:
    """Take a batch in.

    Args:
        metrics: By name, as `make_metrics` has made them.
        logits: [B, classes].
        batch: With `label` [B] int64.
    """
    predicted = logits.argmax(dim=1)
    for metric in metrics.values():
        metric.update(predicted, batch["label"])
