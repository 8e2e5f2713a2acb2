"""The arithmetic of increments, over chains of any kind: every sample once, no split moves, the shards stay few."""

import hashlib
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.increment.selection import Finished, Source, find_moved, match, select
from sharding.plan import count_shards, cut_evenly

TARGET_BYTES = 1000


def key_of(number):
    return hashlib.blake2b(b"%d" % number, digest_size=16).digest()


def split_of(number):
    return (0, 0, 0, 0, 1, 2)[number % 6]


class Chain:
    """Shards as lists of (number, version), and the tombstones in each: what files would hold."""

    def __init__(self):
        self.shards = []

    def finished(self):
        live = [(place, *one) for place, (_, samples, _) in enumerate(self.shards) for one in samples]
        return Finished(
            np.array([key_of(number) for _, number, _ in live], "S16"),
            np.array([version for *_, version in live], np.uint64),
            np.array([place for place, *_ in live], np.int64),
            np.array([split for split, *_ in self.shards], np.uint8),
            np.array([dead for *_, dead in self.shards], np.int64),
        )

    def grow(self, state, compact_share, min_shards):
        """Apply one increment; return what was selected."""
        numbers = sorted(state)
        source = Source(
            np.array([key_of(number) for number in numbers], "S16"),
            np.array([state[number][0] for number in numbers], np.uint64),
            np.array([split_of(number) for number in numbers], np.uint8),
            np.array([state[number][1] for number in numbers], np.int64),
        )
        finished = self.finished()
        matched = match(source, finished)
        assert len(find_moved(source, finished, matched)[0]) == 0
        chosen = select(
            source,
            finished,
            matched,
            compact_share=compact_share,
            target_shard_bytes=TARGET_BYTES,
            min_shards=min_shards,
        )
        rows = [(place, one) for place, (_, samples, _) in enumerate(self.shards) for one in samples]
        gone = {rows[at] for at in chosen.tombstones}
        shards = []
        for place in chosen.reused:
            split, samples, dead = self.shards[place]
            left = [one for one in samples if (place, one) not in gone]
            shards.append((split, left, dead + len(samples) - len(left)))
        for split in range(3):
            fresh = [n for n, is_fresh in zip(numbers, chosen.fresh, strict=True) if is_fresh and split_of(n) == split]
            size = sum(state[number][1] for number in fresh)
            count = count_shards(len(fresh), size, target_shard_bytes=TARGET_BYTES, min_shards=1)
            edges = [0, *cut_evenly(len(fresh), count), len(fresh)] if fresh else []
            for start, end in pairwise(edges):
                shards.append((split, [(number, state[number][0]) for number in fresh[start:end]], 0))
        self.shards = shards
        return chosen


def count_full(state, min_shards):
    total = 0
    for split in range(3):
        sizes = [size for number, (_, size) in state.items() if split_of(number) == split]
        total += count_shards(len(sizes), sum(sizes), target_shard_bytes=TARGET_BYTES, min_shards=min_shards)
    return total


numbers = st.integers(0, 120)
weeks = st.lists(
    st.tuples(
        st.dictionaries(numbers, st.integers(1, 1500), max_size=40), st.sets(numbers, max_size=30), st.sets(numbers)
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=200, deadline=None)
@given(weeks, st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.integers(1, 3))
def test_any_chain_holds_the_source_once(weeks, compact_share, min_shards):
    chain, state = Chain(), {}
    for version, (added, changed, gone) in enumerate(weeks, start=1):
        before = dict(state)
        for number, size in added.items():
            state[number] = (version, size)
        for number in changed & state.keys():
            state[number] = (version, state[number][1])
        for number in gone:
            state.pop(number, None)
        if not state:
            return
        chosen = chain.grow(state, compact_share, min_shards)
        held = [(split, *one) for split, samples, _ in chain.shards for one in samples]
        expected = sorted((split_of(number), number, state[number][0]) for number in state)
        assert sorted(held) == expected
        assert all(samples for _, samples, _ in chain.shards)
        assert len(chain.shards) <= 1.5 * count_full(state, min_shards)
        for _, samples, dead in chain.shards:
            assert dead <= compact_share * (dead + len(samples))
        assert chosen.num_new == len(state.keys() - before.keys())
        assert chosen.num_gone == len(before.keys() - state.keys())
        assert chosen.num_changed == sum(before[n][0] != state[n][0] for n in before.keys() & state.keys())


def test_without_change_nothing_is_written():
    chain, state = Chain(), dict.fromkeys(range(300), (1, 100))
    chain.grow(state, 0.0, 1)
    before = list(chain.shards)
    chosen = chain.grow(state, 0.0, 1)
    assert not chosen.fresh.any() and chain.shards == before


def test_an_ordinary_increment_writes_only_what_is_new():
    chain, state = Chain(), dict.fromkeys(range(3000), (1, 100))
    chain.grow(state, 0.2, 1)
    state |= dict.fromkeys(range(3000, 3030), (2, 100))
    chosen = chain.grow(state, 0.2, 1)
    assert chosen.fresh.sum() == 30 and chosen.num_merged == chosen.num_compacted == 0


def test_a_year_of_weeks_writes_little_and_stays_short():
    chain, state = Chain(), dict.fromkeys(range(2400), (0, 100))
    chain.grow(state, 0.2, 1)
    written = []
    for week in range(1, 53):
        state |= dict.fromkeys(range(len(state), len(state) + 24), (week, 100))
        chosen = chain.grow(state, 0.2, 1)
        written.append(int(chosen.fresh.sum()) / 24)
        assert len(chain.shards) <= 1.5 * count_full(state, 1)
    # Merges included, a year writes a few times what was added; most weeks write nothing else.
    assert np.median(written) == 1 and np.mean(written) < 3
