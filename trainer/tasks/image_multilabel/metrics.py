"""Metrics of several labels: mean average precision, and F1 over classes and over all pairs of sample and class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torchmetrics import Metric

from trainer.tasks.image_multilabel.passing import average_precision
from trainer.tasks.image_multilabel.scores import ClassScores, binned_scores, bins_of, count_in_bins, scores_of
from trainer.tasks.protocol import Batch

EXACT, BINNED = "average_precision", "average_precision_binned"


class AveragePrecision(Metric):
    """Mean average precision over the classes that have a sample, of all scores.

    So has it scikit-learn (average_precision_score of each class).
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    logits: list[torch.Tensor]
    labels: list[torch.Tensor]

    def __init__(self) -> None:
        super().__init__(sync_on_compute=False)
        self.add_state("logits", [], dist_reduce_fx="cat")
        self.add_state("labels", [], dist_reduce_fx="cat")

    def update(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Keep a batch: logits [B, classes] float32, and whether a sample is of the class [B, classes] bool."""
        self.logits.append(logits)
        self.labels.append(labels)

    def compute(self) -> torch.Tensor:
        """Return the mean, [] float64; not a number where no class has a sample."""
        logits, labels = torch.cat(self.logits).cpu().numpy(), torch.cat(self.labels).cpu().numpy()
        return _mean(list(scores_of(logits, labels)))


class BinnedAveragePrecision(Metric):
    """The same of scores that are counted in bins: samples of one bin are taken as tied.

    Args:
        num_classes: Width of the logits.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    counts: torch.Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__(sync_on_compute=False)
        self._num_bins = bins_of(num_classes)
        counts = torch.zeros(2, num_classes, self._num_bins, dtype=torch.float64)
        self.add_state("counts", counts, dist_reduce_fx="sum")

    def update(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Count a batch: logits [B, classes] float32, and whether a sample is of the class [B, classes] bool."""
        self.counts += count_in_bins(logits, labels, self._num_bins)

    def compute(self) -> torch.Tensor:
        """Return the mean, [] float64; not a number where no class has a sample."""
        return _mean(list(binned_scores(self.counts.cpu().numpy().astype(np.int64))))


class F1(Metric):
    """F1 of the labels whose probability is at least one half.

    So has it scikit-learn: `macro` is the mean over the classes that are a label of any sample (those as `labels`),
    `micro` is over all pairs of sample and class.

    Args:
        num_classes: Width of the logits.
        average: Over what it is one number.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    right: torch.Tensor
    whole: torch.Tensor
    labelled: torch.Tensor

    def __init__(self, num_classes: int, average: Literal["macro", "micro"]) -> None:
        super().__init__(sync_on_compute=False)
        self._average = average
        # Of each class: samples that are predicted and labelled, the sum of those that are either, and those labelled.
        for name in ("right", "whole", "labelled"):
            self.add_state(name, torch.zeros(num_classes, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Count a batch: logits [B, classes] float32, and whether a sample is of the class [B, classes] bool."""
        predicted = logits >= 0
        self.right += (predicted & labels).sum(dim=0)
        self.whole += predicted.sum(dim=0) + labels.sum(dim=0)
        self.labelled += labels.sum(dim=0)

    def compute(self) -> torch.Tensor:
        """Return F1, [] float64; not a number where nothing is labelled, nor predicted of `micro`."""
        if self._average == "micro":
            return 2 * self.right.sum() / self.whole.sum()
        known = self.labelled > 0
        return (2 * self.right[known] / self.whole[known]).mean()


def make_metrics(num_classes: int, *, exact: bool) -> dict[str, Metric]:
    """Return the metrics by name.

    Args:
        num_classes: Width of the logits.
        exact: Whether all scores of a split are gathered.
    """
    precision = {EXACT: AveragePrecision()} if exact else {BINNED: BinnedAveragePrecision(num_classes)}
    return {**precision, "f1_macro": F1(num_classes, "macro"), "f1_micro": F1(num_classes, "micro")}


def update_metrics(metrics: Mapping[str, Metric], logits: torch.Tensor, batch: Batch) -> None:
    """Take a batch in.

    Args:
        metrics: By name, as `make_metrics` has made them.
        logits: [B, classes] float32.
        batch: With `label` [B, classes], 1 where a sample is of the class.
    """
    labels = batch["label"] > 0.5
    for metric in metrics.values():
        metric.update(logits, labels)


def _mean(classes: list[ClassScores]) -> torch.Tensor:
    found = [value for one in classes if (value := average_precision(one.ranking)) is not None]
    return torch.tensor(np.mean(found) if found else float("nan"), dtype=torch.float64)
