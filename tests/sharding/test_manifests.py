"""Manifests of every form give the same references as class folders; what is wrong in one is named by its row."""

import csv
import json
import uuid

import pyarrow
import pyarrow.parquet
import pytest

from contracts.config import SPLITS, ShardingSection
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
    return list_source(ShardingSection(source=str(path), **section), path.parents[1] / "listings" / uuid.uuid4().hex)


FORMS = ("csv", "jsonl", "parquet")


@pytest.mark.parametrize("form", FORMS)
def test_a_manifest_lists_what_class_folders_list_and_given_splits_hold(source, form):
    rows = [(path, label, None) for path, label in reversed(rows_of(source))]
    expected = list_file(source)
    found = list_file(write_manifest(source, form, rows))
    assert list(found.references()) == list(expected.references())
    assert (found.classes, found.uri, found.sha256) == (expected.classes, expected.uri, expected.sha256)
    # A row without a split gets one by hash.
    given = ("train", None, "train", "validation", "test", None, "train", "test")
    rows = [(path, label, given[number % 8]) for number, (path, label) in enumerate(rows_of(source))]
    listing = list_file(write_manifest(source, form, rows))
    by_hash = {one.path.decode(): SPLITS[one.split] for one in expected.references()}
    found = {one.path.decode(): SPLITS[one.split] for one in listing.references()}
    assert found == {path: split or by_hash[path] for path, _, split in rows}
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
        ("list.csv", "file,label\n" + GOOD, ("no column 'uri'", "'file', 'label'", "sharding.fields")),
        ("list.csv", "uri,label\n" + GOOD + "ant/06.png, \n", ("line 4", "is empty")),
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
        ("list.csv", "uri,label\nant/00.png,['a']\n", ("line 2", "a list, but not of JSON", '[""a"", ""b""]')),
        ("list.jsonl", '{"uri": "ant/00.png", "label": "ant"}\n\nnot json\n', ("after line 1: Expecting",)),
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


def test_column_names_can_be_set(source):
    lines = [{"file": path, "kind": label, "fold": "train"} for path, label in rows_of(source)]
    (source / "list.jsonl").write_text("\n".join(map(json.dumps, lines)))
    fields = {"image": {"column": "file", "kind": "image"}, "label": {"column": "kind", "kind": "class"}}
    listing = list_file(source / "list.jsonl", fields=fields, split_column="fold")
    assert listing.num_files == 60 and {one.split for one in listing.references()} == {0}
