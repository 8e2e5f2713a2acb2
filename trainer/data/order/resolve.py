"""In which order samples come: every order is a pure function of (seed, epoch, offset in the epoch).

    full      a permutation of all samples                                   local files
    blocks    permuted within windows of shards (trainer/data/order/block_order.py)     a bucket

What decides the order is recorded in the first checkpoint and holds to the end of training: `resolve_order`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from contracts import storage
from contracts.artifacts import CheckpointManifest, SampleOrder, ShardManifest
from contracts.config import DataSection
from trainer.data.order.block_order import WINDOW_SHARDS, BlockOrder, make_block_order
from trainer.data.order.permutation import Permutations, Places, hash_integers


@dataclass(frozen=True)
class FullOrder:
    """A permutation of all samples."""

    num_samples: int
    seed: int
    _permutations: Permutations = field(default_factory=Permutations, compare=False, repr=False)

    def places(self, epoch: int, first: int, count: int) -> Places:
        """Return the places in the split of the offsets [first, first + count) of an epoch: [count]."""
        return self._permutations.permute(
            0, self.num_samples, hash_integers(self.seed, epoch), np.arange(first, first + count)
        )


Order = FullOrder | BlockOrder


@dataclass(frozen=True)
class OrderChoice:
    """What the order is, and why."""

    order: SampleOrder
    reason: str


def resolve_order(data: DataSection, shards_uri: str, checkpoint: CheckpointManifest | None) -> OrderChoice:
    """Decide the order: what the checkpoint has recorded, else what the configuration sets, else by location.

    Args:
        data: The configuration.
        shards_uri: Where the shards are.
        checkpoint: What training resumes from.
    """
    kind, reason = data.order, "set by data.order"
    if kind == "auto":
        local = storage.is_local(shards_uri)
        kind, reason = ("full", "the shards are local files") if local else ("blocks", "the shards are in a bucket")
    chosen = SampleOrder(kind="full")
    if kind == "blocks":
        chosen = SampleOrder(kind="blocks", window_shards=WINDOW_SHARDS)
    if checkpoint is None:
        return OrderChoice(chosen, f"order {_describe(chosen)}: {reason}")
    recorded = checkpoint.order
    differs = "" if recorded == chosen else f"; a new training would take {_describe(chosen)}: {reason}"
    return OrderChoice(recorded, f"order {_describe(recorded)}: recorded in the checkpoint{differs}")


def make_order(order: SampleOrder, manifest: ShardManifest, *, seed: int) -> Order:
    """Return the order of the training split.

    Args:
        order: What decides it.
        manifest: The shards' manifest.
        seed: run.seed.
    """
    if order.kind == "full":
        return FullOrder(manifest.splits["train"].samples, seed)
    assert order.window_shards, order
    return make_block_order(manifest, "train", order.window_shards, seed)


def _describe(order: SampleOrder) -> str:
    return "full" if order.kind == "full" else f"blocks (windows of {order.window_shards} shards)"
