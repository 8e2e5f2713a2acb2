"""Blocks: every sample once an epoch, shuffled within windows of few shards."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.artifacts import FileEntry, ShardEntry, ShardManifest, Shards, SplitEntry
from tests.trainer.data.order.test_permutation import chi_square, limit
from trainer.data.order import BlockOrder, make_block_order


def manifest(shards: list[int], *, sample_bytes: int = 10, after: int = 3) -> ShardManifest:
    """A manifest whose training split has shards of so many samples, before a test split with `after` samples."""
    sizes = [("train", samples) for samples in shards] + [("test", after)]
    firsts = np.concatenate([[0], np.cumsum([samples for _, samples in sizes])]).tolist()
    index = {"bytes": 10, "crc32c": "00000000"}
    entries = [
        ShardEntry(
            name=f"{split}-{number}.tar",
            bytes=samples * sample_bytes,
            crc32c="00000000",
            split=split,
            first=first,
            samples=samples,
            index=FileEntry(name=f"{split}-{number}.idx.npy", **index),
        )
        for number, ((split, samples), first) in enumerate(zip(sizes, firsts, strict=False))
    ]

    def split(first: int, samples: int) -> SplitEntry:
        return SplitEntry(first=first, samples=samples, source_bytes=0, samples_by_class=[samples])

    total = sum(shards)
    return ShardManifest(
        fingerprint="f",
        format="webdataset",
        seed=0,
        classes=["a"],
        splits={"train": split(0, total), "validation": split(total, 0), "test": split(total, after)},
        shards=Shards.of(entries),
        rejected=[],
    )


def blocks(shards: list[int], *, window: int, seed: int = 1) -> BlockOrder:
    return make_block_order(manifest(shards), "train", window, seed)


@st.composite
def orders(draw: Any) -> BlockOrder:
    shards = draw(st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any))
    return blocks(shards, window=draw(st.integers(1, 8)), seed=draw(st.integers(0, 2**62)))


@settings(deadline=None)
@given(orders(), st.integers(0, 2), st.data())
def test_the_samples_of_a_window_are_of_its_shards(order: BlockOrder, epoch: int, data: st.DataObject) -> None:
    """The working set has a bound: at no offset are samples of more shards read than a window has."""
    windows = list(order.windows(epoch))
    assert sorted(shard for window in windows for shard in window.shards) == order.shards.tolist()
    sizes = [len(window.shards) for window in windows]
    assert max(sizes) <= order.window_shards and max(sizes) - min(sizes) <= 1
    assert [window.first for window in windows] == [0, *(window.end for window in windows[:-1])]
    for window in windows:
        places = order.places(epoch, window.first, window.end - window.first)
        found = order.shards[np.searchsorted(order.firsts, places, side="right") - 1]
        assert set(found.tolist()) == set(window.shards)
    offset = data.draw(st.integers(0, order.num_samples - 1))
    assert list(order.windows(epoch, offset)) == [window for window in windows if window.end > offset]


def test_windows_look_like_chance() -> None:
    """Over many epochs every sample comes equally often in every part of the epoch."""
    shards = [3, 40, 17, 60, 40]
    order, epochs, parts = blocks(shards, window=len(shards)), 4000, 8
    counts = np.zeros((order.num_samples, parts), dtype=np.int64)
    for epoch in range(epochs):
        places = order.places(epoch, 0, order.num_samples)
        counts[places, np.arange(order.num_samples) * parts // order.num_samples] += 1
    assert chi_square(counts) < limit((order.num_samples - 1) * (parts - 1))
