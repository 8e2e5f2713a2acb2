"""Manifests of every form give the same references as class folders; what is wrong in one is named by its row."""

import csv
import json
import uuid

import pyarrow
import pyarrow.parquet
import pytest

from contracts.config import ShardingSection
from contracts.errors import DataError, UserError
from sharding.listing import list_source


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


def test_names_that_are_no_text_and_a_byte_order_mark(source, write_file, make_image):
    write_file(source, b"ant/\xff\xfe.png", make_image(9, "png"))
    rows = b"".join(b"%b,%b\r\n" % (path.encode(), label.encode()) for path, label in rows_of(source)[1:20])
    rows = b"\xef\xbb\xbfuri,label\r\nant/\xff\xfe.png,ant\r\nbee/01.jpg,bee\r\n" + rows
    (source / "list.csv").write_bytes(rows)
    assert b"ant/\xff\xfe.png" in {one.path for one in list_file(source / "list.csv").references()}


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
        ("list.csv", "uri;label\n" + GOOD, ("it has 'uri;label'", "commas between cells")),
        ("list.csv", "uri,label\n", ("has no rows",)),
        ("list.csv", "uri,label\nant/00.png," + "[" * 100_000 + "]\n", ("single class ([[[[",)),
        ("list.csv", "uri,label\n" + GOOD + "ant/06.png,ant,more\n", ("after line 3", "3 cells, the header has 2")),
        ("list.csv", "uri,label\n" + GOOD + '"ant/06.png,ant\n', ("after line 3: unexpected end of data",)),
        ("list.csv", "uri,label\n" + GOOD + "./ant/00.png,ant\n", ("ant/00.png twice", "line 2", "line 4")),
        (
            "list.csv",
            "uri,label\n" + GOOD + "no/1.png,ant\nant,ant\n",
            ("no/1.png (line 4), ant (line 5)"),
        ),
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
        ("list.csv", "uri,label\nant/00.png,['a']\n", ("line 2", "a list, but not of JSON", '[""a"", ""b""]')),
        ("list.jsonl", '{"uri": "ant/00.png", "label": "ant"}\n\nnot json\n', ("after line 1: Expecting",)),
        ("list.parquet", "not parquet", ("list.parquet cannot be read: ",)),
        ("list.csv", "uri,label,label\n" + "ant/00.png,ant,bee\n", ("several columns 'label'",)),
        ("list.jsonl", '{"uri": "ant/\\ud800.png", "label": "ant"}\n', ("line 1", "it is not UTF-8")),
        ("list.jsonl", '{"uri": "ant/00.png", "label": "a\\u0000b"}\n', ("line 1", "zero byte")),
    ],
)
def test_bad_manifests(source, name, text, words):
    with pytest.raises(UserError) as raised:
        list_file(write_text(source, name, text))
    assert all(word in str(raised.value) for word in words), raised.value
    assert raised.value.allowed and raised.value.todo


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


# --- named fields -----------------------------------------------------------------------------------------------------


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


def test_rows_without_a_split_get_one_by_hash(source):
    by_hash = {one.path: one.split for one in list_file(source).references()}
    rows = [(path, label, "test" if number == 7 else None) for number, (path, label) in enumerate(rows_of(source))]
    for form in ("csv", "jsonl"):
        found = {one.path: one.split for one in list_file(write_manifest(source, form, rows)).references()}
        assert found == by_hash | {rows[7][0].encode(): 2}


def test_column_names_can_be_set(source):
    lines = [{"file": path, "kind": label, "fold": "train"} for path, label in rows_of(source)]
    (source / "list.jsonl").write_text("\n".join(map(json.dumps, lines)))
    listing = list_file(source / "list.jsonl", uri_column="file", label_column="kind", split_column="fold")
    assert listing.num_files == 60 and {one.split for one in listing.references()} == {0}
