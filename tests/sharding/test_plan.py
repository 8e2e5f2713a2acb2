"""Arithmetic of the plan, as properties."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.config import SplitFractions
from sharding.plan import Plan, make_place_hash, make_plan
from sharding.splits import Splitter

PATHS = st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=80, unique=True)
SIZES = st.lists(st.integers(0, 10**6), min_size=80, max_size=80)
SEEDS = st.integers(0, 2**63 - 1)


def plan_of(paths, sizes, seed, target):
    splitter = Splitter(SplitFractions(train=0.5, validation=0.25, test=0.25))
    samples = [(path, splitter.choose(path, None, None), size) for path, size in zip(paths, sizes, strict=False)]
    return samples, make_plan(samples, seed=seed, target_shard_bytes=target)


def place(plan, samples):
    return plan.place([one[0] for one in samples], [one[1] for one in samples]).tolist()


@settings(max_examples=40)
@given(PATHS, SIZES, SEEDS, st.integers(1, 10**6), st.randoms(use_true_random=False))
def test_every_shard_has_a_sample_and_every_sample_one_shard_of_its_split(paths, sizes, seed, target, random):
    samples, plan = plan_of(paths, sizes, seed, target)
    shards = place(plan, samples)
    counts = Counter(shards)
    assert sorted(counts) == list(range(plan.total_shards))
    assert [plan.split_of(shard) for shard in shards] == [split for _, split, _ in samples]
    for split in range(3):
        of_split = [count for shard, count in counts.items() if plan.split_of(shard) == split]
        assert not of_split or max(of_split) - min(of_split) <= 1
    # Neither the order of the listing nor a file in between changes it.
    random.shuffle(samples)
    assert make_plan(iter(samples), seed=seed, target_shard_bytes=target) == plan
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_a_split_without_samples_has_no_shard_and_the_hash_is_pinned():
    plan = make_plan([(b"a", 0, 1)], seed=0, target_shard_bytes=1)
    assert plan.num_shards == [1, 0, 0] and plan.name_of(0, "k") == "train-k-00000"
    # It decides where every sample of existing shards lies: a change moves all of them.
    assert make_place_hash(7, b"cat/1.jpg").hex() == "5b31b20eb1a4a4e38b61c3c8bde273a6"
