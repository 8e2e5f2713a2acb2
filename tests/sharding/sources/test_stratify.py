"""Small classes get a sample in every split; nothing else moves."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.config import SplitFractions
from sharding.plan import choose_split, find_split_ends, split_point
from sharding.sources import stratify
from sharding.sources.reference import Reference
from sharding.sources.stratify import choose_moves, find_lacking

FRACTIONS = [(0.8, 0.1, 0.1), (0.98, 0.01, 0.01), (0.5, 0.5, 0.0), (1.0, 0.0, 0.0), (0.1, 0.0, 0.9)]


def move_all(names, shares):
    fractions = SplitFractions(train=shares[0], validation=shares[1], test=shares[2])
    ends = find_split_ends(fractions)
    references = [Reference(b"%d/%d" % one, one[0], choose_split(b"%d/%d" % one, fractions), 1, 1) for one in names]
    counts = Counter((one.split, one.label) for one in references)
    moves = choose_moves(references, find_lacking(counts, ends), ends)
    moved = {move.path: move.new for move in moves}
    return references, [one._replace(split=moved.get(one.path, one.split)) for one in references], moves, ends


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**6)), unique=True), st.sampled_from(FRACTIONS))
def test_who_can_fill_all_splits_does_and_no_one_loses_one(names, shares):
    before, after, _, ends = move_all(names, shares)
    for label in range(4):
        old = Counter(one.split for one in before if one.label == label)
        new = Counter(one.split for one in after if one.label == label)
        assert set(old) <= set(new)
        if old.total() >= len(ends):
            assert set(new) == {split for _, split in ends}
        else:
            assert new == old
        if len(old) == len(ends):
            assert [one for one in before if one.label == label] == [one for one in after if one.label == label]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 999)), unique=True), st.randoms(use_true_random=False))
def test_the_order_of_the_listing_does_not_matter(names, random):
    once = move_all(names, FRACTIONS[0])[2]
    random.shuffle(names)
    assert move_all(names, FRACTIONS[0])[2] == once


def test_the_nearest_sample_moves():
    names = [(0, number) for number in range(30) if split_point(b"0/%d" % number) < 0.8][:5]
    before, _, moves, _ = move_all(names, FRACTIONS[0])
    assert {one.split for one in before} == {0}
    # Of the two that go, both are those with the highest points, each to where it is nearest.
    highest = sorted(before, key=lambda one: split_point(one.path))[-2:]
    assert {move.path for move in moves} == {one.path for one in highest}
    assert [move.new for move in moves] == [1, 2]


def test_a_listing_is_stratified_unless_it_must_not_be(listing_of, tmp_path, write_file):
    for number in range(60):
        write_file(tmp_path / "raw", b"big/%d.png" % number, b"x")
    for number in range(3):
        write_file(tmp_path / "raw", b"small/%d.png" % number, b"x" * number)
    plain = listing_of(tmp_path / "raw", stratify=False)
    assert any("has no sample of class small" in warning for warning in plain.warnings)
    listing = listing_of(tmp_path / "raw")
    assert [listing.counts[split][1] for split in range(3)] == [1, 1, 1]
    assert not [warning for warning in listing.warnings if "small" in warning]
    # What the listing says of all is what its references say.
    found = Counter((one.split, one.label) for one in listing.references())
    assert all(listing.counts[split][label] == count for (split, label), count in found.items())
    by_split = Counter()
    for one in listing.references():
        by_split[one.split] += one.size
    assert listing.split_bytes == tuple(by_split[split] for split in range(3))
    big = {one.path: one.split for one in plain.references() if one.label == 0}
    assert {one.path: one.split for one in listing.references() if one.label == 0} == big
    # Splits that are drawn are no part of the source.
    assert listing.sha256 == plain.sha256
    kept = listing_of(tmp_path / "raw", group_by=r"(\w+)\.png")
    assert [kept.counts[split][1] for split in range(3)] != [1, 1, 1]


@pytest.mark.parametrize("most", [2, 3])
def test_too_many_are_left_with_a_warning(listing_of, tmp_path, write_file, monkeypatch, most):
    monkeypatch.setattr(stratify, "MAX_SAMPLES", most)
    monkeypatch.setattr("sharding.sources.listing.MAX_SAMPLES", most)
    for number in range(60):
        write_file(tmp_path / "raw", b"big/%d.png" % number, b"x")
    for number in range(3):
        write_file(tmp_path / "raw", b"small/%d.png" % number, b"x")
    warnings = listing_of(tmp_path / "raw").warnings
    assert any("1 classes lack a split; they have 3 samples, too many" in one for one in warnings) == (most < 3)
