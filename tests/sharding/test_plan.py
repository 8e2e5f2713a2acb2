"""Arithmetic of the plan, as properties."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sharding.plan
from contracts.config import SplitFractions
from sharding.plan import Plan, choose_split, count_shards, make_key, make_place_hash, make_plan

PATHS = st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=80, unique=True)
SIZES = st.lists(st.integers(0, 10**6), min_size=80, max_size=80)
SEEDS = st.integers(0, 2**63 - 1)


def plan_of(paths, sizes, seed, target):
    fractions = SplitFractions(train=0.5, validation=0.25, test=0.25)
    samples = [(path, choose_split(path, fractions), size) for path, size in zip(paths, sizes, strict=False)]
    plan = make_plan(samples, seed=seed, target_shard_bytes=target)
    return samples, plan


@given(PATHS, SIZES, SEEDS, st.integers(1, 10**6))
def test_every_shard_has_a_sample_and_every_sample_one_shard_of_its_split(paths, sizes, seed, target):
    samples, plan = plan_of(paths, sizes, seed, target)
    counts = Counter(plan.place(path, split) for path, split, _ in samples)
    assert sorted(counts) == list(range(plan.total_shards))
    for path, split, _ in samples:
        assert plan.split_of(plan.place(path, split)) == split
    for split in range(3):
        of_split = [count for shard, count in counts.items() if plan.split_of(shard) == split]
        assert not of_split or max(of_split) - min(of_split) <= 1


@given(PATHS, SEEDS, st.randoms(use_true_random=False))
def test_the_order_of_the_listing_does_not_matter(paths, seed, random):
    samples, plan = plan_of(paths, [1000] * len(paths), seed, 5000)
    random.shuffle(samples)
    again = make_plan(lambda: iter(samples), seed=seed, target_shard_bytes=5000)
    assert again == plan and again.to_bytes() == plan.to_bytes()


@given(PATHS, SIZES, SEEDS, st.integers(1, 10**6))
def test_a_plan_survives_its_file(paths, sizes, seed, target):
    samples, plan = plan_of(paths, sizes, seed, target)
    read = Plan.from_bytes(plan.to_bytes())
    assert read == plan and read.num_shards == plan.num_shards and read.seed == seed
    alone = [plan.place(path, split) for path, split, _ in samples]
    assert read.place_many([one[0] for one in samples], [one[1] for one in samples]).tolist() == alone


def make_samples(num_samples, shares=(0.8, 0.1, 0.1)):
    fractions = SplitFractions(train=shares[0], validation=shares[1], test=shares[2])
    paths = (b"cat/%d.jpg" % number for number in range(num_samples))
    return [(path, choose_split(path, fractions), 1000) for path in paths]


def counts_by_shard(plan, samples):
    counts = Counter(plan.place_many([one[0] for one in samples], [one[1] for one in samples]).tolist())
    assert sorted(counts) == list(range(plan.total_shards))
    return {
        split: [counts[shard] for shard in range(plan.total_shards) if plan.split_of(shard) == split]
        for split in range(3)
    }


def test_many_samples_are_cut_between_bins(monkeypatch):
    samples = make_samples(30_000)
    exact = make_plan(samples, seed=3, target_shard_bytes=500_000)
    monkeypatch.setattr(sharding.plan, "EXACT_SAMPLES", 20_000)
    plan = make_plan(samples, seed=3, target_shard_bytes=500_000)
    assert plan.num_shards == exact.num_shards == (49, 6, 6) or plan.num_shards == exact.num_shards
    for sizes in counts_by_shard(plan, samples).values():
        # A bin has at most a 64th of a shard on average; five times that is beyond chance here.
        mean = sum(sizes) / len(sizes)
        assert max(abs(size - mean) for size in sizes) < mean * 5 / 64


@pytest.mark.parametrize("num_samples", [40, 400, 4000])
def test_bins_leave_no_shard_empty_however_few_samples_a_shard_has(monkeypatch, num_samples):
    monkeypatch.setattr(sharding.plan, "EXACT_SAMPLES", 10)
    monkeypatch.setattr(sharding.plan, "BINS_PER_SHARD", 1)
    samples = make_samples(num_samples)
    plan = make_plan(samples, seed=1, target_shard_bytes=1)
    assert counts_by_shard(plan, samples) and plan.total_shards > num_samples / 4


def test_samples_of_one_prefix_share_a_shard(monkeypatch):
    monkeypatch.setattr(sharding.plan, "make_place_hash", lambda seed, path: path[:1] * 16)
    samples = [(path, 0, 1) for path in (b"a1", b"a2", b"b", b"c1", b"c2", b"c3")]
    plan = make_plan(samples, seed=0, target_shard_bytes=1)
    assert plan.num_shards == (3, 0, 0)
    assert [plan.place(path, 0) for path, _, _ in samples] == [0, 0, 1, 2, 2, 2]


@given(st.integers(1, 10**6), st.integers(0, 10**12), st.integers(1024, 10**9))
def test_number_of_shards(num_samples, source_bytes, target):
    count = count_shards(num_samples, source_bytes, target_shard_bytes=target)
    assert 1 <= count <= num_samples
    assert count == num_samples or (count * target >= source_bytes)


def test_a_split_without_samples_has_no_shard():
    plan = make_plan([(b"a", 0, 1)], seed=0, target_shard_bytes=1)
    assert plan.num_shards == (1, 0, 0)
    assert plan.name_of(0, "k") == "train-k-00000"


def test_splits_have_their_shares_and_hang_on_the_path_alone():
    fractions = SplitFractions(train=0.6, validation=0.1, test=0.3)
    counts = Counter(choose_split(b"cat/%d.jpg" % number, fractions) for number in range(20_000))
    for split, share in enumerate((0.6, 0.1, 0.3)):
        # Five standard deviations of a binomial of 20,000 are below 0.018.
        assert abs(counts[split] / 20_000 - share) < 0.018


def test_a_share_of_zero_gets_nothing():
    # Rounding may leave a gap below 1; a wide one (which validation would refuse) shows who gets it.
    almost = SplitFractions.model_construct(train=0.5, validation=0.2, test=0)
    assert {choose_split(b"%d" % number, almost) for number in range(3000)} == {0, 1}


def test_hashes_are_pinned():
    # These decide where every sample of existing shards lies: a change moves all of them.
    assert make_key(b"cat/1.jpg").hex() == KEY
    assert make_place_hash(7, b"cat/1.jpg").hex() == PLACE_HASH
    fractions = SplitFractions(train=0.5, validation=0.25, test=0.25)
    assert [choose_split(b"%d" % number, fractions) for number in range(12)] == SPLITS_OF_NUMBERS


KEY = "cfeb6b62b0b9c82a497ad53a288d5e0e"
PLACE_HASH = "5b31b20eb1a4a4e38b61c3c8bde273a6"
SPLITS_OF_NUMBERS = [0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
