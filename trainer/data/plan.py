"""Which ranges of shards are needed, when, and whether they fit: arithmetic, before anything is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from contracts import storage
from contracts.artifacts import SampleOrder, ShardManifest
from contracts.config import DataSection
from contracts.errors import ConfigError
from trainer.blocks import BlockOrder
from trainer.cursor import SlotRequest
from trainer.order import Order

# Ranges of an evaluation that lie ready: it is read from end to end.
EVALUATION_RANGES = 4
# Blocks differ in bytes, having equal numbers of samples; and some room is for evaluation.
_SPREAD = 1.15
# Offsets looked at a time when the order has no blocks.
_WINDOW = 4096
NEVER = 2**63 - 1


class Need(NamedTuple):
    """A run of samples of a shard, and the global position from which on it is not needed."""

    shard: int
    first: int
    """Counted in the shard."""
    samples: int
    until: int


@dataclass(frozen=True)
class Grid:
    """All shards cut into ranges of about `range_bytes`, with nearly equal numbers of samples."""

    manifest: ShardManifest
    range_bytes: int

    def range_of(self, shard: int, sample: int) -> tuple[int, int, int]:
        """Return shard, first sample and number of samples of the range with a sample of a shard."""
        entry = self.manifest.shards[shard]
        parts = max(1, min(entry.samples, -(-entry.bytes // self.range_bytes)))
        part = ((sample + 1) * parts - 1) // entry.samples
        first = part * entry.samples // parts
        return shard, first, (part + 1) * entry.samples // parts - first


@dataclass(frozen=True)
class Plan:
    """What one rank reads of a split."""

    grid: Grid
    split: str
    order: Order | None = None
    """None: from end to end."""
    global_batch_size: int = 1
    streams: npt.NDArray[np.bool_] | None = None
    """[num_streams] which canonical streams the rank reads; None: all."""
    whole: bool = True
    """Without blocks: whether the split fits into the cache, so that ranges are worth fetching for single samples."""

    @property
    def blocks(self) -> BlockOrder | None:
        """The order, if it says which samples are fetched together."""
        return self.order if isinstance(self.order, BlockOrder) else None

    def pieces_of(self, request: SlotRequest | None, shard: int, sample: int) -> tuple[int, int, int] | None:
        """Return the samples to fetch together with one that is not there; None: it is to be read alone."""
        blocks = self.blocks
        if blocks is None or request is None:
            return self.grid.range_of(shard, sample) if self.whole else None
        batches = -(-blocks.num_samples // self.global_batch_size)
        offset = (request.step - request.epoch * batches) * self.global_batch_size
        # Kept by the caller for a slot: its samples are in few blocks.
        for piece in blocks.needed(request.epoch, offset, self.global_batch_size, streams=self.streams):
            if piece.shard == shard and piece.first <= sample < piece.first + piece.samples:
                return piece.shard, piece.first, piece.samples
        return None

    def coming(self, position: int, epochs: int) -> Iterator[Need]:
        """Yield what will be needed from a global position on, in the order of first need, each once an epoch."""
        assert self.order is not None
        num_samples = self.order.num_samples
        first_epoch, offset = divmod(position, num_samples)
        for epoch in range(first_epoch, epochs):
            blocks = self.blocks
            yield from self._of_epoch(blocks, epoch, offset) if blocks else self._ranges_of_epoch(epoch, offset)
            offset = 0

    def _of_epoch(self, blocks: BlockOrder, epoch: int, offset: int) -> Iterator[Need]:
        start = epoch * blocks.num_samples
        window = max(self.global_batch_size, _WINDOW)
        seen: set[tuple[int, int]] = set()
        while offset < blocks.num_samples:
            for piece in blocks.needed(epoch, offset, window, streams=self.streams):
                if (piece.shard, piece.first) not in seen:
                    seen.add((piece.shard, piece.first))
                    yield Need(piece.shard, piece.first, piece.samples, start + piece.until)
            offset += window

    def _ranges_of_epoch(self, epoch: int, offset: int) -> Iterator[Need]:
        """Yield the ranges of single samples, where all of them stay in the cache."""
        assert self.order is not None
        shards = [(n, shard) for n, shard in enumerate(self.grid.manifest.shards) if shard.split == self.split]
        starts = np.array([shard.first for _, shard in shards]) - self.grid.manifest.splits[self.split].first
        seen: set[tuple[int, int, int]] = set()
        while self.whole and offset < self.order.num_samples:
            count = min(_WINDOW, self.order.num_samples - offset)
            places = self.order.places(epoch, offset, count)
            rows = np.searchsorted(starts, places, side="right") - 1
            for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                found = self.grid.range_of(shards[row][0], place - int(starts[row]))
                if found not in seen:
                    seen.add(found)
                    yield Need(*found, NEVER)
            offset += count

    def position_after(self, request: SlotRequest) -> int:
        """Return the global position at the end of the batch of a request."""
        assert self.order is not None
        num_samples = self.order.num_samples
        batches = -(-num_samples // self.global_batch_size)
        taken = (request.step + 1 - request.epoch * batches) * self.global_batch_size
        return request.epoch * num_samples + min(num_samples, taken)

    def from_end_to_end(self) -> Iterator[Need]:
        """Yield the ranges of the split in the order of the index; `until` counts places of the split."""
        first = self.grid.manifest.splits[self.split].first
        for number, entry in enumerate(self.grid.manifest.shards):
            sample = 0
            while entry.split == self.split and sample < entry.samples:
                shard, begin, count = self.grid.range_of(number, sample)
                sample = begin + count
                yield Need(shard, begin, count, entry.first - first + sample)


def cache_limit(data: DataSection) -> tuple[str, int]:
    """Return the field that bounds the bytes read from a bucket, and the bound."""
    return ("data.cache_bytes", data.cache_bytes) if data.cache_bytes else ("data.memory_bytes", data.memory_bytes)


def ahead_bytes(data: DataSection, ranks: int) -> int:
    """Return the bytes that one of `ranks` ranks of a machine may fetch before they are read."""
    limit = cache_limit(data)[1]
    # What is left is for evaluation, but never more than a part.
    return int(max(0.9 * limit, limit - EVALUATION_RANGES * data.range_bytes)) // ranks


def working_set(data: DataSection, manifest: ShardManifest, order: SampleOrder) -> int:
    """Return the bytes that must lie ready to read the training split: a block of each stream, and one more."""
    shards = [shard for shard in manifest.shards if shard.split == "train"]
    total = sum(shard.bytes for shard in shards)
    if order.kind != "blocks":
        return min(total, data.range_bytes)
    assert order.streams and order.block_samples
    block_bytes = order.block_samples * total / max(1, sum(shard.samples for shard in shards))
    return min(total, int(_SPREAD * (order.streams + 1) * block_bytes) + 1)


def check_working_set(data: DataSection, shards_uri: str, manifest: ShardManifest, order: SampleOrder) -> None:
    """See to it that what is read from a bucket fits.

    Raises:
        ConfigError: It does not; with the number that would.
    """
    if storage.is_local(shards_uri):
        return
    field, limit = cache_limit(data)
    needed = working_set(data, manifest, order)
    if needed <= limit:
        return
    if order.kind == "blocks":
        what = f"{order.streams} streams with a block of {order.block_samples} samples each, and one block more"
        smaller = int(limit / _SPREAD / ((order.streams or 1) + 1))
        todo = f"set {field} to {needed} or more, or data.block_bytes to {max(1024, smaller)} or less"
    else:
        what, todo = "a range of a shard", f"set {field} to {needed} or more, or data.range_bytes to {limit} or less"
    raise ConfigError(
        f"{field} = {limit} does not hold what is read at a time of {storage.display(shards_uri)}: {what}",
        allowed=f"{field} of {needed} bytes or more",
        todo=todo,
    )
