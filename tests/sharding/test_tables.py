"""Tables and texts: several columns in one field, categories, missing cells, and what the manifest says of them."""

import csv
import json
import math

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from contracts.config import SPLITS
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
