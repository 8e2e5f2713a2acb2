"""Answer rows of a table with the ONNX model that lies beside this file.

    python predict.py ROWS.csv [ROWS.jsonl ...] [--threads N] [--model FILE]        - is standard input, as JSON lines

It needs Python 3.10 or newer, numpy and onnxruntime, and two files in its own folder: table.json (columns, vocabularies
of categories, names of classes) and the model that it names. Rows have the columns of the table that the model was
trained on; others are passed over. An empty cell, or null, is a missing value: the model takes the column's mean. A
category that training did not see is taken as missing, and a note on stderr counts them. For each row, in their order,
it prints a line of JSON: {"label": ..., "score": ...}, the likeliest class with its probability, or {"value": ...}.
Exit codes: 0; 2 for a bad argument, a folder that is not whole, or a cell that cannot be used, named by row and column:
rows before it may have been answered.

ONNX Runtime runs on the CPU without graph optimisation, as in the model's proof: its fusions were seen to change what a
sound quantised model computes. Batches are cut to `max_batch` of table.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

TABLE_NAME = "table.json"
EXIT_BAD_INPUT = 2
NUMBERS, CATEGORIES = "numbers", "categories"
JSON_SUFFIXES = (".jsonl", ".ndjson")
# Of a cell in a message.
_SHOWN = 80
_LARGEST = float(np.finfo(np.float32).max)

Arrays = dict[str, npt.NDArray[Any]]
Runner = Callable[[Mapping[str, npt.NDArray[Any]]], Arrays]
"""Maps inputs by name to outputs by name, of at most `max_batch` rows."""


class BadInput(Exception):
    """Something that was given cannot be used; the message says what was found, what is allowed and what to do."""

    def __init__(self, found: str, *, allowed: str, todo: str) -> None:
        super().__init__(f"{found}\n  allowed: {allowed}\n  to do: {todo}")


class BadFolder(BadInput):
    """The files beside this one cannot be used."""

    def __init__(self, found: str, *, allowed: str, todo: str = "export again, or copy the whole folder again") -> None:
        super().__init__(found, allowed=allowed, todo=todo)


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


@dataclass(frozen=True)
class Row:
    """A row of a file."""

    where: str
    """File and number, for messages."""
    cells: Mapping[str, Any]
    is_text: bool
    """Whether all cells are text (CSV)."""


class Table:
    """What table.json says, and rows as arrays.

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
            raise BadFolder(
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

    def arrays_of(self, rows: Iterable[Row]) -> Arrays:
        """Return `numbers` [B, N] float32, nan where one is missing, and `categories` [B, K] int64, 0 where one is.

        Raises:
            BadInput: A cell cannot be used.
        """
        numbers: list[list[float]] = []
        categories: list[list[int]] = []
        for row in rows:
            numbers.append([])
            categories.append([])
            for one, places in zip(self.fields, self._places, strict=True):
                if one.kind == "category":
                    categories[-1].append(self._place(row, one.columns[0], places))
                elif one.is_list:
                    numbers[-1] += _numbers_in(row, one)
                else:
                    numbers[-1] += [_number(row.cells[column], row, column) for column in one.columns]
        made: Arrays = {NUMBERS: np.array(numbers, np.float32), CATEGORIES: np.array(categories, np.int64)}
        return {name: array for name, array in made.items() if array.shape[1]}

    def _place(self, row: Row, column: str, places: Mapping[str, int]) -> int:
        cell = row.cells[column]
        if cell is None or cell == "":
            return 0
        if isinstance(cell, bool) or not isinstance(cell, str | int):
            raise _bad_cell(row, column, "text or a whole number")
        place = places.get(str(cell), 0)
        self.unseen[column] += not place
        return place

    def answers(self, outputs: Arrays) -> list[dict[str, Any]]:
        """Return what is said of each row.

        Raises:
            BadFolder: The model gave something else than table.json says.
        """
        found = outputs[self.output]
        if not np.isfinite(found).all():
            raise BadFolder("the model's outputs are not finite numbers", allowed="finite numbers", todo="train again")
        if self.labels is None:
            return [{"value": float(value)} for value in found]
        if found.shape[1:] != (len(self.labels),):
            raise BadFolder(f"the model gave {list(found.shape)} for {len(self.labels)} labels", allowed="one for each")
        scores = softmax(found)
        # Of equal ones the first counts.
        places = found.argmax(axis=1)
        return [
            {"label": self.labels[place], "score": float(own[place])}
            for place, own in zip(places.tolist(), scores, strict=True)
        ]


def softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Map logits [..., classes] to probabilities."""
    powers: npt.NDArray[np.float64] = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    powers /= powers.sum(axis=-1, keepdims=True)
    return powers


def answer(table: Table, run: Runner, rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """Yield what is said of each row, in their order; a batch of rows at a time is in memory.

    Raises:
        BadInput: A cell cannot be used.
    """
    for batch in _batches(rows, table.max_batch):
        yield from table.answers(run(table.arrays_of(batch)))


def notes(table: Table) -> Iterator[str]:
    """Yield a line for each column with values that training did not see."""
    for column, count in sorted(table.unseen.items()):
        if count:
            yield f"note: column {column!r}: {count} values that training did not see are taken as missing"


# --- rows -------------------------------------------------------------------------------------------------------------


def read_rows(files: Iterable[str], table: Table) -> Iterator[Row]:
    """Yield the rows of files: CSV with a header, or a JSON object a line.

    Args:
        files: Paths; - is standard input, as JSON lines.
        table: Whose columns they must have.

    Raises:
        BadInput: A file cannot be read, or a row lacks a column.
    """
    for name in files:
        is_csv = name.lower().endswith(".csv")
        if not is_csv and name != "-" and not name.lower().endswith(JSON_SUFFIXES):
            raise BadInput(
                f"{name} is of no known form",
                allowed=f".csv, {', '.join(JSON_SUFFIXES)}, or - for JSON lines from standard input",
                todo="name the file by what it holds",
            )
        try:
            with nullcontext(sys.stdin) if name == "-" else open(name, encoding="utf-8-sig", newline="") as stream:
                yield from _csv_rows(stream, name, table) if is_csv else _json_rows(stream, name, table)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadInput(
                f"{name} cannot be read: {reason}", allowed="a file of rows as UTF-8", todo="correct it"
            ) from None


def _csv_rows(stream: TextIO, name: str, table: Table) -> Iterator[Row]:
    csv.field_size_limit(1 << 30)
    reader = csv.reader(stream, strict=True)
    header = next(reader, [])
    _require_columns(header, f"the header of {name}", table)
    for column in table.columns:
        if header.count(column) > 1:
            raise BadInput(f"{name} has {header.count(column)} columns {column!r}", allowed="one", todo="rename one")
    for number, cells in enumerate((cells for cells in reader if cells), start=1):
        where = f"{name}, row {number}"
        if len(cells) != len(header):
            raise BadInput(
                f"{where} (line {reader.line_num}) has {len(cells)} cells",
                allowed=f"{len(header)}, as the header has",
                todo="correct the row",
            )
        yield Row(where, dict(zip(header, cells, strict=True)), is_text=True)


def _json_rows(stream: TextIO, name: str, table: Table) -> Iterator[Row]:
    for number, line in enumerate((line for line in stream if line.strip()), start=1):
        where = f"{name}, row {number}"
        try:
            cells = json.loads(line)
        except ValueError as error:
            raise BadInput(f"{where} is no JSON: {error}", allowed="an object a line", todo="correct the row") from None
        if not isinstance(cells, dict):
            raise BadInput(f"{where} is a {type(cells).__name__}", allowed="an object a line", todo="correct the row")
        _require_columns(cells, where, table)
        yield Row(where, cells, is_text=False)


def _require_columns(found: Iterable[str], where: str, table: Table) -> None:
    there = set(found)
    if missing := [column for column in table.columns if column not in there]:
        raise BadInput(
            f"{where} lacks {', '.join(map(repr, missing[:5]))}{'' if len(missing) < 6 else ', ...'}",
            allowed="all columns that the model was trained on; a value that is missing is an empty cell, or null",
            todo="add the column, or correct its name",
        )


def _number(cell: Any, row: Row, column: str) -> float:
    """Return a number; nan where it is missing."""
    if cell is None or cell == "":
        return math.nan
    value = math.inf
    if row.is_text and isinstance(cell, str) and "_" not in cell:
        with suppress(ValueError):
            value = float(cell)
    elif isinstance(cell, int | float) and not isinstance(cell, bool):
        value = cell
    if not (math.isnan(value) or abs(value) <= _LARGEST):
        raise _bad_cell(row, column, f"a number of a size up to {_LARGEST:g}, or nothing where it is missing")
    return float(value)


def _numbers_in(row: Row, one: Field) -> list[float]:
    """Return the numbers of a cell that holds a list."""
    (column,) = one.columns
    cell = row.cells[column]
    if row.is_text:
        try:
            cell = json.loads(cell)
        except ValueError:
            cell = None
    if not isinstance(cell, list) or len(cell) != one.numbers:
        raise _bad_cell(row, column, f"a list of {one.numbers} numbers" + (", as JSON" if row.is_text else ""))
    return [_number(value, Row(row.where, {column: value}, is_text=False), column) for value in cell]


def _bad_cell(row: Row, column: str, allowed: str) -> BadInput:
    shown = repr(row.cells[column])
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return BadInput(f"{row.where}, column {column!r} is {shown}", allowed=allowed, todo="correct the cell")


def _batches(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


# --- the model --------------------------------------------------------------------------------------------------------


def open_model(path: Path, table: Table, threads: int) -> Runner:
    """Return a function that runs an ONNX file on the CPU, with graph optimisation off (see the top of this file).

    Raises:
        BadFolder: The file is missing, is no model, or does not give what table.json says.
    """
    if not path.is_file():
        raise BadFolder(f"{path} is not there", allowed="the ONNX model beside predict.py")
    # Else it reports its use to its maker while it is loaded.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors: they are raised as well
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - its exceptions have no class in common
        raise BadFolder(f"{path} does not load: {error}", allowed="a whole ONNX model") from None
    taken = {item.name: item.shape[1] for item in session.get_inputs()}
    given = [item.name for item in session.get_outputs()]
    if taken != table.widths or table.output not in given:
        raise BadFolder(
            f"{path.name} takes {taken} and gives {given}, {TABLE_NAME} says {table.widths} and {table.output}",
            allowed=f"a model and a {TABLE_NAME} of one export",
        )

    def run(inputs: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        return {table.output: session.run([table.output], dict(inputs))[0]}

    return run


def main(arguments: list[str] | None = None) -> int:
    """Run the command line (see the top of this file); return the exit code."""
    options = _parse(arguments)
    # Not the link's folder, where this file is reached by one.
    folder = Path(__file__).resolve().parent
    try:
        table = Table.read(folder / TABLE_NAME)
        run = open_model(folder / (options.model or table.model), table, options.threads)
        for said in answer(table, run, read_rows(options.rows, table)):
            print(json.dumps(said, ensure_ascii=False))
    except BadInput as error:
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    for note in notes(table):
        print(note, file=sys.stderr)
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Answer rows of a table.", allow_abbrev=False)
    parser.add_argument("rows", nargs="+", metavar="ROWS", help="CSV or JSONL files; - is standard input, JSON lines")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of ONNX Runtime [1]")
    parser.add_argument("--model", metavar="FILE", help="another model of the same folder")
    options = parser.parse_args(arguments)
    if options.threads < 1:
        parser.error(f"--threads {options.threads}: allowed are whole numbers from 1")
    return options


if __name__ == "__main__":
    try:
        # Names of classes may be anything, and a terminal's encoding too.
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads the answers has seen enough: nothing is left to be flushed at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_BAD_INPUT
    sys.exit(code)
