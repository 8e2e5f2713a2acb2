"""Manifests of every form give the same references as class folders; what is wrong in one is named by its row."""

import contextlib
import csv
import json
import os
import tarfile
import tracemalloc
import uuid
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import ShardingSection
from contracts.errors import DataError, UserError
from contracts.stores import gcs
from records.fields import FieldReader
from records.samples import open_samples
from sharding.sources import list_source
from sharding.sources.tables import read_rows


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
    by_hash = {one.path: one.split for one in list_file(source, stratify=False).references()}
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


def test_whole_numbers_are_classes_in_their_order(source):
    rows = [(path, number % 12, "train") for number, (path, _) in enumerate(rows_of(source))]
    for form in ("jsonl", "parquet"):
        assert list_file(write_manifest(source, form, rows)).classes == tuple(b"%d" % number for number in range(12))


def test_names_that_are_no_text_and_a_byte_order_mark(source, write_file, make_image):
    write_file(source, b"ant/\xff\xfe.png", make_image(9, "png"))
    rows = b"".join(b"%b,%b\r\n" % (path.encode(), label.encode()) for path, label in rows_of(source)[1:20])
    rows = b"\xef\xbb\xbfuri,label\r\nant/\xff\xfe.png,ant\r\nbee/01.jpg,bee\r\n" + rows
    (source / "list.csv").write_bytes(rows)
    assert b"ant/\xff\xfe.png" in {one.path for one in list_file(source / "list.csv").references()}


def test_rows_of_system_files_are_listed_apart(run_shard, source):
    rows = [(path, label, None) for path, label in rows_of(source)] + [("ant/.DS_Store", "ant", None)]
    result = run_shard(source=str(write_manifest(source, "csv", rows)))
    assert result.code == 0, result.stderr
    assert result.manifest.ignored == ["ant/.DS_Store"] and result.manifest.rejected == []


def read_all(folder):
    """Return image and label of all samples."""
    uri = storage.normalise(folder)
    manifest = ShardManifest.load(uri)
    reader, found = FieldReader(manifest, ["image", "label"]), []
    for row in open_samples(manifest, uri)[:]:
        content = storage.read_range(manifest.shards[int(row["shard"])].uri(uri), int(row["offset"]), int(row["size"]))
        found.append(reader.read(content, int(row["label"])))
    return found


# --- several labels ---------------------------------------------------------------------------------------------------


def write_multi(source, form):
    labels = {
        path: sorted({label, "even" if number % 2 else label}) for number, (path, label) in enumerate(rows_of(source))
    }
    if form == "csv":
        rows = [(path, "|".join(names), None) for path, names in labels.items()]
        return labels, write_manifest(source, form, rows), {"label_separator": "|"}
    rows = [(path, json.dumps(names), None) for path, names in labels.items()]
    return labels, write_manifest(source, "csv", rows), {}


@pytest.mark.parametrize("form", ["csv", "csv-json"])
def test_several_labels_are_stored_as_lists(run_shard, source, form):
    labels, manifest, section = write_multi(source, form)
    result = run_shard(source=str(manifest), **section)
    assert result.code == 0, result.stderr
    assert result.manifest.multi_label
    assert result.manifest.classes == ["ant", "bee", "cow", "even"]
    assert sum(split.samples_by_class[3] for split in result.manifest.splits.values()) == 30
    assert sum(sum(split.samples_by_class) for split in result.manifest.splits.values()) == 90
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


@pytest.mark.parametrize(("form", "shard_format"), [("jsonl", "tfrecord"), ("csv-json", "webdataset")])
def test_an_image_may_be_of_no_class(run_shard, source, form, shard_format):
    """The first by path, so that nothing of a class comes before it, and every third one."""
    labels = {path: [label] if number % 3 else [] for number, (path, label) in enumerate(sorted(rows_of(source)))}
    rows = [(path, names if form == "jsonl" else json.dumps(names), None) for path, names in labels.items()]
    manifest = write_manifest(source, form.partition("-")[0], rows)
    result = run_shard(source=str(manifest), format=shard_format, duplicates="warn")
    assert result.code == 0, result.stderr
    assert result.manifest.multi_label and result.manifest.classes == ["ant", "bee", "cow"]
    totals = np.sum([split.samples_by_class for split in result.manifest.splits.values()], axis=0)
    assert totals.tolist() == [sum(names == [label] for names in labels.values()) for label in ("ant", "bee", "cow")]
    assert sum(split.samples for split in result.manifest.splits.values()) == 60
    by_content = {(source / path).read_bytes(): names for path, names in labels.items()}
    found = read_all(result.folder)
    classes = result.manifest.classes
    assert [[classes[place] for place in one["label"]] for one in found] == [by_content[one["image"]] for one in found]
    assert any(one["label"] == () for one in found)


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
        ("list.csv", "file,label\n" + GOOD, ("no column 'uri'", "'file', 'label'", "sharding.uri_column")),
        ("list.csv", "uri,class\n" + GOOD, ("no column 'label'", "sharding.label_column")),
        ("list.csv", "", ("is empty",)),
        ("list.csv", "uri,label\n", ("names no image",)),
        ("list.csv", "uri,label\nant/00.png," + "[" * 100_000 + "]\n", ("single class ([[[[",)),
        ("list.csv", "uri,label\n" + GOOD + "ant/06.png,ant,more\n", ("line 4", "3 cells, the header has 2")),
        ("list.csv", "uri,label\n" + GOOD + "ant/06.png,\n", ("line 4", "label is empty")),
        ("list.csv", "uri,label\n" + GOOD + '"ant/06.png,ant\n', ("line 4",)),
        ("list.csv", "uri,label\n" + GOOD + "./ant/00.png,ant\n", ("ant/00.png twice", "line 2", "line 4")),
        ("list.csv", "uri,label\n" + GOOD + "no/1.png,ant\n", ("1 of 3 images", "no/1.png (line 4)")),
        ("list.csv", "uri,label\n" + GOOD + "ant,ant\n", ("ant is no file",)),
        ("list.csv", "uri,label\n" + GOOD + "s3://b/1.png,ant\n", ("s3://",)),
        ("list.csv", "uri,label\nant/00.png,ant\n", ("single class (ant)",)),
        ("list.csv", "uri,label,split\nant/00.png,ant,training\n", ("line 2", "unknown split 'training'", "train, ")),
        (
            "list.csv",
            'uri,label\nant/00.png,"[""a"", ""b""]"\nbee/01.jpg,a\n',
            ("mixed types", "a list (line 2)", "single one (line 3)"),
        ),
        (
            "list.csv",
            'uri,label\nant/00.png,"[""a"", ""b""]"\nbee/01.jpg,"[1, 2]"\n',
            ("mixed types", "number 1 (line 3)", "'a' (line 2)"),
        ),
        ("list.csv", 'uri,label\nant/00.png,"[""a"", 1.5]"\n', ("line 2", "1.5 (float)", "sharding.label_separator")),
        ("list.csv", "uri,label\nant/00.png,[]\n", ("names no class", "at least two classes")),
        ("list.csv", "uri,label\nant/00.png,['a']\n", ("line 2", "a list, but not of JSON", '[""a"", ""b""]')),
        ("list.jsonl", '{"uri": "ant/00.png"}\n', ("line 1", "no column 'label'")),
        ("list.jsonl", '{"uri": "ant/00.png", "label": "ant"}\n\nnot json\n', ("line 3 is not JSON",)),
        ("list.jsonl", "[1]\n", ("line 1 holds a list",)),
        ("list.jsonl", "\n", ("is empty",)),
        ("list.jsonl", '{"uri": "ant/00.png", "label": 1.5}\n', ("line 1", "1.5 (float)")),
        ("list.jsonl", '{"uri": "ant/00.png", "label": null}\n', ("line 1", "label is empty")),
        ("list.jsonl", '{"uri": 5, "label": "a"}\n', ("line 1", "the URI is 5")),
        ("list.parquet", "not parquet", ("cannot be read as Parquet",)),
        ("list.txt", "a", ("is a file, but no manifest",)),
        ("list.csv", 'uri,"label\n' + GOOD * 5000, ("unexpected end of data", "begins in line 1")),
        ("list.csv", "uri,label,label\n" + "ant/00.png,ant,bee\n", ("2 columns 'label'",)),
        ("list.jsonl", "[" * 100_000, ("line 1 is not JSON",)),
        ("list.jsonl", '{"uri": "ant/\\ud800.png", "label": "ant"}\n', ("line 1", "half of a character")),
        ("list.jsonl", '{"uri": "ant/00.png", "label": "\\ud800"}\n', ("line 1", "half of a character")),
        ("list.jsonl", '{"uri": "ant/00.png", "label": "a\\u0000b"}\n', ("line 1", "zero byte")),
    ],
)
def test_bad_manifests(source, name, text, words):
    with pytest.raises(UserError) as raised:
        list_file(write_text(source, name, text))
    assert all(word in str(raised.value) for word in words), raised.value
    assert raised.value.allowed and raised.value.todo


def test_the_stage_refuses_a_bad_manifest_before_it_writes_anything(run_shard, source):
    result = run_shard(source=str(write_text(source, "list.csv", "uri,label\nant/00.png,ant\n")))
    assert result.code == 2 and "Traceback" not in result.stderr, result.stderr
    assert "allowed: " in result.stderr and "to do: " in result.stderr
    assert not [path for path in result.root.glob("*/*") if path.parent.name != "attempts"]


def test_a_class_without_training_images_is_an_error_and_elsewhere_a_warning(run_shard, source):
    rows = [(path, label, "test" if label == "bee" else "train") for path, label in rows_of(source)]
    check_wrong(write_manifest(source, "csv", rows), "no training sample of class bee")
    rows = [(path, label, "train") for path, label in rows_of(source)]
    rows[0] = (*rows[0][:2], "test")
    result = run_shard(source=str(write_manifest(source, "csv", rows)))
    assert result.code == 0 and "the test split has no sample of class bee, cow" in result.stderr


def test_parquet_columns_of_other_types(source):
    path = source / "list.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"uri": ["ant/00.png"], "label": [0.5]}), path)
    check_wrong(path, "row 1", "0.5 (float)")
    pyarrow.parquet.write_table(pyarrow.table({"uri": [1], "label": ["a"]}), path)
    check_wrong(path, "row 1", "the URI is 1")
    pyarrow.parquet.write_table(pyarrow.table({"path": ["x"], "label": ["a"]}), path)
    check_wrong(path, "no column 'uri'", "'path', 'label'")


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


def test_a_split_column_that_is_asked_for_must_be_there(source):
    path = write_text(source, "list.csv", "uri,label\n" + GOOD)
    check_wrong(path, "no column 'fold'", "sharding.split_column", split_column="fold")


def test_a_file_that_changes_is_other_work(source):
    manifest = write_manifest(source, "csv", [(path, label, None) for path, label in rows_of(source)])
    before = list_file(manifest).sha256
    os.utime(source / "ant" / "00.png", ns=(7, 7))
    assert list_file(manifest).sha256 != before


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


def test_group_columns_that_are_not_there_or_empty(source):
    rows = grouped_rows(source)
    (source / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    check_wrong(source / "list.jsonl", "no column 'burst'", "sharding.group_by", group_by="burst")
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
        assert sum(1 for _ in read_rows(section, section.source)) == 512
        # The metadata, and sixteen pieces.
        assert len(bucket_server.access_log.entries()) <= 18
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()
