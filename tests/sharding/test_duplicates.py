"""Images with the same bytes: warned about or refused."""

import pytest

from contracts.config import SplitFractions
from sharding.splits import Splitter


def split_of(path):
    return Splitter(SplitFractions()).choose(path, None, None)


def path_in(split, folder="ant"):
    return next(path for number in range(999) if split_of(path := f"{folder}/x{number}.png".encode()) == split)


@pytest.fixture
def copies(source, write_file, make_image):
    """Three equal images in three splits, and two equal ones in training."""
    paths = [path_in(split) for split in (0, 1, 2)]
    for path in paths:
        write_file(source, path, make_image(700, "png"))
    write_file(source, b"bee/y.png", make_image(701, "png"))
    twin = next(b"bee/z%d.png" % n for n in range(99) if split_of(b"bee/z%d.png" % n) == split_of(b"bee/y.png"))
    write_file(source, twin, make_image(701, "png"))
    return [path.decode() for path in paths], ["bee/y.png", twin.decode()]


def test_copies_are_named_and_leaks_come_first(run_shard, copies):
    result = run_shard()
    assert result.code == 0
    found = result.manifest.duplicates
    assert (found.groups, found.copies, found.leaking_groups) == (2, 3, 1)
    leaking, inside = found.listed
    assert [one.path for one in leaking.copies] == copies[0][::-1]
    assert [one.split for one in leaking.copies] == ["test", "validation", "train"]
    assert {one.path for one in inside.copies} == set(copies[1])
    assert (
        "warning: 3 samples are copies" in result.stderr
        and "1 of 2 samples with copies are in several splits (leakage)" in result.stderr
    )


def test_fail_refuses_and_holds_for_finished_shards(run_shard, copies):
    refused = run_shard(duplicates="fail")
    assert refused.code == 2 and "leakage" in refused.stderr and copies[0][0] in refused.stderr
    assert not list(refused.root.glob("*/manifest.json"))
    warned = run_shard()
    assert warned.code == 0
    again = run_shard(duplicates="fail")
    assert again.code == 2 and "sharding.duplicates" in again.stderr
    assert (warned.folder / "manifest.json").exists()


def test_off_looks_for_none(run_shard, copies):
    result = run_shard(duplicates="off")
    assert result.manifest.duplicates is None and "copies" not in result.stderr
    # Shards that nobody has searched do not pass for ones without copies.
    refused = run_shard(duplicates="fail")
    assert refused.code == 2 and "without a search for copies" in refused.stderr
