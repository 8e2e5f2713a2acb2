"""Groups stay whole, and patterns that find none are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.config import SplitFractions
from contracts.errors import ConfigError, DataError
from sharding.plan import choose_split
from sharding.sources.splitting import Splitter, make_group_finder

FRACTIONS = SplitFractions(train=0.5, validation=0.25, test=0.25)


@given(st.lists(st.tuples(st.binary(min_size=1), st.binary(min_size=1, max_size=2), st.sampled_from([None, 0, 1, 2]))))
def test_no_group_straddles_a_split(files):
    splitter = Splitter(FRACTIONS)
    kept = []
    for path, group, split in files:
        try:
            if split is not None:
                splitter.learn(group, split, "here")
        except DataError:
            continue
        kept.append((path, group, split))
    by_group = {}
    for path, group, split in kept:
        chosen = splitter.choose(path, group, split)
        assert split is None or chosen == split
        by_group.setdefault(group, set()).add(chosen)
    assert all(len(splits) == 1 for splits in by_group.values())


def test_without_a_group_the_split_is_that_of_the_path():
    splitter = Splitter(FRACTIONS)
    for number in range(200):
        path = b"%d" % number
        assert splitter.choose(path, None, None) == choose_split(path, FRACTIONS)


def test_the_pattern_searches_the_path_in_bytes():
    find = make_group_finder("(p\\d+)_")
    assert find(b"ant/\xff/p12_3.png") == b"p12"
    with pytest.raises(DataError, match=r"no group in ant/\%FF"):
        find(b"ant/\xff")


@pytest.mark.parametrize(
    ("pattern", "word"), [("(", "no regular expression"), ("a", "0 groups"), ("(a)(b)", "2 groups")]
)
def test_patterns_that_cannot_work(pattern, word):
    with pytest.raises(ConfigError, match=word):
        make_group_finder(pattern)


def test_class_folders_by_group(source, run_shard, listing_of):
    by_group = {}
    for one in listing_of(source, group_by=r"/(\d)").references():
        by_group.setdefault(one.path.split(b"/")[1][:1], set()).add(one.split)
    assert len(by_group) == 6 and all(len(splits) == 1 for splits in by_group.values())
    assert run_shard(group_by=r"/(\d)").folder != run_shard().folder
    refused = run_shard(group_by="(dog)")
    assert refused.code == 2 and "finds no group in ant/00.png" in refused.stderr
