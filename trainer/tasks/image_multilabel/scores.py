"""The scores of a split over all ranks: every logit where they fit into memory, else counted in bins of the logit.

Which of both is decided by the sizes in the shards' manifest, so all ranks and all evaluations of a training agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from contracts.artifacts import ShardManifest
from trainer.tasks.image_multilabel.passing import Floats, Integers, Passing, count_bins, count_passing
from trainer.tasks.images.predict import sigmoid
from trainer.tasks.metrics import MAX_LIST_BYTES

# Of a pair of sample and class: its logit (float32), and whether the sample is of the class.
PAIR_BYTES = 5
# Bins over all classes, so that an evaluation reduces some megabytes; and the bounds for one class, even numbers: a
# probability of one half is an edge.
TOTAL_BINS = 1 << 20
MOST_BINS, FEWEST_BINS = 1024, 64
# Logits beyond this are one: a probability of 6e-6, or as close to 1.
LARGEST_LOGIT = 12.0

Logits = npt.NDArray[np.float32]
Labels = npt.NDArray[np.bool_]


def fits_memory(shards: ShardManifest, num_classes: int) -> bool:
    """Whether all logits of the validation and the test split may be gathered (trainer/tasks/metrics.py)."""
    samples = max(shards.splits[name].samples for name in ("validation", "test"))
    return samples * num_classes * PAIR_BYTES <= MAX_LIST_BYTES


def bins_of(num_classes: int) -> int:
    """Return the number of bins of each class."""
    return max(FEWEST_BINS, min(MOST_BINS, TOTAL_BINS // max(1, num_classes) // 2 * 2))


def bin_edges(num_bins: int) -> Floats:
    """Return the lower edges of the bins [bins], as logits; the lowest bin holds what is below it too."""
    return np.linspace(-LARGEST_LOGIT, LARGEST_LOGIT, num_bins + 1)[:-1]


def count_in_bins(logits: torch.Tensor, labels: torch.Tensor, num_bins: int) -> torch.Tensor:
    """Count a batch: [2, classes, bins] int64, samples outside of each class and samples of it.

    Args:
        logits: [B, classes] float32.
        labels: [B, classes], true where a sample is of the class.
        num_bins: Of each class.
    """
    num_classes = logits.shape[1]
    edges = torch.from_numpy(bin_edges(num_bins)).to(logits.device)
    # A logit on an edge belongs to the bin above it, as a score at its threshold passes.
    bins = torch.bucketize(logits.double().nan_to_num(0.0), edges, right=True).sub_(1).clamp_(min=0)
    classes = torch.arange(num_classes, device=logits.device)
    flat = ((labels.long() * num_classes + classes) * num_bins + bins).view(-1)
    counts = torch.zeros(2 * num_classes * num_bins, dtype=torch.int64, device=logits.device)
    return counts.scatter_add_(0, flat, torch.ones_like(flat)).view(2, num_classes, num_bins)


@dataclass(frozen=True)
class ClassScores:
    """What is known of the scores of one class."""

    ranking: Passing
    """By logits, for average precision: probabilities near 1 are rounded to one number."""
    probabilities: Passing
    """By probabilities, which thresholds are compared with."""
    exact: bool
    """Whether every score is a cut; else the lower edges of bins are."""


def scores_of(logits: Logits, labels: Labels) -> Iterator[ClassScores]:
    """Yield the scores of each class.

    Args:
        logits: [N, classes], at least one sample.
        labels: [N, classes].
    """
    for number in range(logits.shape[1]):
        # What is no number says nothing, as in bins: sorted as it is, the order of the samples would be a ranking.
        column = np.where(np.isnan(logits[:, number]), np.float32(0), logits[:, number])
        is_class = labels[:, number]
        yield ClassScores(
            ranking=count_passing(column, is_class),
            probabilities=count_passing(sigmoid(column), is_class),
            exact=True,
        )


def binned_scores(counts: Integers) -> Iterator[ClassScores]:
    """Yield the scores of each class out of counts [2, classes, bins]."""
    edges = bin_edges(counts.shape[2])
    probabilities = sigmoid(edges)
    # Whatever is below the lowest edge is in the lowest bin.
    probabilities[0] = 0.0
    for others, own in zip(counts[0], counts[1], strict=True):
        yield ClassScores(count_bins(edges, others, own), count_bins(probabilities, others, own), exact=False)


class SplitScores:
    """The scores of the samples that one rank took in, and with `merge` those of all.

    Args:
        num_classes: Width of the logits.
        exact: Keep every logit; else count them.
        device: Where the logits are.
    """

    def __init__(self, num_classes: int, device: torch.device, *, exact: bool) -> None:
        self._num_classes, self._exact = num_classes, exact
        self._batches: list[tuple[int, Logits, Labels]] = []
        num_bins = 0 if exact else bins_of(num_classes)
        self._counts = torch.zeros(2, num_classes, num_bins, dtype=torch.int64, device=device)

    def add(self, logits: torch.Tensor, labels: torch.Tensor, *, first_place: int) -> None:
        """Take in a batch.

        Args:
            logits: [B, classes] float32.
            labels: [B, classes], true where a sample is of the class.
            first_place: Place in the split of the first sample.
        """
        if self._exact:
            self._batches.append((first_place, logits.cpu().numpy(), labels.bool().cpu().numpy()))
        else:
            self._counts += count_in_bins(logits, labels, self._counts.shape[2])

    def merge(self) -> None:
        """Take in the scores of all ranks, at the first rank; all must call this."""
        if not self._exact:
            dist.all_reduce(self._counts)
            return
        gathered: list[list[tuple[int, Logits, Labels]]] | None = None
        if dist.get_rank() == 0:
            gathered = [[] for _ in range(dist.get_world_size())]
        dist.gather_object(self._batches, gathered, dst=0)
        self._batches = sorted((one for part in gathered or [] for one in part), key=lambda one: one[0])

    def by_class(self) -> list[ClassScores] | None:
        """Return the scores of each class; None: no sample was taken in."""
        if not self._exact:
            counts = self._counts.cpu().numpy()
            return list(binned_scores(counts)) if counts.any() else None
        if not self._batches:
            return None
        logits, labels = (np.concatenate([batch[part] for batch in self._batches]) for part in (1, 2))
        return list(scores_of(logits, labels))
