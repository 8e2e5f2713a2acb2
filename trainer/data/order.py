"""Sample order: a pure function of (seed, epoch, offset in the epoch), chosen when training starts.

    full      a permutation of all samples
    blocks    shards permuted and grouped into windows; the samples of each window permuted

Both need the manifest only. Each shard is a random part of its split, assigned by hash.
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

# Maximum shards per window, cached on disk: 2 GiB of default size.
WINDOW_SHARDS = 16
# Key components that separate shard and window permutations.
_SHARDS, _WINDOW = 1, 2
# Layouts cached: shards of the next epoch are prefetched while this one ends.
_LAYOUTS = 2


@dataclass(frozen=True)
class FullOrder:
    """A permutation of all samples."""

    num_samples: int
    """Samples per epoch."""
    seed: int
    _permutations: Permutations = field(default_factory=Permutations, compare=False, repr=False)

    def places(self, epoch: int, first: int, count: int) -> Places:
        """Return the split positions at the offsets [first, first + count) of an epoch: [count]."""
        key = hash_integers(self.seed, epoch)
        return self._permutations.permute(0, self.num_samples, key, np.arange(first, first + count))


class Window(NamedTuple):
    """The shards of the offsets [first, end) of an epoch."""

    shards: list[int]
    """Numbers in the manifest."""
    first: int
    end: int


class _Layout(NamedTuple):
    """Shard order of one epoch."""

    order: Places
    """[num_shards] positions in `BlockOrder.shards`."""
    starts: Places
    """[num_shards + 1] first offset of each shard; last, the number of samples."""


@dataclass(frozen=True)
class BlockOrder:
    """Permuted shards, with samples permuted within each window."""

    shards: Places
    """[num_shards] manifest numbers of non-empty shards."""
    firsts: Places
    """[num_shards] split position of each shard's first sample."""
    samples: Places
    """[num_shards] number of samples per shard."""
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
        """[num_windows + 1] first shard of each window; window sizes differ by at most one."""
        count = len(self.shards)
        windows = -(-count // self.window_shards)
        return np.arange(windows + 1) * count // max(1, windows)

    def places(self, epoch: int, first: int, count: int) -> Places:
        """Return the split positions at the offsets [first, first + count) of an epoch: [count]."""
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
        """Yield the windows of an epoch, from the one with `offset` to the last."""
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
    """Return the order of the training split from its checkpoint record."""
    if order.kind == "full":
        return FullOrder(manifest.splits["train"].samples, seed)
    assert order.window_shards, order
    return make_block_order(manifest, "train", order.window_shards, seed)


class OrderChoice(NamedTuple):
    """Order of a training, and the reason to log."""

    order: SampleOrder
    reason: str


def resolve_order(data: DataSection, shards_uri: str, checkpoint: CheckpointManifest | None) -> OrderChoice:
    """Return the order recorded in the checkpoint, else the configured one; `auto` depends on the shards' location."""
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
