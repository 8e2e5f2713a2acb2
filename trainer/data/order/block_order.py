"""The order for shards in a bucket: few shards are read at a time, and samples still come shuffled.

    shards of the split ──> permuted ──> cut into windows of at most 16 ──> samples permuted inside each window

Sharding places samples by a hash, so each shard is a random part of the split. Everything follows from the manifest:
the index is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from contracts.artifacts import ShardManifest
from trainer.data.order.permutation import Permutations, Places, hash_integers, permute

# Most shards of a window, which a machine keeps on its disk: 2 GiB of the default size.
WINDOW_SHARDS = 16
# What a key is for, so that no two permutations share one.
_SHARDS, _WINDOW = 1, 2
# Layouts kept: a reader looks ahead into the next epoch while this one ends.
_LAYOUTS = 2


class Window(NamedTuple):
    """The shards that are read in a part of an epoch."""

    shards: list[int]
    """Their numbers in the manifest."""
    first: int
    """First offset of the epoch in the window."""
    end: int
    """Offset behind the last."""


class _Layout(NamedTuple):
    """The shards of one epoch, end to end."""

    order: Places
    """[num_shards] the shard at each turn, counted in the split."""
    starts: Places
    """[num_shards + 1] the offset of the epoch at which each turn starts, and the number of samples."""


@dataclass(frozen=True)
class BlockOrder:
    """Permuted shards, and inside of each window of them permuted samples.

    Memory: the shards, two permutations of them, and one of the samples of a window.
    """

    shards: Places
    """[num_shards] numbers in the manifest of the shards that have samples."""
    firsts: Places
    """[num_shards] place in the split of the first sample of each."""
    samples: Places
    """[num_shards] samples of each."""
    window_shards: int
    seed: int
    _layouts: dict[int, _Layout] = field(default_factory=dict, compare=False, repr=False)
    _permutations: Permutations = field(default_factory=Permutations, compare=False, repr=False)

    @cached_property
    def num_samples(self) -> int:
        """Samples of an epoch."""
        return int(self.samples.sum())

    @cached_property
    def _edges(self) -> Places:
        """[num_windows + 1] the turn at which each window begins: windows of nearly equal numbers of shards."""
        count = len(self.shards)
        windows = -(-count // self.window_shards)
        return np.arange(windows + 1) * count // max(1, windows)

    def places(self, epoch: int, first: int, count: int) -> Places:
        """Return the places in the split of the offsets [first, first + count) of an epoch: [count]."""
        layout = self._layout(epoch)
        sequence = np.arange(first, first + count)
        edges = layout.starts[self._edges]
        window = int(np.searchsorted(edges, first, side="right")) - 1
        while count and window < len(edges) - 1 and edges[window] < first + count:
            begin, end = int(edges[window]), int(edges[window + 1])
            rows = slice(max(begin - first, 0), min(end - first, count))
            key = hash_integers(self.seed, epoch, _WINDOW, window)
            sequence[rows] = begin + self._permutations.permute(0, end - begin, key, sequence[rows] - begin)
            window += 1
        turn = np.searchsorted(layout.starts, sequence, side="right") - 1
        return self.firsts[layout.order[turn]] + (sequence - layout.starts[turn])

    def windows(self, epoch: int, offset: int = 0) -> Iterator[Window]:
        """Yield the windows of an epoch, from the one that an offset lies in to the last."""
        layout = self._layout(epoch)
        for begin, end in zip(self._edges[:-1].tolist(), self._edges[1:].tolist(), strict=True):
            if int(layout.starts[end]) > offset:
                shards = self.shards[layout.order[begin:end]].tolist()
                yield Window(shards, int(layout.starts[begin]), int(layout.starts[end]))

    def _layout(self, epoch: int) -> _Layout:
        layout = self._layouts.get(epoch)
        if layout is None:
            count = len(self.shards)
            order = permute(count, hash_integers(self.seed, epoch, _SHARDS), np.arange(count))
            layout = _Layout(order, np.concatenate([[0], np.cumsum(self.samples[order])]))
            while len(self._layouts) >= _LAYOUTS:
                self._layouts.pop(min(self._layouts), None)
            self._layouts[epoch] = layout
        return layout


def make_block_order(manifest: ShardManifest, split: str, window_shards: int, seed: int) -> BlockOrder:
    """Return the block order of a split."""
    shards = manifest.shards
    numbers = [number for number in shards.numbers_of(split) if shards.samples[number]]
    firsts = np.array([shards.first[number] for number in numbers], dtype=np.int64) - manifest.splits[split].first
    samples = np.array([shards.samples[number] for number in numbers], dtype=np.int64)
    return BlockOrder(np.array(numbers, dtype=np.int64), firsts, samples, window_shards, seed)
