"""The order for class-balanced sampling: equally many samples of each class, each draw with its own random numbers.

Counted from the start of training, each round of K draws has one of each of the K classes, in permuted order; the
samples of a class come in permuted cycles, each once a cycle. Classes without samples take no part.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from contracts.artifacts import ShardManifest
from records.samples import SampleIndex
from trainer.data.order.permutation import (
    SORTED_BELOW,
    Places,
    feistel,
    hash_each,
    hash_integers,
    shuffled,
    shuffled_each,
)

# What a key is for, so that no two permutations share one.
_CLASSES, _CLASS = 3, 4
# Rounds whose order of classes is kept: a batch often begins in the round in which the last one ended.
_ROUNDS = 2
# Labels read at a time: 4 MB, or 40 MB of records of index version 1.
LABELS_AT_A_TIME = 1_000_000


class _Drawn:
    """The cycle that each class was last in, and its permutation: 2 bytes a sample."""

    def __init__(self, num_classes: int, num_samples: int) -> None:
        self.cycle: Places = np.full(num_classes, -1, dtype=np.int64)
        self.permutation: npt.NDArray[np.uint16] = np.empty(num_samples, dtype=np.uint16)
        self.rounds: dict[int, Places] = {}
        # Two threads ask: one for what comes next, one for what to fetch ahead, at other places.
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[type[_Drawn], tuple[int, int]]:
        # Another process draws for itself.
        return _Drawn, (len(self.cycle), len(self.permutation))


@dataclass(frozen=True)
class BalancedOrder:
    """Equally many samples of each class, an epoch being as long as without balance.

    Memory: 8 bytes a sample for the places by class, and 2 for the permutations of the classes.
    """

    by_class: Places
    """[num_samples] places in the split, sorted by class."""
    starts: Places
    """[K + 1] where each class that has samples starts in `by_class`, and the end."""
    seed: int

    @classmethod
    def of(cls, labels: npt.NDArray[np.int32], seed: int) -> BalancedOrder:
        """Build the order from the label of each place of the split: [num_samples]."""
        _, counts = np.unique(labels, return_counts=True)
        return cls(np.argsort(labels, kind="stable"), np.concatenate([[0], np.cumsum(counts)]), seed)

    @cached_property
    def num_samples(self) -> int:
        """Samples of an epoch."""
        return len(self.by_class)

    @cached_property
    def _sizes(self) -> Places:
        return np.diff(self.starts)

    @cached_property
    def _drawn(self) -> _Drawn:
        return _Drawn(len(self._sizes), self.num_samples)

    def places(self, epoch: int, first: int, count: int) -> Places:
        """Return the places in the split of the offsets [first, first + count) of an epoch: [count]."""
        label, cycle, inside = self._draws(epoch, first, count)
        taken = np.empty(count, dtype=np.int64)
        many = self._sizes[label] >= SORTED_BELOW
        if many.any():
            keys = hash_each(self.seed, _CLASS, label[many], cycle[many])
            taken[many] = feistel(self._sizes[label[many]], keys, inside[many])
        with self._drawn.lock:
            taken[~many] = self._of_small_classes(label[~many], cycle[~many], inside[~many])
        return np.asarray(self.by_class[self.starts[label] + taken])

    def times_drawn(self, epoch: int, first: int, count: int) -> Places:
        """Return how often the sample at each offset was drawn before, since the start of training: [count]."""
        return self._draws(epoch, first, count)[1]

    def _draws(self, epoch: int, first: int, count: int) -> tuple[Places, Places, Places]:
        """Return for each offset the class, its cycle, and the turn in the cycle: [count] each."""
        rounds, turn = np.divmod(epoch * self.num_samples + np.arange(first, first + count), len(self._sizes))
        distinct, row = np.unique(rounds, return_inverse=True)
        with self._drawn.lock:
            classes = [self._classes(number) for number in distinct.tolist()]
        label = np.stack(classes)[row, turn] if classes else turn
        # Each round gives every class once, so its number is that of the class's draw.
        cycle, inside = np.divmod(rounds, self._sizes[label])
        return label, cycle, inside

    def _classes(self, number: int) -> Places:
        """Return the classes in the order of a round: [K]."""
        kept = self._drawn.rounds
        if number not in kept:
            while len(kept) >= _ROUNDS:
                kept.pop(next(iter(kept)))
            kept[number] = shuffled(len(self._sizes), hash_integers(self.seed, _CLASSES, number))
        return kept[number]

    def _of_small_classes(self, label: Places, cycle: Places, inside: Places) -> Places:
        """Return the places in their classes of draws from classes whose permutations are made whole."""
        drawn = self._drawn
        taken = drawn.permutation[self.starts[label] + inside].astype(np.int64)
        others = np.flatnonzero(drawn.cycle[label] != cycle)
        if not len(others):
            return np.asarray(taken)
        # Every (class, cycle) that is not kept, once; in the order of cycles, so that the last of a class is kept.
        pairs, row = np.unique(cycle[others] * len(self._sizes) + label[others], return_inverse=True)
        new_cycle, new_label = np.divmod(pairs, len(self._sizes))
        sizes = self._sizes[new_label]
        permutation = shuffled_each(sizes, hash_each(self.seed, _CLASS, new_label, new_cycle))
        starts = np.cumsum(sizes) - sizes
        taken[others] = permutation[starts[row] + inside[others]]
        last = len(pairs) - 1 - np.unique(new_label[::-1], return_index=True)[1]
        rows = np.repeat(last, sizes[last])
        within = np.arange(len(rows)) - np.repeat(np.cumsum(sizes[last]) - sizes[last], sizes[last])
        drawn.permutation[self.starts[new_label[rows]] + within] = permutation[starts[rows] + within]
        drawn.cycle[new_label[last]] = new_cycle[last]
        return np.asarray(taken)


def load_labels(index: SampleIndex, manifest: ShardManifest, split: str) -> npt.NDArray[np.int32]:
    """Read the label of each place of a split from the index, wherever it lies: [num_samples].

    In pieces: of index version 1 whole records are read, and of a map of it what was touched would count as memory.

    Raises:
        DataError: The index is missing or damaged.
    """
    entry = manifest.splits[split]
    labels = np.empty(entry.samples, dtype=np.int32)
    for start in range(0, entry.samples, LABELS_AT_A_TIME):
        count = min(LABELS_AT_A_TIME, entry.samples - start)
        labels[start : start + count] = index.labels(entry.first + start, count)
    return labels
