"""The order for shards in a bucket: bytes are read in long runs, each by one node, and samples still come shuffled.

    shards ──> ranges of some MiB ──> permuted, end to end ──> cut into C streams ──> each permuted block by block

Offset p of an epoch belongs to stream p mod C. Everything follows from the manifest: the index is not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from contracts.artifacts import ShardManifest
from contracts.artifacts.shard_table import shard_columns
from trainer.data.order.permutation import Permutations, Places, hash_integers, permute

# What a key is for, so that no two permutations share one.
_RANGES, _BLOCK = 1, 2
# Layouts kept: a reader looks ahead into the next epoch while this one ends.
_LAYOUTS = 2


class EpochRange(NamedTuple):
    """Samples that lie one after another in a shard, and are fetched together."""

    shard: int
    """Place in ShardManifest.shards."""
    first: int
    """First sample, counted among those of the shard that are in the index."""
    samples: int
    until: int
    """Offset of the epoch from which on no sample of the piece is needed."""


@dataclass(frozen=True)
class Ranges:
    """The ranges of a split, in the order of the index; each is an array [num_ranges]."""

    shard: Places
    in_shard: Places
    """First sample of the range, counted in its shard."""
    place: Places
    """First sample of the range, counted in the split."""
    samples: Places

    def __len__(self) -> int:
        return len(self.shard)


def cut_ranges(manifest: ShardManifest, split: str, range_bytes: int) -> Ranges:
    """Cut every shard of a split into ranges of about `range_bytes` and nearly equal numbers of samples."""
    columns = shard_columns(manifest.shards)
    number = np.flatnonzero(columns.is_of(split) & (columns.samples > 0))
    first, samples = columns.first[number] - manifest.splits[split].first, columns.samples[number]
    parts = np.maximum(np.minimum(samples, -(-columns.bytes[number] // range_bytes)), 1)
    row = np.repeat(np.arange(len(number)), parts)
    part = np.arange(len(row)) - (np.cumsum(parts) - parts)[row]
    begin = part * samples[row] // parts[row]
    end = (part + 1) * samples[row] // parts[row]
    return Ranges(number[row], begin, first[row] + begin, end - begin)


class _Layout(NamedTuple):
    """The ranges of one epoch, end to end."""

    order: Places
    """[num_ranges] the range at each turn."""
    starts: Places
    """[num_ranges] where in the sequence of all samples each turn starts."""
    turns: Places
    """[num_ranges] the turn of each range."""


@dataclass(frozen=True)
class BlockOrder:
    """Streams of permuted ranges, permuted again in blocks.

    What is kept: the ranges and two permutations of them, and for each stream the permutation of its block. The block
    boundaries of the streams are staggered, so that not all of them need new bytes at the same moment.
    """

    ranges: Ranges
    num_streams: int
    block_samples: int
    seed: int
    _layouts: dict[int, _Layout] = field(default_factory=dict, compare=False, repr=False)
    _permutations: Permutations = field(default_factory=Permutations, compare=False, repr=False)

    @cached_property
    def num_samples(self) -> int:
        """Samples of an epoch."""
        return int(self.ranges.samples.sum())

    def streams(self, first: int, count: int) -> Places:
        """Return the stream of each offset in [first, first + count)."""
        return np.arange(first, first + count) % self.num_streams

    def places(self, epoch: int, first: int, count: int) -> Places:
        """Return the places in the split of the offsets [first, first + count) of an epoch."""
        stream = self.streams(first, count)
        turn = np.arange(first, first + count) // self.num_streams
        block = (turn + self._shift(stream)) // self.block_samples
        # Samples of a block lie together after a stable sort by stream, since blocks of a stream follow each other.
        by_stream = np.argsort(stream, kind="stable")
        changes = (np.diff(stream[by_stream]) != 0) | (np.diff(block[by_stream]) != 0)
        sequence = np.empty(count, dtype=np.int64)
        for rows in np.split(by_stream, np.flatnonzero(changes) + 1):
            if len(rows):
                of_stream, of_block = int(stream[rows[0]]), int(block[rows[0]])
                begin, end = self._block(of_stream, of_block)
                key = hash_integers(self.seed, epoch, _BLOCK, of_stream, of_block)
                inside = self._permutations.permute(of_stream, end - begin, key, turn[rows] - begin)
                sequence[rows] = self._stream_start(of_stream) + begin + inside
        layout = self._layout(epoch)
        at = np.searchsorted(layout.starts, sequence, side="right") - 1
        return self.ranges.place[layout.order[at]] + (sequence - layout.starts[at])

    def needed(
        self, epoch: int, first: int, count: int, *, streams: npt.NDArray[np.bool_] | None = None
    ) -> Iterator[EpochRange]:
        """Yield the pieces of the blocks that the offsets [first, first + count) touch, the first needed first.

        Two blocks have no sample in common, so over an epoch each sample is in one piece: what a reader keeps by piece
        it fetches once. A range that ends in another block or stream is cut there.

        Args:
            epoch: The epoch.
            first: First offset.
            count: Number of offsets.
            streams: [num_streams] the streams that matter; unset: all.
        """
        count = min(count, self.num_samples - first)
        touched: list[tuple[int, int, int]] = []
        for stream in range(self.num_streams) if streams is None else np.flatnonzero(streams).tolist():
            # The stream's turns whose offset, turn * C + stream, is in the interval.
            begin = max(0, -((stream - first) // self.num_streams))
            end = -((stream - first - count) // self.num_streams)
            if begin < end:
                shift = int(self._shift(stream))
                blocks = range((begin + shift) // self.block_samples, (end - 1 + shift) // self.block_samples + 1)
                for block in blocks:
                    turn = max(begin, block * self.block_samples - shift)
                    touched.append((turn * self.num_streams + stream, stream, block))
        # One by one: a block may have thousands of pieces, of which the first ones are wanted now.
        for _, stream, block in sorted(touched):
            yield from self._pieces(self._layout(epoch), stream, block)

    def pieces_of(
        self, epoch: int, places: Sequence[int], *, streams: npt.NDArray[np.bool_] | None = None
    ) -> list[EpochRange | None]:
        """Return the piece that holds each of these places of the split, as `needed` yields it.

        Args:
            epoch: The epoch.
            places: Places in the split.
            streams: [num_streams] the streams that matter, None for a place of another; unset: all.
        """
        layout = self._layout(epoch)
        wanted = np.asarray(places, dtype=np.int64)
        number = np.searchsorted(self.ranges.place, wanted, side="right") - 1
        turns = layout.turns[number]
        sequence = layout.starts[turns] + (wanted - self.ranges.place[number])
        found: list[EpochRange | None] = []
        for turn, position in zip(turns.tolist(), sequence.tolist(), strict=True):
            stream = self._stream_at(position)
            block = (position - self._stream_start(stream) + int(self._shift(stream))) // self.block_samples
            matters = streams is None or bool(streams[stream])
            found.append(self._piece(layout, stream, block, turn) if matters else None)
        return found

    def _pieces(self, layout: _Layout, stream: int, block: int) -> Iterator[EpochRange]:
        begin, end = self._block(stream, block)
        position, stop = self._stream_start(stream) + begin, self._stream_start(stream) + end
        turn = int(np.searchsorted(layout.starts, position, side="right")) - 1
        while position < stop:
            piece = self._piece(layout, stream, block, turn)
            yield piece
            position += piece.samples
            turn += 1

    def _piece(self, layout: _Layout, stream: int, block: int, turn: int) -> EpochRange:
        """Return what a block has of the range at a turn."""
        begin, end = self._block(stream, block)
        until = (end - 1) * self.num_streams + stream + 1
        start, number = int(layout.starts[turn]), int(layout.order[turn])
        position = max(start, self._stream_start(stream) + begin)
        stop = min(start + int(self.ranges.samples[number]), self._stream_start(stream) + end)
        first = int(self.ranges.in_shard[number]) + position - start
        return EpochRange(int(self.ranges.shard[number]), first, stop - position, until)

    def _layout(self, epoch: int) -> _Layout:
        layout = self._layouts.get(epoch)
        if layout is None:
            num_ranges = len(self.ranges)
            order = permute(num_ranges, hash_integers(self.seed, epoch, _RANGES), np.arange(num_ranges))
            ends = np.cumsum(self.ranges.samples[order])
            turns = np.empty_like(order)
            turns[order] = np.arange(num_ranges)
            layout = _Layout(order, ends - self.ranges.samples[order], turns)
            while len(self._layouts) >= _LAYOUTS:
                self._layouts.pop(min(self._layouts), None)
            self._layouts[epoch] = layout
        return layout

    def _shift(self, stream: Places | int) -> Places | int:
        """Return by how much the block boundaries of a stream are moved towards its start."""
        return stream * self.block_samples // self.num_streams

    def _stream_start(self, stream: int) -> int:
        """Return where a stream starts in the sequence: their lengths differ by at most one, the longer ones first."""
        length, longer = divmod(self.num_samples, self.num_streams)
        return stream * length + min(stream, longer)

    def _stream_at(self, position: int) -> int:
        """Return the stream that a place of the sequence belongs to."""
        length, longer = divmod(self.num_samples, self.num_streams)
        if position < longer * (length + 1):
            return position // (length + 1)
        return longer + (position - longer * (length + 1)) // length

    def _block(self, stream: int, block: int) -> tuple[int, int]:
        """Return the turns [begin, end) of a stream's block."""
        length = self._stream_start(stream + 1) - self._stream_start(stream)
        begin = block * self.block_samples - int(self._shift(stream))
        return max(0, begin), min(length, begin + self.block_samples)
