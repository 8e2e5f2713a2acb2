"""Images with the same bytes: warned about or refused; equal checksums alone are no proof."""

import google_crc32c
import pytest

from contracts.config import SplitFractions
from sharding.splits import choose_split


def split_of(path):
    return choose_split(path, SplitFractions())


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


def test_paths_are_found_in_tfrecords(run_shard, copies):
    found = run_shard(format="tfrecord").manifest.duplicates
    assert [one.path for one in found.listed[0].copies] == copies[0][::-1]


def test_fail_refuses_and_holds_for_finished_shards(run_shard, copies):
    refused = run_shard(duplicates="fail")
    assert refused.code == 2 and "leakage" in refused.stderr and copies[0][0] in refused.stderr
    assert not list(refused.root.glob("*/manifest.json"))
    warned = run_shard()
    assert warned.code == 0
    again = run_shard(duplicates="fail")
    assert again.code == 2 and "sharding.duplicates" in again.stderr
    assert (warned.folder / "manifest.json").exists()


def test_without_copies_nothing_is_said(run_shard):
    assert run_shard().manifest.duplicates.groups == 0


def test_off_looks_for_none(run_shard, copies):
    result = run_shard(duplicates="off")
    assert result.manifest.duplicates is None and "copies" not in result.stderr
    # Shards that nobody has searched do not pass for ones without copies.
    refused = run_shard(duplicates="fail")
    assert refused.code == 2 and "without a search for copies" in refused.stderr


def forge(content, wanted_crc):
    """Return `content` with four more bytes that give it the crc32c `wanted_crc`: it is linear over bits."""
    base = google_crc32c.value(content + bytes(4))
    columns = [google_crc32c.value(content + (1 << bit).to_bytes(4, "little")) ^ base for bit in range(32)]
    rows = [(column, 1 << bit) for bit, column in enumerate(columns)]
    target, solution = wanted_crc ^ base, 0
    for bit in range(32):
        pivot = next(row for row in rows if row[0] >> bit & 1)
        rows = [
            (row[0] ^ pivot[0], row[1] ^ pivot[1]) if row[0] >> bit & 1 else row for row in rows if row is not pivot
        ]
        if target >> bit & 1:
            target, solution = target ^ pivot[0], solution ^ pivot[1]
    return content + solution.to_bytes(4, "little")


def test_an_equal_checksum_alone_is_no_copy(run_shard, source, write_file):
    one, other = b"BM" + b"a" * 50, b"BM" + b"b" * 46
    other = forge(other, google_crc32c.value(one))
    assert len(one) == len(other) and google_crc32c.value(one) == google_crc32c.value(other) and one != other
    write_file(source, b"ant/one.bmp", one)
    write_file(source, b"ant/other.bmp", other)
    assert run_shard(verify="none").manifest.duplicates.groups == 0
