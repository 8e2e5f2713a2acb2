"""What a model said of each sample of a split, in bounded memory: confusion, curves, and the worst samples.

All are counts, or a selection by value, so parts of ranks add up to the same whatever their number:

- confusion as pairs (label, prediction) with a count: as many as occur, never classes squared;
- a ROC curve a class from two histograms over log-odds, with fewer bins the more classes there are;
- what passes even thresholds of the probability, which is what TensorBoard shows precision and recall at;
- the worst samples as a list of fixed length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.nn import functional

from contracts.artifacts.classification import ClassOutcome, RocCurve

# Thresholds over all classes, so that the document stays below some megabytes; and the bounds for one class.
TOTAL_THRESHOLDS = 65536
MOST_THRESHOLDS, FEWEST_THRESHOLDS = 256, 16
# Log-odds beyond this are one: a probability of 6e-6, or as close to 1.
LARGEST_LOG_ODDS = 12.0
# Even thresholds from 0 to 1: as many as TensorBoard's own summaries have, whose format cannot tell more.
NUM_THRESHOLDS = 127
# Samples named in the document.
WORST_SAMPLES = 50
# Off-diagonal cells of the confusion matrix in the document: the largest ones.
MOST_CELLS = 100_000
# Predictions looked at together when they are counted: 8 bytes each.
_COUNTED_TOGETHER = 1 << 20

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SamplePrediction:
    """What the model said of one sample."""

    label_probability: float
    place: int
    """In the split."""
    label: int
    predicted: int
    predicted_probability: float


class Outcomes:
    """The outcomes of one rank, and with `merge` those of all.

    Args:
        num_classes: Width of the logits.
        device: Where the logits are.
    """

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self.num_classes = num_classes
        self.num_bins = max(FEWEST_THRESHOLDS, min(MOST_THRESHOLDS, TOTAL_THRESHOLDS // num_classes))
        # [2, classes, bins]: samples that are not of the class, and samples of it, by the log-odds given to the class.
        self._histogram = torch.zeros(2, num_classes, self.num_bins, dtype=torch.int64, device=device)
        # [2, classes, NUM_THRESHOLDS]: the same by the highest even threshold that they pass; the size of the indices
        # of a batch of 254 samples.
        self._passing = torch.zeros(2, num_classes, NUM_THRESHOLDS, dtype=torch.int64, device=device)
        self._thresholds = _even_thresholds().to(device)
        self._pending: list[Integers] = []
        self._cells: Integers = np.empty(0, np.int64)
        self._counts: Integers = np.empty(0, np.int64)
        self._worst: list[SamplePrediction] = []

    def add(self, logits: torch.Tensor, labels: torch.Tensor, *, first_place: int) -> None:
        """Take in a batch.

        Args:
            logits: [B, classes] float32.
            labels: [B] int64.
            first_place: Place in the split of the first sample; the others follow.
        """
        log_probability = functional.log_softmax(logits, dim=1)
        self._count_scores(logits, log_probability, labels)
        best, predicted = log_probability.max(dim=1)
        own = log_probability.gather(1, labels[:, None])[:, 0]
        cells = (labels * self.num_classes + predicted).cpu().numpy()
        self._pending.append(cells)
        if sum(map(len, self._pending)) >= _COUNTED_TOGETHER:
            self._count_cells()
        values = zip(own.tolist(), labels.tolist(), predicted.tolist(), best.tolist(), strict=True)
        said = [
            SamplePrediction(math.exp(own), first_place + number, label, guess, math.exp(best))
            for number, (own, label, guess, best) in enumerate(values)
        ]
        self._keep_worst(said)

    def _count_scores(self, logits: torch.Tensor, log_probability: torch.Tensor, labels: torch.Tensor) -> None:
        # log(p / (1 - p)): even steps of it are fine steps of p near 0 and 1, where trained models say most.
        log_odds = log_probability - (-log_probability.expm1()).log()
        scaled = (log_odds + LARGEST_LOG_ODDS) * (self.num_bins / (2 * LARGEST_LOG_ODDS))
        bins = scaled.nan_to_num(0.0, posinf=self.num_bins).clamp(0, self.num_bins - 1).long()
        _add_to(self._histogram, bins, labels)
        probability = functional.softmax(logits, dim=1).nan_to_num(0.0).clamp(0, 1)
        _add_to(self._passing, torch.bucketize(probability, self._thresholds, right=True) - 1, labels)

    def _count_cells(self) -> None:
        cells = np.concatenate([self._cells, *self._pending])
        counts = np.concatenate([self._counts, *(np.ones(len(one), np.int64) for one in self._pending)])
        self._cells, self._counts = _add_up(cells, counts)
        self._pending.clear()

    def _keep_worst(self, said: list[SamplePrediction]) -> None:
        self._worst = sorted([*self._worst, *said], key=lambda one: (one.label_probability, one.place))[:WORST_SAMPLES]

    def merge(self) -> None:
        """Take in the outcomes of all ranks, at the first rank; all must call this."""
        self._count_cells()
        dist.all_reduce(self._histogram)
        dist.all_reduce(self._passing)
        parts: list[tuple[Integers, Integers, list[SamplePrediction]]] | None = None
        if dist.get_rank() == 0:
            parts = [(self._cells, self._counts, self._worst)] * dist.get_world_size()
        dist.gather_object((self._cells, self._counts, self._worst), parts, dst=0)
        if parts is None:
            return
        self._cells, self._counts = _add_up(
            np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
        )
        self._worst = []
        self._keep_worst([one for part in parts for one in part[2]])

    # --- what the document says ---------------------------------------------------------------------------------------

    def worst(self) -> list[SamplePrediction]:
        """Return the samples whose label got the lowest probability, the lowest first."""
        return self._worst

    def counts(self) -> Integers:
        """Return samples by the highest of `NUM_THRESHOLDS` even thresholds that their probability of a class passes.

        [2, classes, NUM_THRESHOLDS]: those that are not of the class, and those of it.
        """
        return self._passing.cpu().numpy()

    def confusion(self) -> tuple[list[tuple[int, int, int]], int]:
        """Return the cells (label, predicted, samples) that are not empty, and the samples in cells left out.

        In the order of label and prediction. Those on the diagonal are all there; of the others, the largest.
        """
        self._count_cells()
        labels, predicted = np.divmod(self._cells, self.num_classes)
        wrong = labels != predicted
        # The largest first; equal ones in their order, so that the choice hangs on nothing else.
        ranking = np.lexsort((self._cells, -self._counts, ~wrong))
        left_out = ranking[: int(wrong.sum())][MOST_CELLS:]
        kept = np.ones(len(self._cells), bool)
        kept[left_out] = False
        cells = zip(labels[kept].tolist(), predicted[kept].tolist(), self._counts[kept].tolist(), strict=True)
        return list(cells), int(self._counts[left_out].sum())

    def by_class(self, names: list[str]) -> list[ClassOutcome]:
        """Return what became of the samples of each class, and its curve against all others."""
        self._count_cells()
        labels, predicted = np.divmod(self._cells, self.num_classes)
        samples = np.bincount(labels, weights=self._counts, minlength=self.num_classes).astype(np.int64)
        guesses = np.bincount(predicted, weights=self._counts, minlength=self.num_classes).astype(np.int64)
        hits = labels == predicted
        right = np.bincount(labels[hits], weights=self._counts[hits], minlength=self.num_classes).astype(np.int64)
        histogram = self._histogram.cpu().numpy()
        return [
            ClassOutcome(
                name=name,
                samples=int(samples[number]),
                predicted=int(guesses[number]),
                right=int(right[number]),
                roc=self._curve(histogram[0, number], histogram[1, number]),
            )
            for number, name in enumerate(names)
        ]

    def _curve(self, others: Integers, own: Integers) -> RocCurve | None:
        """Return the curve of a class from its histograms; None where one side has no sample."""
        if not others.sum() or not own.sum():
            return None
        # From the highest threshold down: what is in a bin or above it passes.
        others, own = others[::-1], own[::-1]
        false, true = np.cumsum(others), np.cumsum(own)
        # Trapezoids: samples of one bin are taken as tied.
        area = float((others * (true - own / 2)).sum() / (others.sum() * own.sum()))
        width = 2 * LARGEST_LOG_ODDS / self.num_bins
        edges = -LARGEST_LOG_ODDS + width * np.arange(self.num_bins)[::-1]
        # The lowest bin holds all that is below it.
        thresholds = [*(1 / (1 + math.exp(-edge)) for edge in edges[:-1]), 0.0]
        passing = zip(thresholds, false.tolist(), true.tolist(), others + own, strict=True)
        points = [(threshold, wrong, right) for threshold, wrong, right, samples in passing if samples]
        return RocCurve(area=area, points=points)


def _even_thresholds() -> torch.Tensor:
    """Return [NUM_THRESHOLDS] float32: the smallest number that is not below each threshold.

    So a float32 passes one of these where it passes the threshold itself, which few float32 are.
    """
    exact = np.linspace(0.0, 1.0, NUM_THRESHOLDS)
    near = exact.astype(np.float32)
    return torch.from_numpy(np.where(near < exact, np.nextafter(near, np.float32(2)), near))


def _add_to(histogram: torch.Tensor, bins: torch.Tensor, labels: torch.Tensor) -> None:
    """Count a batch: bins [B, classes] of a histogram [2, classes, bins], by whether the label is the class."""
    _, num_classes, num_bins = histogram.shape
    classes = torch.arange(num_classes, device=labels.device)
    is_class = (labels[:, None] == classes).long()
    flat = ((is_class * num_classes + classes) * num_bins + bins).view(-1)
    histogram.view(-1).scatter_add_(0, flat, torch.ones_like(flat))


def _add_up(cells: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """Return each cell once, in order, with the sum of its counts."""
    unique, inverse = np.unique(cells, return_inverse=True)
    return unique, np.bincount(inverse, weights=counts, minlength=len(unique)).astype(np.int64)
