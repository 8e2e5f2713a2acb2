"""A bucket listed by ranges of names, in several processes, is what one process lists."""

import gc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import storage
from contracts.config import ShardingSection
from contracts.errors import DataError, StorageError, TryAgain
from rehearsal.gcs.faults import Rule
from rehearsal.gcs.index import Record
from sharding.sources import buckets, parts
from sharding.sources.buckets import Bucket, NameRange, after, halve, list_ranges
from sharding.sources.layout import Layout
from sharding.sources.parts import read_file
from sharding.sources.pool import open_pool

URI = "gs://bucket-1/raw"


@pytest.fixture(autouse=True)
def no_sockets_left():
    yield
    # Google's client drops the connection of a streamed answer that is an error.
    gc.collect()


def fill(server, names):
    """Put names into the bucket, without contents: nothing here reads any."""
    for number, name in enumerate(names):
        digest = "1B2M2Y8AsgTpgAmY7PhCfg==" if number % 3 else None
        row = Record("bucket-1", f"raw/{name}", 10**15 + number, 1, 10**15, "x", number, "AAAAAA==", digest)
        server.objects._index.put(row)


NAMES = [
    *(f"{name}/{number:03d}.jpg" for name in ("ant", "ant.b", "käfer", "zoo") for number in range(40)),
    *(f"ant/deep/{number}/x.png" for number in range(20)),
    *("ant/", "empty/", "hidden/.DS_Store", "zoo/.thumbs/1.jpg", "zoo/thumbs.db", "README", "lost.jpg", ".x/1.jpg"),
]


@pytest.mark.parametrize("section", [{}, {"group_by": r"(\d+)\D*$"}])
def test_processes_give_what_one_gives(bucket_server, listing_of, monkeypatch, section):
    fill(bucket_server, NAMES)
    one = listing_of(URI, **section)
    assert one.classes == (b"ant", b"ant.b", "käfer".encode(), b"zoo")
    assert one.num_files == 180 and one.warnings[0].endswith("1 image outside of class folders left out: lost.jpg")
    assert one.ignored == (
        b".x/1.jpg",
        b"README",
        b"hidden/.DS_Store",
        b"lost.jpg",
        b"zoo/.thumbs/1.jpg",
        b"zoo/thumbs.db",
    )
    monkeypatch.setattr(buckets, "FEW_OBJECTS", 10)
    several = listing_of(URI, processes=2, **section)
    assert list(several.references()) == list(one.references())
    paths = [reference.path for reference in several.references()]
    assert paths == sorted(paths)
    for field in ("classes", "sha256", "counts", "split_bytes", "ignored", "num_ignored", "warnings", "num_files"):
        assert getattr(several, field) == getattr(one, field), field
    assert [path.read_bytes() for path in several.parts] == [path.read_bytes() for path in one.parts]


@pytest.mark.parametrize("processes", [1, 3])
def test_a_long_range_is_cut_and_nothing_is_lost_or_seen_twice(bucket_server, tmp_path, monkeypatch, processes):
    names = sorted([f"cat/photos/IMG_{number:06d}.jpg" for number in range(4500)] + [f"dog/{n}.jpg" for n in range(7)])
    fill(bucket_server, names)
    monkeypatch.setattr(buckets, "PART_REFERENCES", 1000)
    cut = []
    monkeypatch.setattr(buckets, "halve", lambda uri, rest: cut.append(halve(uri, rest)) or cut[-1])
    layout = Layout((b"cat", b"dog"), (b"cat", b"dog"))
    layout.save(tmp_path / "layout")
    bucket = Bucket(URI, ShardingSection(), tmp_path, tmp_path / "layout")
    with open_pool(1) as pool:
        stretches = list_ranges(bucket, [NameRange("", "")], pool, processes)
    found = [one.path.decode() for stretch in stretches for path, _ in stretch.files for one in read_file(path)]
    assert found == names
    assert len(stretches) >= 5
    assert any(len(halves) == 2 for halves in cut) == (processes > 1)


def names_in(names):
    return [entry.name for entry in names.objects(URI)]


@pytest.mark.parametrize(
    "names",
    [
        ["a"],
        ["a", "b"],
        ["a", "aa", "aaa"],
        [f"x/{number}" for number in range(30)],
        [f"deep/er/folder/IMG_2024_{number:08d}.jpg" for number in range(0, 30_000, 999)],
        ["é", "ü", "日本", "🏳"],
    ],
)
@pytest.mark.parametrize("is_after", [False, True])
def test_halves_hold_all_names_of_a_range(bucket_server, names, is_after):
    fill(bucket_server, [*names, "zz/behind"])
    whole = NameRange(sorted(names)[0], "zz", is_after)
    expected = sorted(name for name in names if name < "zz")[is_after:]
    ranges = halve(URI, whole)
    # Behind the last usual letter names cannot be cut, but they are not lost.
    rest = [name for name in sorted(names) if name >= "zz"]
    assert [name for one in ranges for name in names_in(one)] == expected, rest
    if len(expected) > 5:
        assert len(ranges) == 2 and all(names_in(one) for one in ranges)


@given(st.text("ab\ud7ff/é🏳", min_size=1, max_size=4), st.text("ab\ud7ff/é🏳", max_size=6))
def test_after_a_prefix_comes_what_does_not_begin_with_it(prefix, name):
    # In the order of UTF-8, which is the service's.
    assert (name.encode() < after(prefix).encode()) == (name.startswith(prefix) or name.encode() < prefix.encode())


def test_faults_of_the_store_change_nothing(bucket_server, listing_of, monkeypatch):
    fill(bucket_server, NAMES)
    expected = listing_of(URI)
    monkeypatch.setattr(buckets, "FEW_OBJECTS", 10)
    bucket_server.faults.set(Rule(operation="objects.list", nth=(1, 3, 5), status=503))
    assert listing_of(URI, processes=1).sha256 == expected.sha256
    assert sum(entry.fault for entry in bucket_server.access_log.entries()) == 3


def test_a_class_folder_that_vanishes_is_named(bucket_server, listing_of, monkeypatch):
    fill(bucket_server, NAMES)
    monkeypatch.setattr(buckets, "FEW_OBJECTS", 10)
    cut = buckets.cut_by_folders

    def delete_first(*arguments):
        for number in range(40):
            bucket_server.objects._index.drop("bucket-1", f"raw/zoo/{number:03d}.jpg")
        for name in ("zoo/.thumbs/1.jpg", "zoo/thumbs.db"):
            bucket_server.objects._index.drop("bucket-1", f"raw/{name}")
        return cut(*arguments)

    monkeypatch.setattr(buckets, "cut_by_folders", delete_first)
    with pytest.raises(TryAgain, match="class folders vanished while it was listed: zoo; run again"):
        listing_of(URI, processes=1)


def test_a_class_folder_that_appears_is_named(bucket_server, listing_of, monkeypatch):
    fill(bucket_server, NAMES)
    monkeypatch.setattr(buckets, "FEW_OBJECTS", 10)
    cut = buckets.cut_by_folders

    def add_first(*arguments):
        fill(bucket_server, ["new/1.jpg"])
        return cut(*arguments)

    monkeypatch.setattr(buckets, "cut_by_folders", add_first)
    with pytest.raises(TryAgain, match=r"changed while it was listed: new/1\.jpg"):
        listing_of(URI, processes=2)


def test_a_bucket_that_vanishes_is_named(bucket_server, listing_of, monkeypatch):
    fill(bucket_server, NAMES)
    monkeypatch.setattr(buckets, "FEW_OBJECTS", 10)
    cut = buckets.cut_by_folders

    def delete_first(*arguments):
        bucket_server.clear()
        return cut(*arguments)

    monkeypatch.setattr(buckets, "cut_by_folders", delete_first)
    with pytest.raises(StorageError, match="bucket-1/raw: there is no such bucket"):
        listing_of(URI, processes=2)


def test_nothing_and_a_single_class_are_refused_however_they_are_listed(bucket_server, listing_of, monkeypatch):
    fill(bucket_server, ["empty/", "solo/1.jpg", "solo/2.jpg"])
    for few in (100, 1):
        monkeypatch.setattr(buckets, "FEW_OBJECTS", few)
        with pytest.raises(DataError, match=r"holds a single class \(solo\)"):
            listing_of(URI, processes=1)
    with pytest.raises(DataError, match="does not exist"):
        listing_of("gs://bucket-1/nothing")


def test_parts_are_whole_whatever_the_ranges(bucket_server, listing_of, monkeypatch):
    fill(bucket_server, NAMES)
    monkeypatch.setattr(parts, "PART_REFERENCES", 50)
    monkeypatch.setattr(buckets, "FEW_OBJECTS", 10)
    listing = listing_of(URI, processes=1)
    assert [len(listing.part(number)) for number in range(len(listing.parts))] == [50, 50, 50, 30]
    # Nothing else is left of the listing but what tells processes of it.
    left = {path.name.partition("-")[0] for path in Path(listing.parts[0]).parent.iterdir()}
    assert left <= {"references", "layout", "changes"}


def test_a_bucket_of_a_manifest_is_listed_along_its_paths(bucket_server, listing_of, tmp_path):
    fill(bucket_server, NAMES)
    rows = [f"gs://bucket-1/raw/{name},{name.partition('/')[0]}" for name in reversed(NAMES[:180])]
    (tmp_path / "rows.csv").write_text("\n".join(["uri,label", *rows]))
    bucket_server.access_log.clear()
    listing = listing_of(tmp_path / "rows.csv", stratify=False)
    folders = listing_of(URI, stratify=False)
    assert [one[3:6] for one in listing.references()] == [one[3:6] for one in folders.references()]
    assert listing.is_remote
    storage.publish(
        "gs://bucket-1/raw/rows.jsonl", b'{"uri": "ant/000.jpg", "label": "a"}\n{"uri": "no", "label": "b"}\n'
    )
    with pytest.raises(DataError, match=r"1 of 2 images that are not there: no \(line 2\)"):
        listing_of(f"{URI}/rows.jsonl")
