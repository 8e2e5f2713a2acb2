"""Which ranges of shards are needed, when, and whether they fit: arithmetic, before anything is fetched."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from contracts import storage
from contracts.artifacts import SampleOrder, ShardManifest
from contracts.artifacts.shard_table import ShardColumns, shard_columns
from contracts.config import DataSection
from contracts.errors import ConfigError
from trainer.data.order.block_order import BlockOrder
from trainer.data.order.cursor import SlotRequest
from trainer.data.order.resolve import Order, split_size

# Ranges that lie ready for each rank's evaluation, which is read from end to end; of the bound never more than a share.
EVALUATION_RANGES = 4
EVALUATION_SHARE = 0.1
# Blocks differ in bytes, having equal numbers of samples; and some room is for evaluation.
_SPREAD = 1.15
# Samples that lie ready, or batches if those are more, when each is fetched alone: many times what is on its way.
SAMPLES_AHEAD, BATCHES_AHEAD = 1024, 2
# Offsets looked at a time when the order has no blocks.
_WINDOW = 4096
NEVER = 2**63 - 1


class PlannedRange(NamedTuple):
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
        samples, parts = int(self.columns.samples[shard]), int(self.parts[shard])
        part = ((sample + 1) * parts - 1) // samples
        first = part * samples // parts
        return shard, first, (part + 1) * samples // parts - first

    @cached_property
    def columns(self) -> ShardColumns:
        """The numbers of all shards."""
        return shard_columns(self.manifest.shards)

    @cached_property
    def parts(self) -> npt.NDArray[np.int64]:
        """[num_shards] the number of ranges of each shard."""
        return np.maximum(1, np.minimum(self.columns.samples, -(-self.columns.bytes // self.range_bytes)))


@dataclass(frozen=True)
class ReadPlan:
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
    fits: bool = True
    """With blocks: whether those that are read at a time do."""

    @property
    def blocks(self) -> BlockOrder | None:
        """The order, if samples are fetched in its blocks."""
        return self.order if self.fits and isinstance(self.order, BlockOrder) else None

    @property
    def one_by_one(self) -> bool:
        """Whether each sample is fetched alone, shortly before it is needed, and not kept."""
        return self.order is not None and self.blocks is None and not self.whole

    def pieces_of(
        self, request: SlotRequest | None, samples: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int, int] | None]:
        """Return what to put into the cache for samples that are not there; None: read it, and keep nothing.

        Args:
            request: That asks for them; None where nothing is known about what comes next.
            samples: Shard, and place in the shard, of each.
        """
        if (blocks := self.blocks) is not None and request is not None:
            places = [int(self._shard_firsts[shard]) + sample for shard, sample in samples]
            pieces = blocks.pieces_of(request.epoch, places, streams=self.streams)
            return [None if piece is None else (piece.shard, piece.first, piece.samples) for piece in pieces]
        if self.whole:
            return [self.grid.range_of(*sample) for sample in samples]
        return [None if request is None else (*sample, 1) for sample in samples]

    @cached_property
    def _shard_firsts(self) -> npt.NDArray[np.int64]:
        """[num_shards] the first sample of each shard, counted in the split."""
        return self.grid.columns.first - self.grid.manifest.splits[self.split].first

    def coming(self, position: int, epochs: int) -> Iterator[PlannedRange]:
        """Yield what will be needed from a global position on, in the order of first need.

        In blocks each range comes once an epoch, up to the end of training; where all ranges stay, once.
        """
        assert self.order is not None
        if (blocks := self.blocks) is None:
            yield from self._ranges(position, epochs)
            return
        first_epoch, offset = divmod(position, blocks.num_samples)
        for epoch in range(first_epoch, epochs):
            yield from self._of_epoch(blocks, epoch, offset)
            offset = 0

    def _of_epoch(self, blocks: BlockOrder, epoch: int, offset: int) -> Iterator[PlannedRange]:
        start = epoch * blocks.num_samples
        window = max(self.global_batch_size, _WINDOW)
        seen: set[tuple[int, int]] = set()
        while offset < blocks.num_samples:
            for piece in blocks.needed(epoch, offset, window, streams=self.streams):
                if (piece.shard, piece.first) not in seen:
                    seen.add((piece.shard, piece.first))
                    yield PlannedRange(piece.shard, piece.first, piece.samples, start + piece.until)
            offset += window

    def _ranges(self, position: int, epochs: int) -> Iterator[PlannedRange]:
        """Yield the ranges of single samples, where all of them stay in the cache."""
        assert self.order is not None
        if not self.whole:
            return
        shards = self.grid.columns.of_split(self.split)
        starts, samples = self._shard_firsts[shards], self.grid.columns.samples[shards]
        parts = self.grid.parts[shards]
        first_parts = np.cumsum(parts) - parts
        seen = np.zeros(int(parts.sum()), dtype=bool)
        epoch, offset = divmod(position, self.order.num_samples)
        # A whole epoch without a new one is the end: drawn with replacement, some may never come.
        found_any = True
        while epoch < epochs and found_any and not seen.all():
            found_any = offset > 0
            while offset < self.order.num_samples and not seen.all():
                places = self.order.places(epoch, offset, min(_WINDOW, self.order.num_samples - offset))
                rows = np.searchsorted(starts, places, side="right") - 1
                inside = places - starts[rows]
                numbers = first_parts[rows] + ((inside + 1) * parts[rows] - 1) // samples[rows]
                new, at = np.unique(numbers, return_index=True)
                for k in sorted(at[~seen[new]].tolist()):
                    yield PlannedRange(*self.grid.range_of(int(shards[rows[k]]), int(inside[k])), NEVER)
                    found_any = True
                seen[new] = True
                offset += len(places)
            epoch, offset = epoch + 1, 0

    def of_requests(self, requests: Iterable[SlotRequest]) -> Iterator[PlannedRange]:
        """Yield the samples of requests one by one: they are needed until the batch is over."""
        shards = self.grid.columns.of_split(self.split).tolist()
        starts = self._shard_firsts[shards].tolist()
        for request in requests:
            until = self.position_after(request)
            for place in request.samples:
                row = bisect_right(starts, place) - 1
                yield PlannedRange(shards[row], place - starts[row], 1, until)

    def position_after(self, request: SlotRequest) -> int:
        """Return the global position at the end of the batch of a request."""
        assert self.order is not None
        num_samples = self.order.num_samples
        batches = -(-num_samples // self.global_batch_size)
        taken = (request.step + 1 - request.epoch * batches) * self.global_batch_size
        return request.epoch * num_samples + min(num_samples, taken)

    def from_end_to_end(self, batches: Sequence[range] | None = None) -> Iterator[PlannedRange]:
        """Yield the ranges of the split in the order of the index; `until` counts places of the split.

        Args:
            batches: Places that are read, ascending; ranges without any of them are left to whoever reads those. None:
                all.
        """
        for number in self.grid.columns.of_split(self.split).tolist():
            sample, samples = 0, int(self.grid.columns.samples[number])
            while sample < samples:
                shard, begin, count = self.grid.range_of(number, sample)
                start, sample = int(self._shard_firsts[number]) + begin, begin + count
                if batches is None or _any_between(batches, start, start + count):
                    yield PlannedRange(shard, begin, count, start + count)


def _any_between(batches: Sequence[range], start: int, end: int) -> bool:
    """Whether ascending batches have a place in [start, end)."""
    first = bisect_right(batches, start, key=lambda places: places.stop)
    return first < len(batches) and batches[first].start < end


def cache_limit(data: DataSection) -> tuple[str, int]:
    """Return the field that bounds the bytes read from a bucket, and the bound."""
    return ("data.cache_bytes", data.cache_bytes) if data.cache_bytes else ("data.memory_bytes", data.memory_bytes)


def evaluation_bytes(limit: int, range_bytes: int, ranks: int) -> int:
    """Return the bytes that one of `ranks` ranks of a machine may fetch before it evaluates on them; all have `limit`.

    Training has not finished with its own meanwhile: both shares together are the bound.
    """
    return min(int(EVALUATION_SHARE * limit) // ranks, EVALUATION_RANGES * range_bytes)


def ahead_bytes(limit: int, range_bytes: int, ranks: int) -> int:
    """Return the bytes that one of `ranks` ranks of a machine may fetch before it trains on them; all have `limit`."""
    return limit // ranks - evaluation_bytes(limit, range_bytes, ranks)


def blocks_bytes(manifest: ShardManifest, split: str, *, num_streams: int, block_samples: int) -> int:
    """Return the bytes that must lie ready to read a split in blocks: one of each stream, and one more."""
    total, samples = split_size(manifest, split)
    block_bytes = block_samples * total / max(1, samples)
    return min(total, int(_SPREAD * (num_streams + 1) * block_bytes) + 1)


def working_set(data: DataSection, manifest: ShardManifest, order: SampleOrder) -> int:
    """Return the bytes that must lie ready to read the training split."""
    if order.kind != "blocks":
        return min(split_size(manifest, "train")[0], data.range_bytes)
    assert order.streams and order.block_samples
    return blocks_bytes(manifest, "train", num_streams=order.streams, block_samples=order.block_samples)


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
