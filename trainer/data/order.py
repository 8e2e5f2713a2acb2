"""The order of samples: a pure function of (seed, epoch, offset in the epoch), decided when training starts.

    full      a permutation of all samples
    blocks    shards permuted, cut into windows, and the samples of each window permuted

Both follow from the manifest: no index is read. A shard is a random part of its split, by sharding's hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from contracts import storage
from contracts.artifacts import CheckpointManifest, SampleOrder, ShardManifest
from contracts.config import DataSection
from trainer.data.randomness import Permutations, Places, hash_integers, permute

# Most shards of a window, which a machine keeps on its disk: 2 GiB of the default size.
WINDOW_SHARDS = 16
# What a key is for, so that no two permutations share one.
_SHARDS, _WINDOW = 1, 2
# Layouts kept: shards are fetched for the next epoch while this one ends.
_LAYOUTS = 2


@dataclass(frozen=True)
class FullOrder:
    """A permutation of all samples."""

    num_samples: int
    """Samples per epoch."""
    seed: int
    _permutations: Permutations = field(default_factory=Permutations, compare=False, repr=False)

    def places(self, epoch: int, first: int, count: int) -> Places:
        """Return the places in the split of the offsets [first, first + count) of an epoch: [count]."""
        key = hash_integers(self.seed, epoch)
        return self._permutations.permute(0, self.num_samples, key, np.arange(first, first + count))


class Window(NamedTuple):
    """The shards that the offsets [first, end) of an epoch are read from."""

    shards: list[int]
    """Numbers in the manifest."""
    first: int
    end: int


class _Layout(NamedTuple):
    """The shards of one epoch, end to end."""

    order: Places
    """[num_shards] positions in `BlockOrder.shards`."""
    starts: Places
    """[num_shards + 1] first offset of each shard, and the number of samples."""


@dataclass(frozen=True)
class BlockOrder:
    """Permuted shards, and within each window of them permuted samples."""

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
        """Samples per epoch."""
        return int(self.samples.sum())

    @cached_property
    def _edges(self) -> Places:
        """[num_windows + 1] first shard of each window: their numbers of shards differ by one at most."""
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
            part = slice(max(begin - first, 0), min(end - first, count))
            key = hash_integers(self.seed, epoch, _WINDOW, window)
            sequence[part] = begin + self._permutations.permute(0, end - begin, key, sequence[part] - begin)
            window += 1
        turn = np.searchsorted(layout.starts, sequence, side="right") - 1
        return self.firsts[layout.order[turn]] + (sequence - layout.starts[turn])

    def windows(self, epoch: int, offset: int = 0) -> Iterator[Window]:
        """Yield the windows of an epoch, from the one of an offset to the last."""
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


Order = FullOrder | BlockOrder


def make_block_order(manifest: ShardManifest, split: str, window_shards: int, seed: int) -> BlockOrder:
    """Return the block order of a split."""
    shards = manifest.shards
    numbers = [number for number in shards.numbers_of(split) if shards.samples[number]]
    firsts = np.array([shards.first[number] for number in numbers], dtype=np.int64) - manifest.splits[split].first
    samples = np.array([shards.samples[number] for number in numbers], dtype=np.int64)
    return BlockOrder(np.array(numbers, dtype=np.int64), firsts, samples, window_shards, seed)


def make_order(order: SampleOrder, manifest: ShardManifest, *, seed: int) -> Order:
    """Return the order of the training split, as a checkpoint records it."""
    if order.kind == "full":
        return FullOrder(manifest.splits["train"].samples, seed)
    assert order.window_shards, order
    return make_block_order(manifest, "train", order.window_shards, seed)


class OrderChoice(NamedTuple):
    """The order of a training, and the reason for the log."""

    order: SampleOrder
    reason: str


def resolve_order(data: DataSection, shards_uri: str, checkpoint: CheckpointManifest | None) -> OrderChoice:
    """Return the order that the checkpoint records; else that of the configuration, where `auto` is by location."""
    kind, reason = data.order, "set by data.order"
    if kind == "auto":
        local = storage.is_local(shards_uri)
        kind, reason = ("full", "the shards are local files") if local else ("blocks", "the shards are in a bucket")
    chosen = SampleOrder(kind=kind, window_shards=WINDOW_SHARDS if kind == "blocks" else None)
    if checkpoint is None:
        return OrderChoice(chosen, f"order {_describe(chosen)}: {reason}")
    recorded = checkpoint.order
    differs = "" if recorded == chosen else f"; a new training would take {_describe(chosen)}: {reason}"
    return OrderChoice(recorded, f"order {_describe(recorded)}: recorded in the checkpoint{differs}")


def _describe(order: SampleOrder) -> str:
    return "full" if order.kind == "full" else f"blocks (windows of {order.window_shards} shards)"
