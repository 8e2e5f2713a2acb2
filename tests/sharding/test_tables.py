"""Tables and texts: several columns in one field, categories, missing cells, and what the manifest says of them."""

import csv
import json
import math

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from contracts import storage
from contracts.config import SPLITS, ShardingSection
from sharding.sources import manifests
from sharding.sources.check import check_source
from tests.sharding.test_fields import read_samples

HEADER = ["age", "city", "bmi", "note", "split", "target"]
FIELDS = {
    "numbers": {"columns": ["*"], "kind": "numbers", "missing": "keep"},
    "city": {"column": "city", "kind": "category", "missing": "keep"},
    "note": {"column": "note", "kind": "text", "missing": "keep"},
    "label": {"column": "target", "kind": "number"},
}


def make_rows(count=60):
    """Return rows of numbers, a category and a text; some cells are missing, and some cities only tested on."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(count):
        split = SPLITS[0] if number % 3 else SPLITS[1 + number // 3 % 2]
        city = ("Oslo", "Rom", None, "Ulm")[number % 4]
        city = f"only {split}" if number in (0, 3, 6) else city
        age, bmi = (None if number % 7 == 1 else float(number)), float(random.normal(25, 3))
        rows.append([age, city, bmi, None if number % 11 == 2 else "x" * number, split, number / 7])
    return rows


def write_table(folder, form, rows, header=HEADER):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"table.{form}"
    if form == "csv":
        with path.open("w", newline="") as stream:
            csv.writer(stream).writerows([header, *[["" if one is None else one for one in row] for row in rows]])
    elif form == "jsonl":
        path.write_text("".join(json.dumps(dict(zip(header, one, strict=True))) + "\n" for one in rows))
    else:
        # Of numbers NaN is what pandas writes.
        columns = dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
        columns["age"] = [math.nan if one is None else one for one in columns["age"]]
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return str(path)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("shard_format", ["tfrecord", "webdataset"])
def test_a_table_comes_back_with_statistics_of_its_training_split(run_shard, tmp_path, form, shard_format):
    rows = make_rows()
    result = run_shard(
        source=write_table(tmp_path / "table", form, rows), fields=FIELDS, format=shard_format, min_shards=3
    )
    assert result.code == 0, result.stderr
    found = {one["label"]: (split, one) for split, one in read_samples(result.folder).values()}
    assert len(found) == len(rows)
    for age, city, bmi, note, split, target in rows:
        own_split, own = found[target]
        assert (own_split, own["city"], own["note"]) == (split, city or "", note or "")
        assert own["numbers"][1] == bmi
        assert math.isnan(own["numbers"][0]) if age is None else own["numbers"][0] == age
    training = [row for row in rows if row[4] == "train"]
    fields = result.manifest.sample_fields
    assert {name: entry.columns for name, entry in fields.items()} == {
        "numbers": ["age", "bmi"],
        "city": ["city"],
        "note": ["note"],
        "label": ["target"],
    }
    for entry, name, at in zip(
        [*fields["numbers"].statistics, *fields["label"].statistics], ("age", "bmi", "target"), (0, 2, 5), strict=True
    ):
        values = np.array([row[at] for row in training if row[at] is not None])
        assert (entry.name, entry.count, entry.missing) == (name, len(values), len(training) - len(values))
        assert (entry.mean, entry.std) == pytest.approx((values.mean(), values.std()))
        assert (entry.least, entry.most) == (values.min(), values.max())
    city = fields["city"]
    assert city.vocabulary == ["Oslo", "Rom", "Ulm"]
    assert city.unseen == {"train": 0, "validation": 2, "test": 1}
    assert city.missing == {split: sum(row[1] is None and row[4] == split for row in rows) for split in SPLITS}
    note = fields["note"]
    assert note.missing == {split: sum(not row[3] and row[4] == split for row in rows) for split in SPLITS}
    assert note.lengths == [sum(len(row[3] or "").bit_length() == bits for row in rows) for bits in range(7)]


def test_a_list_has_statistics_by_place_and_keeps_what_is_missing_in_it(run_shard, tmp_path):
    rows = [[[float(number), None if number == 3 else 1.5]] for number in range(20)]
    fields = {"vector": {"column": "v", "kind": "numbers", "missing": "keep"}}
    given = {"fields": fields, "splits": {"train": 1.0, "validation": 0.0, "test": 0.0}}
    result = run_shard(source=write_table(tmp_path / "lists", "jsonl", rows, ["v"]), **given)
    assert result.code == 0, result.stderr
    first, second = result.manifest.sample_fields["vector"].statistics
    assert (first.name, first.count, first.mean, first.least, first.most) == ("v[0]", 20, 9.5, 0.0, 19.0)
    assert (second.name, second.count, second.missing, second.mean, second.std) == ("v[1]", 19, 1, 1.5, 0.0)
    found = [one["vector"] for _, one in read_samples(result.folder).values()]
    assert sum(math.isnan(one[1]) for one in found) == 1
    result = run_shard(source=write_table(tmp_path / "ragged", "jsonl", [[[1.0]], [[1.0, 2.0]]], ["v"]), **given)
    assert result.code == 0 and result.manifest.sample_fields["vector"].statistics == []


@pytest.mark.parametrize(
    ("field", "cells", "message"),
    [
        ({"kind": "number"}, [1.0, None], "line 2, column 'x' (field x, number) is empty"),
        ({"kind": "number"}, [1.0, math.nan], "is nan (float): not finite"),
        ({"kind": "number", "missing": "keep"}, [1.0, math.inf], "is inf (float): not finite"),
        ({"kind": "numbers", "missing": "keep"}, [[1.0], None], "column 'x' (field x, numbers) is empty"),
        ({"kind": "category"}, ["a", ""], "column 'x' (field x, category) is empty"),
        ({"kind": "category"}, ["a", 2.5], "is 2.5 (float): neither text nor a whole number"),
        ({"kind": "category"}, ["a", True], "is True (bool): neither text nor a whole number"),
        ({"kind": "category"}, ["a", "\ud800"], "it is not UTF-8"),
        ({"kind": "text"}, ["a", ""], "column 'x' (field x, text) is empty"),
    ],
)
def test_a_cell_that_is_wrong_is_named(run_shard, tmp_path, field, cells, message):
    source = write_table(tmp_path / "wrong", "jsonl", [[cell] for cell in cells], ["x"])
    result = run_shard(source=source, fields={"x": {"column": "x", **field}})
    assert result.code == 2 and "line 2" in result.stderr and message in result.stderr, result.stderr
    is_empty = message.endswith("is empty")
    assert ("sharding.fields.x.missing=keep" in result.stderr) == is_empty


def test_whole_numbers_and_text_are_one_vocabulary(run_shard, tmp_path):
    fields = {"x": {"column": "x", "kind": "category"}}
    result = run_shard(
        source=write_table(tmp_path / "codes", "jsonl", [[10], [9], ["b"], ["10"]], ["x"]),
        fields=fields,
        splits={"train": 1.0, "validation": 0.0, "test": 0.0},
    )
    assert result.code == 0, result.stderr
    assert result.manifest.sample_fields["x"].vocabulary == ["10", "9", "b"]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_column_of_text_among_numbers_is_refused_before_the_first_stage(tmp_path, form):
    fields = {name: field for name, field in FIELDS.items() if name != "city"}
    source = write_table(tmp_path / "table", form, make_rows())
    (problem,) = check_source(ShardingSection(source=source, fields=fields)).problems
    where = {"csv": "line 2", "jsonl": "line 1", "parquet": "row 1"}[form]
    assert f"{where}, column 'city' (field numbers, numbers) is 'only validation' (str)" in problem.given
    assert "sharding.fields.numbers.missing=keep" in problem.todo and "kind: category" in problem.todo


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"a": 1, "b": 2}', '{"a": 1}'], "line 2 has other keys than the first row: it lacks 'b'"),
        (['{"a": 1}', '{"a": 1, "c": 2}'], "line 2 has other keys than the first row: it has 'c' besides"),
        (['{"": 1, "a": 2}'], "has a column '', such as pandas writes"),
        (['{"__index_level_0__": 1, "a": 2}'], "has a column '__index_level_0__', such as pandas writes"),
        (['{"split": "train"}'], "has no column for field x"),
        (["{}", '{"a": 1}'], "has no columns: its first row is empty"),
    ],
)
def test_all_columns_are_those_of_the_first_row(run_shard, tmp_path, lines, message):
    path = tmp_path / "wrong/rows.jsonl"
    path.parent.mkdir()
    path.write_text("\n".join(lines) + "\n")
    result = run_shard(source=str(path), fields={"x": {"columns": ["*"], "kind": "numbers"}})
    assert result.code == 2 and message in result.stderr, result.stderr


def test_a_table_that_begins_with_an_empty_row_has_no_columns(run_shard, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("\na,b\n1,2\n")
    result = run_shard(source=str(path), fields={"x": {"columns": ["*"], "kind": "numbers"}})
    assert result.code == 2 and "has no columns: its first row is empty" in result.stderr, result.stderr


def test_all_columns_are_in_the_order_of_the_file_and_part_of_the_fingerprint(run_shard, tmp_path):
    given = {
        "fields": {"x": {"columns": ["*"], "kind": "numbers"}, "label": {"column": "y", "kind": "number"}},
        "splits": {"train": 1.0, "validation": 0.0, "test": 0.0},
    }
    folders = []
    for header in (["b", "y", "a", "split"], ["a", "y", "b", "split"], ["c", "y", "b", "split"]):
        rows = [[str(number), "3", str(-number), "train"] for number in range(10)]
        result = run_shard(source=write_table(tmp_path / header[0], "csv", rows, header), **given)
        assert result.code == 0, result.stderr
        assert [one.name for one in result.manifest.sample_fields["x"].statistics] == [header[0], header[2]]
        assert {tuple(one["x"]) for _, one in read_samples(result.folder).values()} == {(n, -n) for n in range(10)}
        folders.append(result.folder)
    # The cells of all three are the same.
    assert len(set(folders)) == 3


def test_an_identifier_is_no_category(run_shard, tmp_path, monkeypatch):
    monkeypatch.setattr(manifests, "MAX_CATEGORIES", 30)
    rows = [[f"person {number}"] for number in range(40)]
    fields = {"person": {"column": "x", "kind": "category"}}
    result = run_shard(source=write_table(tmp_path / "ids", "csv", rows, ["x"]), fields=fields)
    assert result.code == 2 and "field person (category) has more than 30 different values" in result.stderr
    assert "identifier" in result.stderr
    result = run_shard(source=write_table(tmp_path / "ids", "csv", rows[:30], ["x"]), fields=fields)
    assert result.code == 0, result.stderr


def test_a_chain_of_increments_keeps_statistics_and_vocabularies(run_shard, tmp_path):
    rows = make_rows()
    given = {"fields": FIELDS, "incremental": True}
    first = run_shard(source=write_table(tmp_path / "table", "csv", rows), **given)
    more = [[1000.0 + n, "Kiel", 3.0, "", split, 5000.0 + n] for n, split in enumerate(("train", "train", "test"))]
    second = run_shard(source=write_table(tmp_path / "table", "csv", rows + more), **given)
    assert second.code == 0 and second.manifest.generation == 1, second.stderr
    before, after = first.manifest.sample_fields, second.manifest.sample_fields
    assert after["numbers"].statistics == before["numbers"].statistics
    assert after["label"].statistics == before["label"].statistics
    assert after["city"].vocabulary == before["city"].vocabulary
    assert after["city"].unseen == {"train": 2, "validation": 2, "test": 2}
    assert after["city"].missing == before["city"].missing
    assert after["note"].missing["train"] == before["note"].missing["train"] + 2
    assert sum(after["note"].lengths) == len(rows) + 3
    # Without tombstones, and with the same statistics.
    third = run_shard("--compact", source=write_table(tmp_path / "table", "csv", rows[1:] + more), **given)
    assert third.code == 0, third.stderr
    compact = third.manifest.sample_fields
    assert compact["numbers"].statistics == before["numbers"].statistics
    assert compact["city"].vocabulary == before["city"].vocabulary
    assert compact["city"].unseen == {"train": 2, "validation": 1, "test": 2}
    assert sum(compact["note"].lengths) == len(rows) + 2


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_text_of_ten_megabytes_is_one_sample(run_shard, tmp_path, form):
    words = 'long text, "quoted"\n'
    rows = [[words * (10_000_000 // len(words)), "a"], ["short", "b"], ["x" * 300_000, "a"]]
    fields = {"text": {"column": "text", "kind": "text"}, "label": {"column": "label", "kind": "class"}}
    result = run_shard(
        source=write_table(tmp_path / "long", form, [[*row, None] for row in rows], ["text", "label", "age"]),
        fields=fields,
        splits={"train": 1.0, "validation": 0.0, "test": 0.0},
        **({"tokenizer": {"vocabulary": 300}} if form == "csv" else {}),
    )
    assert result.code == 0, result.stderr
    found = {one["text"] for _, one in read_samples(result.folder).values()}
    assert found == {row[0] for row in rows}
    assert result.manifest.sample_fields["text"].lengths[-1] == 1
    if result.manifest.tokenizer is not None:
        assert storage.exists(result.manifest.tokenizer.uri(storage.normalise(result.folder)))


def test_copies_of_rows_are_named_by_their_lines(run_shard, tmp_path):
    rows = [[float(number), "Oslo", 1.0, "x", "test" if number == 7 else "train", 0.5] for number in range(20)]
    rows[3] = rows[12] = [*rows[7][:4], "train", 0.5]
    source = write_table(tmp_path / "table", "csv", rows)
    given = {"fields": FIELDS, "splits": {"train": 1.0, "validation": 0.0, "test": 0.0}}
    result = run_shard(source=source, **given)
    assert result.code == 0, result.stderr
    (warning,) = result.manifest.warnings
    assert "2 samples are copies of others; 1 of 1 groups straddle splits (leakage): " in warning
    assert all(f"table.csv line {line} ({split})" in warning for line, split in ((5, "train"), (9, "test")))
    assert "table.csv line 14 (train)" in warning and "row:" not in warning
    result = run_shard(source=source, duplicates="fail", **given)
    assert result.code == 2 and "table.csv line 14 (train)" in result.stderr
