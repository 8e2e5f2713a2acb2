"""Blocks: every sample once an epoch, every byte once over all readers, and a working set with a bound."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.artifacts import FileEntry, ShardEntry, ShardManifest, SplitEntry
from tests.trainer.data.order.test_permutation import chi_square, limit
from trainer.data.order.block_order import BlockOrder, EpochRange, cut_ranges


def manifest(shards: list[int], *, sample_bytes: int = 10, skipped: int = 3) -> ShardManifest:
    """A manifest whose training split has shards of so many samples, after a test split with `skipped` samples."""
    entry = {"crc32c": "00000000"}
    test = ShardEntry(name="test-0", bytes=skipped * sample_bytes, split="test", first=0, samples=skipped, **entry)
    firsts = np.concatenate([[0], np.cumsum(shards)]) + skipped
    train = [
        ShardEntry(
            name=f"train-{n}",
            bytes=samples * sample_bytes,
            split="train",
            first=int(firsts[n]),
            samples=samples,
            **entry,
        )
        for n, samples in enumerate(shards)
    ]

    def split(first: int, samples: int) -> SplitEntry:
        return SplitEntry(first=first, samples=samples, source_bytes=0, samples_by_class=[samples])

    return ShardManifest(
        fingerprint="f",
        format="webdataset",
        seed=0,
        classes=["a"],
        splits={"train": split(skipped, sum(shards)), "validation": split(0, 0), "test": split(0, skipped)},
        shards=[test, *train],
        index=FileEntry(name="index.bin", bytes=0, **entry),
        rejected=[],
    )


def blocks(shards: list[int], *, range_samples: int, streams: int, block: int, seed: int = 1) -> BlockOrder:
    return BlockOrder(cut_ranges(manifest(shards), "train", 10 * range_samples), streams, block, seed)


@st.composite
def orders(draw: Any) -> BlockOrder:
    shards = draw(st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any))
    return blocks(
        shards,
        range_samples=draw(st.integers(1, 30)),
        streams=draw(st.integers(1, 12)),
        block=draw(st.integers(1, 30)),
        seed=draw(st.integers(0, 2**62)),
    )


def samples_of(order: BlockOrder, pieces: list[EpochRange]) -> list[int]:
    """Places in the split of the samples of pieces; the first training shard is number 1."""
    first = {int(shard): int(order.ranges.place[order.ranges.shard == shard].min()) for shard in order.ranges.shard}
    return [first[p.shard] + p.first + number for p in pieces for number in range(p.samples)]


@given(st.lists(st.integers(0, 300), min_size=1, max_size=6).filter(any), st.integers(1, 400))
def test_ranges_are_the_shards_in_parts_of_nearly_equal_size(shards: list[int], range_bytes: int) -> None:
    ranges = cut_ranges(manifest(shards), "train", range_bytes)
    assert ranges.place.tolist() == [0, *np.cumsum(ranges.samples).tolist()[:-1]]
    assert ranges.samples.sum() == sum(shards)
    for number, samples in enumerate(shards, start=1):
        mine = ranges.samples[ranges.shard == number]
        assert len(mine) == min(samples, math.ceil(samples * 10 / range_bytes))
        assert ranges.in_shard[ranges.shard == number].tolist() == [0, *np.cumsum(mine).tolist()][: len(mine)]
        assert not len(mine) or mine.max() - mine.min() <= 1


@given(orders(), st.integers(0, 3))
def test_every_sample_comes_once_an_epoch(order: BlockOrder, epoch: int) -> None:
    places = order.places(epoch, 0, order.num_samples)
    assert sorted(places.tolist()) == list(range(order.num_samples))


@given(orders(), st.integers(0, 2), st.data())
def test_an_interval_is_that_part_of_the_epoch(order: BlockOrder, epoch: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, order.num_samples))
    count = data.draw(st.integers(0, order.num_samples - first))
    fresh = BlockOrder(order.ranges, order.num_streams, order.block_samples, order.seed)
    part = fresh.places(epoch, first, count)
    assert part.tolist() == order.places(epoch, 0, order.num_samples)[first : first + count].tolist()
    assert fresh.streams(first, count).tolist() == [
        offset % order.num_streams for offset in range(first, first + count)
    ]


@settings(deadline=None)
@given(orders(), st.integers(1, 50), st.integers(0, 2))
def test_pieces_hold_what_is_needed_and_each_sample_once(order: BlockOrder, batch: int, epoch: int) -> None:
    seen: dict[EpochRange, int] = {}
    for start in range(0, order.num_samples, batch):
        pieces = list(order.needed(epoch, start, batch))
        wanted = order.places(epoch, start, min(batch, order.num_samples - start)).tolist()
        assert set(wanted) <= set(samples_of(order, pieces))
        found = order.pieces_of(epoch, wanted)
        assert set(found) <= set(pieces)
        assert all(place in samples_of(order, [piece]) for place, piece in zip(wanted, found, strict=True) if piece)
        # Nothing is asked for again once it is over, and nothing that is over before the batch starts.
        assert all(piece.until > start for piece in pieces)
        for piece in pieces:
            seen.setdefault(piece, start)
    assert Counter(samples_of(order, list(seen))) == Counter(range(order.num_samples))
    # Pieces are first asked for in the batch in which their block starts, and `until` is where it ends.
    by_block: dict[int, list[EpochRange]] = {}
    for piece in seen:
        by_block.setdefault(piece.until, []).append(piece)
    whole = order.places(epoch, 0, order.num_samples)
    offset_of = {int(place): offset for offset, place in enumerate(whole)}
    for until, pieces in by_block.items():
        offsets = [offset_of[place] for place in samples_of(order, pieces)]
        assert max(offsets) + 1 == until
        assert {seen[piece] for piece in pieces} == {min(offsets) // batch * batch}


@settings(deadline=None)
@given(orders(), st.integers(1, 50), st.data())
def test_pieces_of_some_streams(order: BlockOrder, batch: int, data: st.DataObject) -> None:
    """Each stream to one reader: together they fetch what one reader of all would, nothing twice."""
    readers = data.draw(st.lists(st.integers(0, 2), min_size=order.num_streams, max_size=order.num_streams))
    masks = [np.array([reader == mine for reader in readers]) for mine in range(3)]
    fetched = Counter[EpochRange]()
    for mask in masks:
        mine = {p for start in range(0, order.num_samples, batch) for p in order.needed(0, start, batch, streams=mask)}
        fetched.update(mine)
        assert mine == {*order.pieces_of(0, range(order.num_samples), streams=mask)} - {None}
    assert Counter(samples_of(order, list(fetched))) == Counter(range(order.num_samples))
    assert set(fetched.values()) == {1}


def test_first_needed_comes_first() -> None:
    order = blocks([100] * 8, range_samples=20, streams=4, block=40)
    for start in range(0, 800, 50):
        pieces = list(order.needed(0, start, 200))
        wanted = order.places(0, start, min(200, 800 - start)).tolist()
        blocks_in_order = list(dict.fromkeys(piece.until for piece in pieces))
        first_use = [
            min(
                wanted.index(place)
                for place in samples_of(order, [p for p in pieces if p.until == until])
                if place in wanted
            )
            for until in blocks_in_order
        ]
        assert first_use == sorted(first_use)


@pytest.mark.parametrize(("streams", "block"), [(4, 40), (48, 96)])
def test_blocks_start_at_different_moments(streams: int, block: int) -> None:
    """The working set stays below streams x pieces of a block, and new blocks come one after another."""
    order = blocks([120] * 100, range_samples=20, streams=streams, block=block)
    pieces = set[EpochRange]()
    starts: dict[EpochRange, int] = {}
    for offset in range(0, order.num_samples, streams):
        for piece in order.needed(0, offset, streams):
            pieces.add(piece)
            starts.setdefault(piece, offset)
    # A block of B samples cuts at most B / 20 + 2 ranges.
    most = streams * (math.ceil(block / 20) + 1)
    live = Counter[int]()
    for piece in pieces:
        live.update(range(starts[piece], piece.until, streams))
    assert max(live.values()) <= most
    # In one round of the streams about streams / B blocks start; without the shift all would at once.
    begun = Counter(offset for offset, _ in {(starts[piece], piece.until) for piece in pieces})
    del begun[0]
    assert max(begun.values()) <= math.ceil(streams / block) + 1


def test_places_look_like_chance() -> None:
    """Chi-square of the sample at each offset: 63 degrees of freedom.

    Exact where blocks and their shifts are whole ranges, as here: 4 divides 16 and the shifts 0, 4, 8, 12. Elsewhere a
    range is cut, and its first sample is a little more likely in some blocks than its last.
    """
    num, epochs = 64, 3000
    counts = np.zeros((num, num), dtype=np.int64)
    order = blocks([16] * 4, range_samples=4, streams=4, block=16)
    for epoch in range(epochs):
        counts[np.arange(num), order.places(epoch, 0, num)] += 1
    assert max(chi_square(row) for row in counts) < limit(num - 1)


def test_seeds_and_epochs_give_other_orders() -> None:
    found = {
        tuple(blocks([50, 50], range_samples=10, streams=2, block=20, seed=seed).places(epoch, 0, 100).tolist())
        for seed in range(4)
        for epoch in range(4)
    }
    assert len(found) == 16


def test_large_ranges_and_blocks() -> None:
    """Blocks and numbers of ranges from 65,536 on take the Feistel network."""
    order = blocks([70_000] * 3, range_samples=1, streams=2, block=80_000)
    assert len(order.ranges) == 210_000
    assert (np.bincount(order.places(0, 0, 210_000), minlength=210_000) == 1).all()
