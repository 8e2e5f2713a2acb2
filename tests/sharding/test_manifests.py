"""Manifests of every form give the same references as class folders; what is wrong in one is named by its row."""

import contextlib
import csv
import json
import os
import tarfile
import tracemalloc
import uuid
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from contracts import storage
from contracts.config import ShardingSection
from contracts.errors import DataError, UserError
from contracts.stores import gcs
from sharding.fields import Fields
from sharding.listing import list_source
from sharding.reference import SourceFile
from sharding.tables import read_table


def rows_of(source):
    """Return (relative path, class) of every image of the fixture."""
    return [(path.relative_to(source).as_posix(), path.parent.name) for path in sorted(source.glob("*/*.*"))]


def write_manifest(source, form, rows, name="list"):
    """Write rows of (path, label, split or None) in one of the forms; return the file."""
    path = source / f"{name}.{form}"
    if form == "parquet":
        columns = {"uri": [row[0] for row in rows], "label": [row[1] for row in rows], "split": [r[2] for r in rows]}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    elif form == "csv":
        with path.open("w", newline="") as stream:
            csv.writer(stream).writerows([("split", "label", "uri"), *((s, label, uri) for uri, label, s in rows)])
    else:
        lines = [{"uri": uri, "label": label} | ({"split": s} if s else {}) for uri, label, s in rows]
        path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def list_file(path, **section):
    # Beside the source, which is never written to.
    return list_source(ShardingSection(source=str(path), **section), path.parents[1] / "listings" / uuid.uuid4().hex)


FORMS = ("csv", "jsonl", "parquet")


@pytest.mark.parametrize("form", FORMS)
def test_without_splits_a_manifest_lists_what_class_folders_list(source, form):
    rows = [(path, label, None) for path, label in reversed(rows_of(source))]
    expected = list_file(source)
    found = list_file(write_manifest(source, form, rows))
    assert list(found.references()) == list(expected.references())
    assert (found.classes, found.uri, found.sha256) == (expected.classes, expected.uri, expected.sha256)


@pytest.mark.parametrize("form", FORMS)
def test_given_splits_hold(source, form):
    splits = ("train", "train", "train", "validation", "test", "train", "train", "test")
    rows = [(path, label, splits[number % 8]) for number, (path, label) in enumerate(rows_of(source))]
    listing = list_file(write_manifest(source, form, rows))
    found = {one.path.decode(): ("train", "validation", "test")[one.split] for one in listing.references()}
    assert found == {path: split for path, _, split in rows}
    rows[0] = (*rows[0][:2], "test")
    assert list_file(write_manifest(source, form, rows)).sha256 != listing.sha256


def test_rows_without_a_split_get_one_by_hash(source):
    by_hash = {one.path: one.split for one in list_file(source).references()}
    rows = [(path, label, "test" if number == 7 else None) for number, (path, label) in enumerate(rows_of(source))]
    for form in ("csv", "jsonl"):
        found = {one.path: one.split for one in list_file(write_manifest(source, form, rows)).references()}
        assert found == by_hash | {rows[7][0].encode(): 2}


def test_paths_are_relative_to_the_manifest_and_written_in_many_ways(source, tmp_path, write_file, make_image):
    write_file(tmp_path, b"elsewhere/x.png", make_image(7, "png"))
    rows = rows_of(source)
    uris = [path for path, _ in rows]
    uris[0] = f"./{uris[0]}"
    uris[1] = str(source / uris[1])
    uris[2] = (source / uris[2]).as_uri()
    more = [("../elsewhere/x.png", "ant", None)]
    manifest = write_manifest(
        source, "csv", [(uri, label, None) for uri, (_, label) in zip(uris, rows, strict=True)] + more
    )
    paths = [one.path.decode() for one in list_file(manifest).references()]
    assert paths == sorted([path for path, _ in rows] + ["../elsewhere/x.png"])


def test_column_names_can_be_set(source):
    lines = [{"file": path, "kind": label, "fold": "train"} for path, label in rows_of(source)]
    (source / "list.jsonl").write_text("\n".join(map(json.dumps, lines)))
    listing = list_file(source / "list.jsonl", uri_column="file", label_column="kind", split_column="fold")
    assert listing.num_files == 60 and {one.split for one in listing.references()} == {0}


def test_names_that_are_no_text_and_a_byte_order_mark(source, write_file, make_image):
    write_file(source, b"ant/\xff\xfe.png", make_image(9, "png"))
    rows = b"".join(b"%b,%b\r\n" % (path.encode(), label.encode()) for path, label in rows_of(source)[1:20])
    rows = b"\xef\xbb\xbfuri,label\r\nant/\xff\xfe.png,ant\r\nbee/01.jpg,bee\r\n" + rows
    (source / "list.csv").write_bytes(rows)
    assert b"ant/\xff\xfe.png" in {one.path for one in list_file(source / "list.csv").references()}


def test_rows_of_system_files_are_listed_apart(source):
    rows = [(path, label, None) for path, label in rows_of(source)] + [("ant/.DS_Store", "ant", None)]
    listing = list_file(write_manifest(source, "csv", rows))
    assert listing.ignored.sorted() == [b"ant/.DS_Store"] and listing.num_files == 60


# --- several labels ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "csv-json", "jsonl", "parquet"])
def test_labels_may_be_lists(source, form):
    labels = {
        path: sorted({label, ("even", label)[number % 2]}) for number, (path, label) in enumerate(rows_of(source))
    }
    section = {"label_separator": "|"} if form == "csv" else {}
    write = {"csv": "|".join, "csv-json": json.dumps}.get(form, list)
    rows = [(path, write(names), None) for path, names in labels.items()]
    listing = list_file(write_manifest(source, form.partition("-")[0], rows), **section)
    assert listing.multi_label and listing.classes == (b"ant", b"bee", b"cow", b"even")
    assert sum(counts[3] for counts in listing.counts) == 30 and sum(map(sum, listing.counts)) == 90
    found = {
        one.path.decode(): [listing.classes[label].decode() for label in one.labels] for one in listing.references()
    }
    assert found == labels


@pytest.mark.parametrize("shard_format", ["webdataset", "tfrecord"])
def test_an_image_may_be_of_no_class(run_shard, source, shard_format):
    """The first by path, so that nothing of a class comes before it, and every third one."""
    labels = {path: [label] if number % 3 else [] for number, (path, label) in enumerate(sorted(rows_of(source)))}
    manifest = write_manifest(source, "jsonl", [(path, names, None) for path, names in labels.items()])
    assert {one.path.decode(): len(one.labels) for one in list_file(manifest).references()} == {
        path: len(names) for path, names in labels.items()
    }
    result = run_shard(source=str(manifest), format=shard_format, duplicates="warn")
    assert result.code == 0, result.stderr
    assert result.manifest.multi_label and result.manifest.classes == ["ant", "bee", "cow"]
    totals = [sum(split.samples_by_class[place] for split in result.manifest.splits.values()) for place in range(3)]
    assert totals == [sum(names == [label] for names in labels.values()) for label in ("ant", "bee", "cow")]
    if shard_format == "tfrecord":
        return
    stored = {}
    for entry in result.manifest.shards:
        with tarfile.open(result.folder / entry.name) as archive:
            names = archive.getnames()
            assert not any(name.endswith(".cls") for name in names)
            for name in names:
                if name.endswith(".json"):
                    description = json.load(archive.extractfile(name))
                    assert [result.manifest.classes[one] for one in description["labels"]] == description["classes"]
                    stored[description["path"]] = description["classes"]
    assert stored == labels


def test_brackets_alone_make_no_list(source):
    rows = [(path, "[unsure]" if label == "ant" else label, None) for path, label in rows_of(source)]
    listing = list_file(write_manifest(source, "csv", rows))
    assert listing.classes == (b"[unsure]", b"bee", b"cow") and not listing.multi_label


# --- what is wrong ----------------------------------------------------------------------------------------------------


def check_wrong(path, *words, **section):
    with pytest.raises(DataError) as raised:
        list_file(path, **section)
    for word in words:
        assert word in str(raised.value)


def write_text(source, name, text):
    (source / name).write_text(text)
    return source / name


GOOD = "ant/00.png,ant\nbee/01.jpg,bee\n"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("list.csv", "file,label\n" + GOOD, ("no column 'uri'", "'file', 'label'", "uri_column")),
        ("list.csv", "", ("no column 'uri'",)),
        ("list.csv", "uri;label\n" + GOOD, ("it has 'uri;label'", "commas between cells")),
        ("list.csv", "uri,label\n", ("has no rows",)),
        ("list.csv", "uri,label\nant/00.png," + "[" * 100_000 + "]\n", ("single class ([[[[",)),
        ("list.csv", "uri,label\n" + GOOD + "ant/06.png,ant,more\n", ("after line 3", "3 cells, the header has 2")),
        ("list.csv", "uri,label\n" + GOOD + "ant/06.png,\n", ("line 4, column 'label' (class) is empty",)),
        ("list.csv", "uri,label\n" + GOOD + '"ant/06.png,ant\n', ("after line 3: unexpected end of data",)),
        ("list.csv", "uri,label\n" + GOOD + "./ant/00.png,ant\n", ("ant/00.png twice", "line 2", "line 4")),
        (
            "list.csv",
            "uri,label\n" + GOOD + "no/1.png,ant\nant,ant\n",
            ("no/1.png (line 4), ant (line 5)"),
        ),
        ("list.csv", "uri,label\n" + GOOD + "s3://b/1.png,ant\n", ("s3://",)),
        ("list.csv", "uri,label\nant/00.png,ant\n", ("single class (ant)",)),
        ("list.csv", "uri,label,split\nant/00.png,ant,training\n", ("line 2", "(split) is 'training'", "train, ")),
        (
            "list.csv",
            'uri,label\nant/00.png,"[""a"", ""b""]"\nbee/01.jpg,a\n',
            ("line 3", "'label' (class) is 'a' (str): no list"),
        ),
        (
            "list.csv",
            'uri,label\nant/00.png,"[""a"", ""b""]"\nbee/01.jpg,"[1, 2]"\n',
            ("mixed types", "number 1 (line 3)", "'a' (line 2)"),
        ),
        ("list.csv", 'uri,label\nant/00.png,"[""a"", 1.5]"\n', ("line 2", "it holds no class", "label_separator")),
        ("list.csv", "uri,label\nant/00.png,[]\n", ("names no class", "at least two classes")),
        ("list.csv", "uri,label\nant/00.png,['a']\n", ("line 2", "a list, but not of JSON", '[""a"", ""b""]')),
        ("list.jsonl", '{"uri": "ant/00.png"}\n', ("no column 'label'",)),
        ("list.jsonl", '{"uri": "ant/00.png", "label": "ant"}\n\nnot json\n', ("after line 1: Expecting",)),
        ("list.jsonl", "[1]\n", ("a list, no object",)),
        ("list.parquet", "not parquet", ("list.parquet cannot be read: ",)),
        ("list.txt", "a", ("is a file, but no manifest",)),
        ("list.csv", "uri,label,label\n" + "ant/00.png,ant,bee\n", ("several columns 'label'",)),
        ("list.jsonl", "[" * 100_000, ("cannot be read",)),
        ("list.jsonl", '{"uri": "ant/\\ud800.png", "label": "ant"}\n', ("line 1", "it is not UTF-8")),
        ("list.jsonl", '{"uri": "ant/00.png", "label": "\\ud800"}\n', ("line 1", "it is not UTF-8")),
        ("list.jsonl", '{"uri": "ant/00.png", "label": "a\\u0000b"}\n', ("line 1", "zero byte")),
    ],
)
def test_bad_manifests(source, name, text, words):
    with pytest.raises(UserError) as raised:
        list_file(write_text(source, name, text))
    assert all(word in str(raised.value) for word in words), raised.value
    assert raised.value.allowed and raised.value.todo


def test_parquet_columns_of_other_types(source):
    path = source / "list.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"uri": ["ant/00.png"], "label": [0.5]}), path)
    check_wrong(path, "row 1", "0.5 (float)")
    pyarrow.parquet.write_table(pyarrow.table({"uri": [1], "label": ["a"]}), path)
    check_wrong(path, "row 1", "(image) is 1 (int)")


def test_a_damaged_parquet_file_is_said_wherever_the_damage_is(source):
    rows = [(path, label, None) for path, label in rows_of(source)]
    path = write_manifest(source, "parquet", rows)
    whole = path.read_bytes()
    for at in range(0, len(whole), 31):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        # A flipped bit in a name is for whoever looks for the file, one in what nobody reads for nobody.
        with contextlib.suppress(DataError):
            list_file(path)


def test_a_remote_name_that_is_no_text(source):
    (source / "list.csv").write_bytes(b"uri,label\ngs://b/\xff.png,ant\n" + GOOD.encode())
    check_wrong(source / "list.csv", "line 2", "UTF-8")


def test_a_manifest_that_may_not_be_read(source, monkeypatch):
    path = write_text(source, "list.csv", "uri,label\n" + GOOD)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    check_wrong(path, "list.csv cannot be read: Permission denied")


# --- groups -----------------------------------------------------------------------------------------------------------


def grouped_rows(source):
    return [
        {"uri": path, "label": label, "patient": f"p{number // 4}"}
        for number, (path, label) in enumerate(rows_of(source))
    ]


def test_groups_of_a_column_stay_whole(source):
    rows = grouped_rows(source)
    (source / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    listing = list_file(
        source / "list.jsonl", group_by="patient", splits={"train": 0.6, "validation": 0.2, "test": 0.2}
    )
    split_of = {one.path.decode(): one.split for one in listing.references()}
    by_group = {}
    for row in rows:
        by_group.setdefault(row["patient"], set()).add(split_of[row["uri"]])
    assert all(len(splits) == 1 for splits in by_group.values())
    assert {split for splits in by_group.values() for split in splits} == {0, 1, 2}


def test_a_given_split_takes_its_whole_group_along(source):
    rows = grouped_rows(source)
    rows[13]["split"] = "test"
    (source / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    listing = list_file(source / "list.jsonl", group_by="patient")
    split_of = {one.path.decode(): one.split for one in listing.references()}
    assert {split_of[row["uri"]] for row in rows if row["patient"] == rows[13]["patient"]} == {2}
    rows[14]["split"] = "train"
    (source / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    check_wrong(source / "list.jsonl", "group p3 is in two splits", "line 14", "line 15", group_by="patient")


def test_columns_of_groups_and_splits_that_are_not_there_or_empty(source):
    rows = grouped_rows(source)
    (source / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    check_wrong(source / "list.jsonl", "no column 'burst'", "group_by", group_by="burst")
    check_wrong(source / "list.jsonl", "no column 'fold'", "split_column", split_column="fold")
    rows[2]["patient"] = ""
    (source / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    check_wrong(source / "list.jsonl", "line 3", "'patient'", "is empty", group_by="patient")


def test_a_manifest_in_a_bucket_is_never_in_memory_as_a_whole(bucket_server, monkeypatch):
    row = json.dumps({"uri": "a.png", "label": "a", "more": "x" * 16_000}).encode() + b"\n"
    storage.publish("gs://bucket-1/rows.jsonl", row * 512)
    # Of a real one, pieces of 16 MiB.
    monkeypatch.setattr(gcs, "CHUNK_BYTES", 1 << 19)
    section = ShardingSection(source="gs://bucket-1/rows.jsonl")
    # Clients are made before.
    assert storage.exists(section.source)
    bucket_server.access_log.clear()
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_table(section, section.source)) == 512
        # The metadata, and sixteen pieces.
        assert len(bucket_server.access_log.entries()) <= 18
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


# --- named fields -----------------------------------------------------------------------------------------------------

FIELDS = {
    "image": {"column": "uri", "kind": "image"},
    "mask": {"column": "mask", "kind": "bytes"},
    "label": {"column": "label", "kind": "class"},
    "tags": {"column": "tags", "kind": "classes"},
    "price": {"column": "price", "kind": "number"},
    "text": {"column": "text", "kind": "text"},
    "more": {"column": "more", "kind": "json"},
}


def write_fields(source, **changes):
    """Write a row for each of the first six images, with the next one as its mask."""
    rows = [
        {
            "uri": path,
            "mask": rows_of(source)[number + 1][0],
            "label": ("ant", "bee")[number % 2],
            "tags": ["new", "käfer"],
            "price": number / 7,
            "text": f"\x00 ünï \n {number}",
            "more": {"b": [1, None], "a": 1.0},
        }
        for number, (path, _) in enumerate(rows_of(source)[:6])
    ]
    rows[2] |= changes
    return write_text(source, "list.jsonl", "\n".join(map(json.dumps, rows)))


def test_cells_travel_as_json(source):
    section = ShardingSection.model_validate({"source": str(write_fields(source)), "fields": FIELDS})
    fields, listing = Fields.of(section), list_file(source / "list.jsonl", fields=FIELDS)
    assert listing.vocabularies == {"tags": ("käfer".encode(), b"new")}
    for number, one in enumerate(listing.references()):
        status = (source / one.path.decode()).stat()
        mask_path = rows_of(source)[number + 1][0]
        mask = (source / mask_path).stat()
        assert fields.cells(one) == {
            "mask": [mask_path, mask.st_size, mask.st_mtime_ns, ""],
            "tags": ["new", "käfer"],
            "price": number / 7,
            "text": f"\x00 ünï \n {number}",
            "more": {"b": [1, None], "a": 1.0},
        }
        assert fields.files_of(one) == [
            ("image", SourceFile(one.path, status.st_size, status.st_mtime_ns)),
            ("mask", SourceFile(mask_path.encode(), mask.st_size, mask.st_mtime_ns, b"", is_image=False)),
        ]
        assert one.more_bytes == mask.st_size + len(one.cells) and b"\0" not in one.cells


def test_a_file_of_another_field_counts_for_the_hash_and_its_time_only_there(source):
    path = write_fields(source)
    before = list_file(path, fields=FIELDS)
    os.utime(source / rows_of(source)[6][0], ns=(7, 7))
    after = list_file(path, fields=FIELDS)
    assert after.sha256 != before.sha256 and after.same_but_times == before.same_but_times
    changed = list_file(write_fields(source, price=99), fields=FIELDS)
    assert changed.same_but_times != before.same_but_times


def test_rows_without_files_are_named_by_their_content(tmp_path):
    fields = {"x": {"column": "x", "kind": "number"}, "label": {"column": "y", "kind": "class"}}
    rows = ['{"x": 1, "y": "a"}', '{"x": 2, "y": "a"}', '{"x": 1, "y": "b"}', '{"x": 1, "y": "a"}']
    (tmp_path / "rows").mkdir()
    path = write_text(tmp_path / "rows", "list.jsonl", "\n".join(rows))
    section = {"fields": fields, "splits": {"train": 1, "validation": 0, "test": 0}}
    paths = [one.path for one in list_file(path, **section).references()]
    assert paths == sorted(paths) and len(set(paths)) == 4
    assert all(one.startswith(b"row:") for one in paths)
    (repeat,) = [one for one in paths if b"-" in one]
    assert repeat.removesuffix(b"-00000001") in paths
    assert "equal rows: line 1 = line 4" in list_file(path, **section).warnings
    # Other rows move none.
    write_text(tmp_path / "rows", "list.jsonl", "\n".join(['{"x": 9, "y": "b"}', *reversed(rows)]))
    assert set(paths) < {one.path for one in list_file(path, **section).references()}
