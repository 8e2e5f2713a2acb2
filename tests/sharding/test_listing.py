"""Listings of class folders, on a disk and in a bucket: sorted, complete, and hashed by what can change."""

import os
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts import storage
from contracts.config import SPLITS
from contracts.errors import ConfigError, DataError, TryAgain
from rehearsal.gcs.faults import Rule
from rehearsal.gcs.objects import Record
from sharding import file_versions, listing, reference
from sharding.folders import BucketFolders
from sharding.names import ENCODED_PREFIX, decode_name, encode_name, encode_path

# The bucket's client leaves connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


def test_a_listing_is_complete_and_sorted_by_whole_paths(source, write_file, listing_of):
    # "a.b" sorts before "a/..." as a path, though the folder "a" sorts before the file "a.b".
    write_file(source, b"ant/a/1.png", b"x")
    write_file(source, b"ant/a.b", b"x")
    listing = listing_of(source)
    references = list(listing.references())
    paths = [path.relative_to(source).as_posix().encode() for path in source.rglob("*.*") if path.is_file()]
    assert [one.path for one in references] == sorted(paths)
    assert listing.classes == (b"ant", b"bee", b"cow")
    for one in references:
        status = (source / one.path.decode()).stat()
        assert (one.size, one.version) == (status.st_size, status.st_mtime_ns)
        assert listing.classes[one.labels[0]] == one.path.split(b"/")[0]


def test_files_outside_of_classes_and_of_systems_are_left_out(source, write_file, listing_of):
    before = listing_of(source).sha256
    for path in (b"README", b"ant/.DS_Store", b"ant/THUMBS.DB", b"bee/@eaDir/1.jpg", b".cache/1.png", b"cow/deep/._1"):
        write_file(source, path, b"junk")
    (source / "ant" / ".#lock").symlink_to(source / "nowhere")
    after = listing_of(source)
    assert after.sha256 == before
    assert sorted(after.ignored) == [
        b".cache/",
        b"README",
        b"ant/.#lock",
        b"ant/.DS_Store",
        b"ant/THUMBS.DB",
        b"bee/@eaDir/",
        b"cow/deep/._1",
    ]


def test_hash_changes_with_name_size_time_and_class(source, write_file, listing_of):
    seen = {listing_of(source).sha256}
    (source / "ant" / "00.png").rename(source / "ant" / "xx.png")
    seen.add(listing_of(source).sha256)
    write_file(source, b"ant/xx.png", b"shorter")
    seen.add(listing_of(source).sha256)
    os.utime(source / "ant" / "xx.png", ns=(7, 7))
    seen.add(listing_of(source).sha256)
    (source / "ant").rename(source / "ape")
    last = listing_of(source).sha256
    assert len({*seen, last}) == 5
    # The place of the source is not in it.
    source.rename(source.with_name("moved"))
    assert listing_of(source.with_name("moved")).sha256 == last


@settings(max_examples=30)
@given(st.lists(st.binary(min_size=1, max_size=12) | st.text(min_size=1).map(str.encode)))
def test_paths_and_names_of_classes_come_back(names):
    for name in names:
        assert encode_path(name).isprintable() and unquote_to_bytes(encode_path(name)) == name
        assert decode_name(encode_name(name)) == name
    for text in ("50%", "50%25", "%FF", "käfer", "a b", "a\u00a0b", "🏳\ufe0f\u200d🌈"):
        assert encode_name(text.encode()) == text
    for name in (b"50%\xff", b"a\nb", b"\x7f", "line\u2028two".encode(), b"percent-encoded:x"):
        text = encode_name(name)
        assert text.startswith(ENCODED_PREFIX) and text.isprintable() and decode_name(text) == name


# --- class folders and folders of splits ------------------------------------------------------------------------------


def write_all(write_file, root, *paths):
    for path in paths:
        write_file(root, path.encode(), b"x")


SPLIT_FILES = [
    f"{split}/{name}/{number}.png"
    for split in ("Train", "val", "valid", "TEST")
    for name in ("cat", "dog")
    for number in range(3)
]


def test_folders_of_splits_give_the_splits(listing_of, tmp_path, write_file):
    write_all(
        write_file,
        tmp_path / "raw",
        *SPLIT_FILES,
        ".cache/x.png",
        "val/.DS_Store",
        "val/lost.png",
        "Train/deep/a/b.png",
    )
    listing = listing_of(tmp_path / "raw")
    assert listing.classes == (b"cat", b"deep", b"dog")
    assert listing.splits_given
    by_path = {one.path.decode(): (listing.classes[one.labels[0]], SPLITS[one.split]) for one in listing.references()}
    assert by_path["Train/cat/0.png"] == (b"cat", "train")
    assert by_path["val/dog/1.png"] == (b"dog", "validation") and by_path["valid/dog/1.png"] == (b"dog", "validation")
    assert by_path["TEST/cat/2.png"] == (b"cat", "test")
    assert by_path["Train/deep/a/b.png"] == (b"deep", "train")
    assert list(by_path) == sorted([*SPLIT_FILES, "Train/deep/a/b.png"])
    assert [listing.counts[split] for split in range(3)] == [[3, 1, 3], [6, 0, 6], [3, 0, 3]]
    assert sorted(listing.ignored) == [b".cache/", b"val/.DS_Store", b"val/lost.png"]
    assert any("1 image outside of class folders left out: val/lost.png" in warning for warning in listing.warnings)
    with pytest.raises(ConfigError, match="give the splits"):
        listing_of(tmp_path / "raw", group_by="(cat)")


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (
            ["train/cat/1.png", "test/cat/1.png", "unlabelled/1.png"],
            ("folders test, train, which are called like splits, beside unlabelled", "move unlabelled out", "rename"),
        ),
        (["train/1.png", "test/1.png"], ("folders test, train", "without class folders in them", "rename test, train")),
        (["train/cat/1.png", "val/cat/1.png"], ("holds a single class (cat)",)),
    ],
)
def test_what_is_ambiguous_is_refused(listing_of, tmp_path, write_file, paths, words):
    write_all(write_file, tmp_path / "raw", *paths)
    with pytest.raises(DataError) as raised:
        listing_of(tmp_path / "raw")
    assert all(word in str(raised.value) for word in words), raised.value


def names_of(listing, split):
    return {one.path.decode() for one in listing.references() if SPLITS[one.split] == split}


def test_a_training_folder_alone_is_split_by_hash_as_class_folders_are(listing_of, tmp_path, write_file):
    paths = [f"train/{name}/{number}.png" for name in ("cat", "dog") for number in range(40)]
    write_all(write_file, tmp_path / "raw", *paths)
    listing = listing_of(tmp_path / "raw")
    assert listing.classes == (b"cat", b"dog") and not listing.splits_given
    assert all(min(counts) > 0 for counts in listing.counts) and sum(map(sum, listing.counts)) == 80
    assert listing_of(tmp_path / "raw", stratify="exact").counts == ([32, 32], [4, 4], [4, 4])
    assert any("0.1 of it for validation and 0.1 of it for test" in warning for warning in listing.warnings)
    grouped = listing_of(tmp_path / "raw", group_by="([0-9]+).png")
    assert all(name.replace("cat", "dog") in names_of(grouped, "test") for name in names_of(grouped, "test"))


@pytest.mark.parametrize(("given", "missing"), [("val", "test"), ("test", "validation")])
def test_a_split_without_a_folder_is_drawn_from_that_of_training(listing_of, tmp_path, write_file, given, missing):
    paths = [f"{split}/{name}/{number}.png" for split in ("train", given) for name in "ab" for number in range(60)]
    write_all(write_file, tmp_path / "raw", *paths)
    listing = listing_of(tmp_path / "raw", splits={"train": 0.6, "validation": 0.2, "test": 0.2})
    assert listing.splits_given
    drawn = names_of(listing, missing)
    assert 15 <= len(drawn) <= 45 and all(name.startswith("train/") for name in drawn)
    own = names_of(listing, {"val": "validation", "test": "test"}[given])
    assert own == {one for one in paths if one.startswith(given)}
    assert any(f"0.25 of it for {missing}" in warning for warning in listing.warnings)
    # Who has no use for it keeps all for training.
    whole = listing_of(tmp_path / "raw", splits={"train": 0.6, "validation": 0.4, "test": 0.4, missing: 0})
    assert len(names_of(whole, "train")) == 120 and whole.warnings == []


# --- threads, parts and hashes ----------------------------------------------------------------------------------------


def test_parts_are_cut_from_the_sorted_rows_whatever_is_read_ahead(source, listing_of, monkeypatch):
    monkeypatch.setattr(listing, "_FILES_AHEAD", 7)
    monkeypatch.setattr(listing, "_THREADS", 2)
    expected = listing_of(source)
    assert not list(source.parent.glob("listing-0/*")) and len(expected.parts()) == 1
    monkeypatch.setattr(reference, "PART_ROWS", 25)
    monkeypatch.setattr(reference, "_TABLE_ROWS", 5)
    found = listing_of(source)
    assert [table.num_rows for table in found.tables()] == [25, 25, 10]
    assert list(found.references()) == list(expected.references())
    assert found.sha256 == expected.sha256


def test_content_is_read_once_and_other_times_are_the_same(source, listing_of, monkeypatch, tmp_path):
    monkeypatch.setenv("SHARDLINE_CACHE_DIR", str(tmp_path / "cache"))
    read, paths = file_versions._read_crc32c, []
    monkeypatch.setattr(file_versions, "_read_crc32c", lambda path: paths.append(path) or read(path))
    before = listing_of(source, compare="content")
    assert len(paths) == 60
    contents = [path.read_bytes() for path in source.rglob("*.*")]
    assert {one.version for one in before.references()} == {int(storage.crc32c(one), 16) for one in contents}
    os.utime(source / "ant" / "00.png", ns=(7, 7))
    assert listing_of(source, compare="content").sha256 == before.sha256
    assert len(paths) == 61
    content = bytearray((source / "ant" / "00.png").read_bytes())
    content[-1] ^= 1
    (source / "ant" / "00.png").write_bytes(content)
    after = listing_of(source, compare="content")
    assert after.sha256 != before.sha256
    assert len(paths) == 62


# --- buckets ----------------------------------------------------------------------------------------------------------

URI = "gs://bucket-1/raw"
NAMES = [
    *(f"{name}/{number:03d}.jpg" for name in ("ant", "ant.b", "käfer", "zoo") for number in range(40)),
    *(f"ant/deep/{number}/x.png" for number in range(20)),
    *("ant/", "empty/", "hidden/.DS_Store", "zoo/.thumbs/1.jpg", "zoo/thumbs.db", "README", "lost.jpg", ".x/1.jpg"),
]


def fill(server, names):
    """Put names into the bucket, without contents: a listing reads none."""
    for number, name in enumerate(names):
        digest = "1B2M2Y8AsgTpgAmY7PhCfg==" if number % 3 else None
        path = server.root / "no such file"
        server.objects._put(Record("bucket-1", f"raw/{name}", 10**15 + number, path, number, "AAAAAA==", digest))


def test_a_bucket_is_listed_class_by_class(bucket_server, listing_of, monkeypatch):
    fill(bucket_server, NAMES)
    monkeypatch.setattr(reference, "PART_ROWS", 50)
    monkeypatch.setattr(reference, "_TABLE_ROWS", 25)
    monkeypatch.setattr(listing, "_FILES_AHEAD", 30)
    bucket_server.faults.set(Rule(operation="objects.list", nth=(1, 3, 5), status=503))
    found = listing_of(URI)
    # Classes without a file are none, though labels were counted with them.
    assert found.classes == (b"ant", b"ant.b", "käfer".encode(), b"zoo") and found.num_files == 180
    references = list(found.references())
    assert [one.path for one in references] == sorted(name.encode() for name in NAMES[:180])
    assert all(one.path.startswith(found.classes[one.labels[0]] + b"/") for one in references)
    assert {one.content_hash[:4] for one in references} == {b"md5:", b"crc3"}
    assert found.warnings[0].endswith("1 image outside of class folders left out: lost.jpg")
    ignored = [b".x/", b"README", b"hidden/.DS_Store", b"lost.jpg", b"zoo/.thumbs/", b"zoo/thumbs.db"]
    assert sorted(found.ignored) == ignored
    # Another generation is another state.
    bucket_server.objects.delete("bucket-1", "raw/ant/deep/3/x.png")
    fill(bucket_server, ["ant/deep/3/x.png"])
    assert listing_of(URI).sha256 != found.sha256


def test_a_bucket_is_read_as_a_disk_is(bucket_server, listing_of, tmp_path, write_file):
    paths = [*SPLIT_FILES, "val/lost.png", ".cache/x.png", "TEST/dog/.hidden/1.png"]
    write_all(write_file, tmp_path / "raw", *paths)
    for path in paths:
        storage.publish(f"gs://bucket-1/raw/{path}", b"x")
    here, there = listing_of(tmp_path / "raw"), listing_of(URI)
    assert [one[:5] for one in there.references()] == [one[:5] for one in here.references()]
    assert (there.classes, there.counts, there.splits_given) == (here.classes, here.counts, True)
    assert (there.warnings, sorted(there.ignored)) == (here.warnings, sorted(here.ignored))
    with pytest.raises(TryAgain, match="the class folder gone"):
        list(BucketFolders(URI).walk(b"gone"))
