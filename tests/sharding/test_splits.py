"""Splits hang on the path alone, groups stay whole, and exact shares are exact."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.config import SplitFractions
from contracts.errors import ConfigError, DataError
from sharding.splits import Splitter, make_group_finder, split_exactly

FRACTIONS = SplitFractions(train=0.5, validation=0.25, test=0.25)


@given(st.lists(st.tuples(st.binary(min_size=1), st.binary(min_size=1, max_size=2), st.sampled_from([None, 0, 1, 2]))))
def test_no_group_straddles_a_split(files):
    splitter = Splitter(FRACTIONS)
    kept = []
    for path, group, split in files:
        try:
            if split is not None:
                splitter.record_split(group, split, "here")
        except DataError:
            continue
        kept.append((path, group, split))
    by_group = {}
    for path, group, split in kept:
        chosen = splitter.choose(path, group, split)
        assert split is None or chosen == split
        by_group.setdefault(group, set()).add(chosen)
    assert all(len(splits) == 1 for splits in by_group.values())


def test_the_pattern_searches_the_path_in_bytes():
    find = make_group_finder("(p\\d+)_")
    assert find(b"ant/\xff/p12_3.png") == b"p12"
    with pytest.raises(DataError, match=r"no group in ant/\%FF"):
        find(b"ant/\xff")
    with pytest.raises(ConfigError, match="2 groups"):
        make_group_finder("(a)(b)")


def test_splits_have_their_shares_and_hang_on_the_path_alone():
    splitter = Splitter(SplitFractions(train=0.6, validation=0.1, test=0.3))
    counts = Counter(splitter.choose(b"cat/%d.jpg" % number, None, None) for number in range(20_000))
    for split, share in enumerate((0.6, 0.1, 0.3)):
        # Five standard deviations of a binomial of 20,000 are below 0.018.
        assert abs(counts[split] / 20_000 - share) < 0.018


def test_hashes_are_pinned():
    # These decide about the split of every sample of existing shards.
    chosen = [Splitter(FRACTIONS).choose(b"%d" % number, None, None) for number in range(12)]
    assert chosen == [0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]


# --- exact shares -----------------------------------------------------------------------------------------------------


@given(
    st.sets(st.binary(min_size=1, max_size=8), max_size=60),
    st.lists(st.integers(0, 100), min_size=2, max_size=2),
)
def test_exact_shares_are_off_by_less_than_one_sample(paths, ends):
    low, high = sorted(ends)
    shares = [(low + 1) / 101, (high - low) / 101, (100 - high) / 101]
    splits = split_exactly(paths, SplitFractions(train=shares[0], validation=shares[1], test=shares[2]))
    assert splits.keys() == paths
    assert splits == split_exactly(sorted(paths), SplitFractions(train=shares[0], validation=shares[1], test=shares[2]))
    counts = Counter(splits.values())
    assert all(abs(counts[split] - share * len(paths)) < 1 for split, share in enumerate(shares))


def test_exact_shares_are_refused_where_they_cannot_hold(listing_of, tmp_path, write_file):
    for path in (b"train/a/1.png", b"train/b/1.png", b"test/a/2.png"):
        write_file(tmp_path / "given", path, b"")
    for number in range(20):
        write_file(tmp_path / "raw", b"%b/%d.png" % ((b"a", b"b")[number % 2], number), b"")
    rows = "".join(f"a/{number}.png,x|y\n" for number in range(0, 20, 2))
    (tmp_path / "raw" / "rows.csv").write_text("uri,label\n" + rows)
    for source, section, word in (
        ("given", {"splits": {"train": 0.8, "validation": 0, "test": 0.2}}, "gives the splits"),
        ("raw", {"group_by": r"(\d)"}, "keeps groups together"),
        ("raw/rows.csv", {"label_separator": "|"}, "lists of labels"),
    ):
        with pytest.raises(ConfigError, match=f"stratify=exact, but .*{word}"):
            listing_of(tmp_path / source, stratify="exact", **section)
