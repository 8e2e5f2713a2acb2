"""The listing: sorted, complete, and hashed by what can change."""

import json
import os
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.limits import ENCODED_PREFIX, encode_name, encode_path, name_some


def test_listing_is_sorted_and_complete(source, listing_of):
    listing = listing_of(source)
    paths = [reference.path for reference in listing.references()]
    assert paths == sorted(path.relative_to(source).as_posix().encode() for path in source.rglob("*.*"))
    assert listing.classes == (b"ant", b"bee", b"cow")
    for reference in listing.references():
        status = (source / reference.path.decode()).stat()
        assert (reference.size, reference.generation) == (status.st_size, status.st_mtime_ns)
        assert listing.classes[reference.label] == reference.path.split(b"/")[0]
    assert sum(sum(listing.counts[split]) for split in range(3)) == 60


def test_sorted_by_whole_path_not_folder_by_folder(source, write_file, listing_of):
    # "a.b" sorts before "a/..." as a path, though the folder "a" sorts before the file "a.b".
    write_file(source, b"ant/a/1.png", b"x")
    write_file(source, b"ant/a.b", b"x")
    paths = [reference.path for reference in listing_of(source).references()]
    assert paths == sorted(paths)


def test_files_outside_of_classes_and_of_systems_are_left_out(source, write_file, listing_of):
    before = listing_of(source).sha256
    for path in (
        b"labels.csv",
        b"ant/.DS_Store",
        b"ant/Thumbs.db",
        b"ant/._00.png",
        b".cache/1.png",
        b"__MACOSX/1.png",
    ):
        write_file(source, path, b"junk")
    assert listing_of(source).sha256 == before


def test_hash_changes_with_name_size_time_and_class(source, write_file, listing_of):
    seen = {listing_of(source).sha256}
    (source / "ant" / "00.png").rename(source / "ant" / "xx.png")
    seen.add(listing_of(source).sha256)
    write_file(source, b"ant/xx.png", b"shorter")
    seen.add(listing_of(source).sha256)
    os.utime(source / "ant" / "xx.png", ns=(7, 7))
    seen.add(listing_of(source).sha256)
    (source / "ant").rename(source / "ape")
    seen.add(listing_of(source).sha256)
    assert len(seen) == 5


def test_the_place_of_the_source_is_not_in_the_hash(source, listing_of):
    before = listing_of(source).sha256
    moved = source.with_name("moved")
    source.rename(moved)
    assert listing_of(moved).sha256 == before


def test_a_share_of_zero_is_no_gap(source, listing_of):
    assert listing_of(source, splits={"train": 1, "validation": 0, "test": 0}).warnings == ()


@given(st.binary(min_size=1, max_size=40))
def test_encoded_paths_are_printable_and_give_the_bytes_back(path):
    text = encode_path(path)
    assert text.isprintable() and text.encode()
    assert unquote_to_bytes(text) == path


def test_plain_text_stays_as_it_is():
    assert encode_path("käfer/a b.png".encode()) == "käfer/a b.png"


@given(st.lists(st.binary(min_size=1, max_size=12) | st.text(min_size=1).map(str.encode), unique=True))
def test_names_of_classes_stay_different(names):
    assert len({encode_name(name) for name in names}) == len(names)


@pytest.mark.parametrize("name", ["50%", "50%25", "%FF", "käfer", "a b", "a\u00a0b", "🏳\ufe0f\u200d🌈", "[x]", "-"])
def test_a_class_keeps_a_name_that_is_text(name):
    assert encode_name(name.encode()) == name


@pytest.mark.parametrize(
    "name", [b"50%\xff", b"a\nb", b"tab\t", b"\x7f", "line\u2028two".encode(), b"percent-encoded:x"]
)
def test_a_class_of_another_name_is_encoded_behind_a_mark(name):
    text = encode_name(name)
    assert text.startswith(ENCODED_PREFIX) and text.isprintable()
    assert unquote_to_bytes(text.removeprefix(ENCODED_PREFIX)) == name


@pytest.mark.parametrize("shard_format", ["webdataset", "tfrecord"])
def test_names_with_percent_signs_come_through(run_shard, source, write_file, shard_format):
    (source / "ant").rename(source / "50%")
    (source / "bee").rename(source / "50%25")
    (source / "cow").rename(source / os.fsdecode(b"caf\xe9\n"))
    result = run_shard(format=shard_format)
    assert result.code == 0, result.stderr
    assert result.manifest.classes == ["50%", "50%25", "percent-encoded:caf%E9%0A"]
    stored = b"".join(result.content[entry.name] for entry in result.manifest.shards)
    for name in result.manifest.classes:
        quoted = json.dumps(name).encode() if shard_format == "webdataset" else name.encode()
        assert quoted in stored
    # A path is encoded always, so that decoding it needs no knowledge.
    assert b"50%25/00.png" in stored and b"50%2525/01.jpg" in stored and b"caf%E9%0A/02.png" in stored


def test_names_past_the_tenth_are_counted():
    assert name_some([str(number) for number in range(12)]) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"


def test_what_is_no_image_by_its_name_is_listed_apart(run_shard, source, write_file):
    for path in (b"README", b"ant/.DS_Store", b"ant/THUMBS.DB", b"bee/@eaDir/1.jpg", b".cache/1.png", b"cow/deep/._1"):
        write_file(source, path, b"junk")
    (source / "ant" / ".#lock").symlink_to(source / "nowhere")
    result = run_shard(max_rejected_fraction=0)
    assert result.code == 0, result.stderr
    assert result.manifest.rejected == []
    assert result.manifest.ignored == [
        ".cache/",
        "README",
        "ant/.#lock",
        "ant/.DS_Store",
        "ant/THUMBS.DB",
        "bee/@eaDir/",
        "cow/deep/._1",
    ]
