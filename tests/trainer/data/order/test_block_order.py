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


@pytest.mark.parametrize(("streams", "block"), [(4, 40), (6, 64), (48, 96)])
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


def test_neighbours_in_a_block_look_like_chance() -> None:
    """Chi-square over the pairs of neighbours of a stream, by their ranks in the block."""
    streams, block, epochs = 3, 8, 2000
    order = blocks([48] * 4, range_samples=8, streams=streams, block=block)
    pairs = np.zeros((block, block), dtype=np.int64)
    between = np.zeros((block, block), dtype=np.int64)
    for epoch in range(epochs):
        layout = order._layout(epoch)
        rank_in_sequence = np.empty(192, dtype=np.int64)
        for turn, number in enumerate(layout.order.tolist()):
            first = int(order.ranges.place[number])
            rank_in_sequence[first : first + 8] = int(layout.starts[turn]) + np.arange(8)
        # Stream 0 has no shift: turns 0..7 are its first block, 8..15 its second.
        turns = rank_in_sequence[order.places(epoch, 0, 16 * streams)[::streams]]
        assert set(turns[:block]) == set(range(block))
        pairs[turns[0], turns[1]] += 1
        between[turns[0], turns[block] - block] += 1
    off = pairs[~np.eye(block, dtype=bool)]
    assert chi_square(off) < limit(block * (block - 1) - 1)
    assert chi_square(between) < limit(block * block - 1)


def test_large_blocks_look_like_chance() -> None:
    """One block of 70,000 samples in one stream: cells of 32 x 32 of turns, of neighbours and of their distances."""
    num = 70_000
    order = blocks([700] * 300, range_samples=7, streams=1, block=num)
    ranks = np.empty(order.num_samples, dtype=np.int64)
    layout = order._layout(3)
    rows = np.repeat(np.arange(len(layout.order)), order.ranges.samples[layout.order])
    within = np.arange(order.num_samples) - layout.starts[rows]
    ranks[order.ranges.place[layout.order[rows]] + within] = np.arange(order.num_samples)
    # Of each sample of the block, its rank in the sequence that the block permutes.
    inside = ranks[order.places(3, num, num)] - num
    assert sorted(inside.tolist()) == list(range(num))
    cells, turns = inside * 32 // num, np.arange(num) * 32 // num
    for one, other in ((turns, cells), (cells[:-1], cells[1:])):
        assert chi_square(np.bincount(one * 32 + other, minlength=1024)) < limit(1023)
    assert chi_square(np.bincount(np.diff(inside) % num * 1024 // num, minlength=1024)) < limit(1023)


def test_the_order_of_many_ranges_looks_like_chance() -> None:
    order = blocks([7000] * 30, range_samples=2, streams=48, block=100)
    num = len(order.ranges)
    assert num == 105_000
    found = order._layout(1).order
    cells, turns = found * 32 // num, np.arange(num) * 32 // num
    for one, other in ((turns, cells), (cells[:-1], cells[1:])):
        assert chi_square(np.bincount(one * 32 + other, minlength=1024)) < limit(1023)


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


def test_layouts_do_not_pile_up() -> None:
    order = blocks([50, 50], range_samples=10, streams=2, block=20)
    for epoch in (0, 1, 0, 1, 2, 5, 9, 0, 1):
        order.places(epoch, 3, 20)
        assert len(order._layouts) <= 2
        assert len(order._permutations._latest) <= 2
