"""In which order samples come: every order is a pure function of (seed, epoch, offset in the epoch).

    full      a permutation of all samples                                   local files
    blocks    ranges of shards, permuted, in streams (trainer/data/order/block_order.py)     a bucket

What decides the order is recorded in the first checkpoint and holds to the end of training: `resolve_order`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from contracts import storage
from contracts.artifacts import CheckpointManifest, SampleOrder, ShardManifest
from contracts.artifacts.shard_table import shard_columns
from contracts.config import DataSection
from trainer.data.order.block_order import BlockOrder, cut_ranges
from trainer.data.order.permutation import Permutations, Places, hash_integers


class Order(Protocol):
    """The order of a split's samples: what all kinds have in common."""

    @property
    def num_samples(self) -> int:
        """Samples of an epoch."""

    def places(self, epoch: int, first: int, count: int) -> Places:
        """Return the places in the split of the offsets [first, first + count) of an epoch: [count]."""


@dataclass(frozen=True)
class FullOrder:
    """A permutation of all samples."""

    num_samples: int
    seed: int
    _permutations: Permutations = field(default_factory=Permutations, compare=False, repr=False)

    def places(self, epoch: int, first: int, count: int) -> Places:
        """See `Order`."""
        return self._permutations.permute(
            0, self.num_samples, hash_integers(self.seed, epoch), np.arange(first, first + count)
        )


@dataclass(frozen=True)
class OrderChoice:
    """What the order is, and why."""

    order: SampleOrder
    reason: str


def resolve_order(
    data: DataSection, shards_uri: str, manifest: ShardManifest, checkpoint: CheckpointManifest | None
) -> OrderChoice:
    """Decide the order: what the checkpoint has recorded, else what the configuration sets, else by location.

    Args:
        data: The configuration.
        shards_uri: Where the shards are.
        manifest: Their manifest.
        checkpoint: What training resumes from.
    """
    kind, reason = data.order, "set by data.order"
    if kind == "auto":
        local = storage.is_local(shards_uri)
        kind, reason = ("full", "the shards are local files") if local else ("blocks", "the shards are in a bucket")
    chosen = SampleOrder(kind="full")
    if kind == "blocks":
        total, samples = split_size(manifest, "train")
        sample_bytes = total / max(1, samples)
        chosen = SampleOrder(
            kind="blocks",
            streams=data.canonical_streams,
            range_bytes=data.range_bytes,
            block_samples=max(1, int(data.block_bytes / max(1.0, sample_bytes))),
        )
    if checkpoint is None:
        return OrderChoice(chosen, f"order {_describe(chosen)}: {reason}")
    recorded = checkpoint.order
    differs = "" if recorded == chosen else f"; a new training would take {_describe(chosen)}: {reason}"
    return OrderChoice(recorded, f"order {_describe(recorded)}: recorded in the checkpoint{differs}")


def split_size(manifest: ShardManifest, split: str) -> tuple[int, int]:
    """Return the bytes of the shards of a split, and their samples."""
    columns = shard_columns(manifest.shards)
    chosen = columns.is_of(split)
    return int(columns.bytes[chosen].sum()), int(columns.samples[chosen].sum())


def make_order(order: SampleOrder, manifest: ShardManifest, *, seed: int) -> Order:
    """Return the order of the training split.

    Args:
        order: What decides it.
        manifest: The shards' manifest.
        seed: run.seed.
    """
    if order.kind == "full":
        return FullOrder(manifest.splits["train"].samples, seed)
    assert order.streams and order.range_bytes and order.block_samples, order
    return BlockOrder(cut_ranges(manifest, "train", order.range_bytes), order.streams, order.block_samples, seed)


def _describe(order: SampleOrder) -> str:
    if order.kind == "full":
        return "full"
    streams = f"{order.streams} streams, ranges of {order.range_bytes} bytes"
    return f"blocks ({streams}, blocks of {order.block_samples} samples)"
