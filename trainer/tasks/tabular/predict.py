"""Answer rows of a table with the ONNX model of this export.

    python predict.py ROWS.csv [ROWS.jsonl ...] [--top K] [--format json|text|csv] [--url http://HOST:8000]
    python predict.py --json-lines FILE        a JSON object a line; - is standard input

It needs Python 3.10 or newer, numpy and onnxruntime, and beside it
serving.py, reading.py and runtimes.py (options, samples and
answers: serving.py says more), table.json (columns, vocabularies of categories, names of classes) and the model that it
names. Rows have the columns of the table that the model was trained on; others are passed over. An empty cell, or null,
is a missing value: the model takes the column's mean. A category that training did not see is taken as missing, and a
note on stderr counts them. The answer is the likeliest class with its probability, with --top the K likeliest, or a
value. Exit codes: 0; 2 for a bad argument, a folder that is not whole, or a cell that cannot be used, named by row and
column: all other rows are answered.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from trainer.predict import runtimes, serving
else:
    # The shipped file: isolated (-I), Python does not look into its folder, and no file is to be written there.
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    sys.dont_write_bytecode = True
    import reading

    # Before anything else imports them, which would find files of this folder first.
    reading.require_packages({"numpy": "numpy"})
    import runtimes
    import serving

import numpy as np

TABLE_NAME = "table.json"
KIND = serving.Kind(
    noun="rows",
    argument="ROWS",
    allowed="rows with all columns that the model was trained on; a value that is missing is an empty cell, or null",
    column=None,
    default_format="json",
)
NUMBERS, CATEGORIES = "numbers", "categories"
# Of a cell in a message.
_SHOWN = 80
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Field:
    """A field of the table: what one or several columns hold."""

    name: str
    kind: str
    """number: one number; numbers: several, from a column each, or a list in one; category: text."""
    columns: list[str]
    numbers: int = 0
    """How many there are."""
    is_list: bool = False
    """Whether the one column holds a list."""
    vocabulary: list[str] = field(default_factory=list)
    """Values of a category that training saw."""


class Table:
    """What table.json says, and rows as arrays (serving.Model).

    Args:
        said: Its content.

    Attributes:
        unseen: Values that training did not see, counted by column.
    """

    def __init__(self, said: Mapping[str, Any]) -> None:
        self.model: str = said["model"]
        self.max_batch: int = said["max_batch"]
        self.output: str = said["output"]
        self.labels: list[str] | None = said.get("labels")
        known = {one.name for one in fields(Field)}
        self.fields = [Field(**{name: value for name, value in one.items() if name in known}) for one in said["fields"]]
        self.unseen: Counter[str] = Counter()
        self._places = [{value: n for n, value in enumerate(one.vocabulary, start=1)} for one in self.fields]

    @classmethod
    def read(cls, path: Path) -> Table:
        """Read table.json.

        Raises:
            BadFolder: It is missing, or is none.
        """
        try:
            said = json.loads(path.read_bytes())
            if said["format_version"] != 1:
                raise ValueError(f"format version {said['format_version']}")
            return cls(said)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise runtimes.BadFolder(
                f"{path}: {type(error).__name__}: {error}", allowed="the file that the export wrote"
            ) from None

    @property
    def widths(self) -> dict[str, int]:
        """Columns of each of the model's inputs, by name; without one that would be empty."""
        categories = sum(one.kind == "category" for one in self.fields)
        widths = {NUMBERS: sum(one.numbers for one in self.fields), CATEGORIES: categories}
        return {name: width for name, width in widths.items() if width}

    @property
    def columns(self) -> list[str]:
        """The columns that a row must have."""
        return [column for one in self.fields for column in one.columns]

    @property
    def graph(self) -> runtimes.Graph:
        """What is said of the graph."""
        types = {NUMBERS: "float32", CATEGORIES: "int64"}
        inputs = {name: (types[name], (None, width)) for name, width in self.widths.items()}
        return runtimes.Graph(self.model, inputs, [self.output])

    @property
    def batch(self) -> int:
        """Rows at a time."""
        return self.max_batch

    def expand(self, argument: str) -> Iterator[serving.Asked] | None:
        """Return None: it is a file of rows."""
        return None

    def prepare(self, asked: serving.Asked) -> tuple[list[float], list[int]]:
        """Return the numbers of a row, nan where one is missing, and the places of its categories, 0 where one is."""
        numbers: list[float] = []
        categories: list[int] = []
        for one, places in zip(self.fields, self._places, strict=True):
            if one.kind == "category":
                categories.append(self._place(asked, one.columns[0], places))
            elif one.is_list:
                numbers += _numbers_in(asked, one)
            else:
                numbers += [_number(asked.value[column], asked, column) for column in one.columns]
        return numbers, categories

    def arrays_of(self, rows: Sequence[tuple[list[float], list[int]]]) -> runtimes.Arrays:
        """Return `numbers` [B, N] float32 and `categories` [B, K] int64 of prepared rows; without one that is empty."""
        numbers, categories = zip(*rows, strict=True)
        made: runtimes.Arrays = {NUMBERS: np.array(numbers, np.float32), CATEGORIES: np.array(categories, np.int64)}
        return {name: array for name, array in made.items() if array.shape[1]}

    def _place(self, row: serving.Asked, column: str, places: Mapping[str, int]) -> int:
        cell = row.value[column]
        if cell is None or cell == "":
            return 0
        if isinstance(cell, bool) or not isinstance(cell, str | int):
            raise _bad_cell(row, column, "text or a whole number")
        place = places.get(str(cell), 0)
        self.unseen[column] += not place
        return place

    def answer(
        self, samples: Sequence[tuple[list[float], list[int]]], run: runtimes.Runner, top: int | None
    ) -> list[dict[str, Any]]:
        """Return what is said of each row.

        Raises:
            BadFolder: The model gave something else than table.json says.
            BadInput: Several labels are asked for, and there are none.
        """
        found = run(self.arrays_of(samples))[self.output]
        if not np.isfinite(found).all():
            raise runtimes.BadFolder(
                "the model's outputs are not finite numbers", allowed="finite numbers", todo="train again"
            )
        if self.labels is None:
            if top is not None:
                raise runtimes.BadInput(
                    f"--top {top}, and the answer to a row is a value", allowed="no --top", todo="leave it out"
                )
            return [{"value": float(value)} for value in found]
        logits = runtimes.check_logits(found, len(samples), self.labels)
        return [runtimes.likeliest_of(row, self.labels, top or 1) for row in logits]

    def notes(self) -> Iterator[str]:
        """Yield a line for each column with values that training did not see."""
        for column, count in sorted(self.unseen.items()):
            if count:
                yield f"note: column {column!r}: {count} values that training did not see are taken as missing"


def open_files(take: serving.Take) -> Table:
    """Open table.json.

    Raises:
        BadFolder: It is missing, or is none.
    """
    return Table.read(take(TABLE_NAME))


def _number(cell: Any, row: serving.Asked, column: str) -> float:
    """Return a number; nan where it is missing."""
    if cell is None or cell == "":
        return math.nan
    value = math.inf
    if row.is_text and isinstance(cell, str) and "_" not in cell:
        with suppress(ValueError):
            value = float(cell)
    elif isinstance(cell, int | float) and not isinstance(cell, bool):
        # A whole number of JSON may have any number of digits.
        with suppress(OverflowError):
            value = float(cell)
    if not (math.isnan(value) or abs(value) <= _LARGEST):
        raise _bad_cell(row, column, f"a number of a size up to {_LARGEST:g}, or nothing where it is missing")
    return value


def _numbers_in(row: serving.Asked, one: Field) -> list[float]:
    """Return the numbers of a cell that holds a list."""
    (column,) = one.columns
    cell = row.value[column]
    if row.is_text:
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            cell = None
    if not isinstance(cell, list) or len(cell) != one.numbers:
        raise _bad_cell(row, column, f"a list of {one.numbers} numbers" + (", as JSON" if row.is_text else ""))
    return [_number(value, serving.Asked(row.name, {column: value}), column) for value in cell]


def _bad_cell(row: serving.Asked, column: str, allowed: str) -> serving.BadSample:
    shown = repr(row.value[column])
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return serving.BadSample(f"column {column!r} is {shown}; allowed: {allowed}")


if __name__ == "__main__":
    sys.exit(serving.run_program(KIND, open_files, __file__, "Answer rows of a table."))
