"""Rows that the shipped program of tables reads: cells that it takes, and those that it names."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.predict.runtimes import Arrays, BadInput
from trainer.predict.serving import BadSample, read_table
from trainer.tasks.tabular.predict import KIND, Table

TABLE: dict[str, Any] = {
    "format_version": 1,
    "model": "m",
    "max_batch": 4,
    "output": "value",
    "target": "y",
    "fields": [
        {"name": "numbers", "kind": "numbers", "columns": ["age", "income"], "numbers": 2, "is_list": False},
        {"name": "town", "kind": "category", "columns": ["town"], "vocabulary": ["7", "Ulm"]},
        {"name": "pulse", "kind": "numbers", "columns": ["pulse"], "numbers": 3, "is_list": True},
    ],
}
ROW = {"age": 1, "income": 2, "town": "Ulm", "pulse": [1, 2, 3]}
HEADER = "age,income,town,pulse\n"


def read(path: Path, content: str) -> tuple[Table, Arrays]:
    path.write_text(content)
    table, rows = Table(TABLE), []
    for asked in read_table(str(path), KIND, Table(TABLE).columns):
        assert asked is not None
        if isinstance(asked.value, BadSample):
            raise BadSample(f"{asked.name}: {asked.value}")
        try:
            rows.append(table.prepare(asked))
        except BadSample as error:
            raise BadSample(f"{asked.name}: {error}") from None
    return table, table.arrays_of(rows)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", f'{HEADER}1,2,Ulm,"[1,2,3]"\n1,x,Ulm,"[1,2,3]"\n', "a.csv, row 2: column 'income' is 'x'"),
        ("a.csv", f'{HEADER}1_0,2,Ulm,"[1,2,3]"\n', "column 'age' is '1_0'"),
        ("a.csv", f'{HEADER}1,2,Ulm,"[1,2]"\n', r"column 'pulse' is '\[1,2\]'; .*a list of 3 numbers, as JSON"),
        ("a.csv", f'{HEADER}1,inf,Ulm,"[1,2,3]"\n', "column 'income' is 'inf'"),
        ("a.csv", f"{HEADER}1,2\n", "row 1: it has 2 cells, the header 4"),
        ("a.csv", "age,income,town\n", "the header of .* has 0 columns 'pulse'"),
        ("a.csv", f"age,{HEADER}", "has 2 columns 'age'"),
        ("a.jsonl", json.dumps(ROW) + "\n" + json.dumps(ROW | {"age": "1"}), "row 2: column 'age' is '1'"),
        ("a.jsonl", json.dumps(ROW | {"age": True}), "column 'age' is True"),
        ("a.jsonl", json.dumps(ROW | {"age": 1e39}), r"column 'age' is 1e\+39; .*a number of a size up to 3\.4"),
        ("a.jsonl", json.dumps(ROW | {"town": 1.5}), r"column 'town' is 1\.5; .*text or a whole number"),
        ("a.jsonl", json.dumps(ROW | {"pulse": [1, "2", 3]}), "column 'pulse' is '2'"),
        ("a.jsonl", json.dumps({"age": 1}), "row 1: it lacks 'income', 'town', 'pulse'"),
        ("a.jsonl", "[1]", "row 1: it is no object"),
        ("a.jsonl", "{", "row 1: the line is no JSON"),
        ("a.jsonl", "[" * 100_000, "row 1: the line is no JSON"),
        ("a.jsonl", json.dumps(ROW | {"age": 10**400}), "column 'age' is 1000"),
        ("a.jsonl", json.dumps(ROW | {"pulse": [1, 10**400, 3]}), "column 'pulse' is 1000"),
        ("a.csv", f'{HEADER}1,2,Ulm,"{"[" * 100_000}"\n', "column 'pulse' is .*a list of 3 numbers, as JSON"),
        ("a.txt", "", "is of no known form"),
    ],
)
def test_cells_that_cannot_be_used_are_named(tmp_path: Path, name: str, content: str, said: str) -> None:
    with pytest.raises((BadInput, BadSample)) as caught:
        read(tmp_path / name, content)
    assert re.search(said, str(caught.value), re.DOTALL), caught.value


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.csv cannot be read: No such file"):
        list(read_table(str(tmp_path / "none.csv"), KIND))


def test_missing_values_and_other_categories_are_taken(tmp_path: Path) -> None:
    csv = f'\ufeff{HEADER}, 2.5 ,,"[1,null,3]"\n-1e3,nan,7,"[1,2,3]"\n1,2,Rom,"[1,2,3]"\n'
    table, found = read(tmp_path / "a.CSV", csv)
    expected = np.array([[math.nan, 2.5, 1, math.nan, 3], [-1000, math.nan, 1, 2, 3], [1, 2, 1, 2, 3]], np.float32)
    np.testing.assert_array_equal(found["numbers"], expected)
    assert found["categories"].tolist() == [[0], [1], [0]]
    assert list(table.notes()) == ["note: column 'town': 1 values that training did not see are taken as missing"]
    other = "".join(
        json.dumps(dict(zip(ROW, row, strict=True))) + "\n\n"
        for row in ([None, 2.5, None, [1, None, 3]], [-1000, math.nan, 7, [1, 2, 3]], [1, 2, "Rom", [1, 2, 3]])
    )
    _, same = read(tmp_path / "a.jsonl", other)
    np.testing.assert_array_equal(same["numbers"], expected)
    assert same["categories"].tolist() == found["categories"].tolist()
