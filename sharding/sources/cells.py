"""The cells of a row of named fields (`sharding.fields`): each is of its kind, or the row is named.

A row is parsed by what is usual, all its numbers at once and each name looked up among those that came before. What is
not usual is parsed again, cell by cell, which says what is wrong, if anything is.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from contracts.config import CLASS_KINDS, FILE_KINDS, FieldKind, FieldSection, ShardingSection
from contracts.config.fields import MISSING_KINDS, find_rest
from contracts.errors import DataError
from sharding.limits import encode_name
from sharding.sources.fields import Fields, pack_numbers, to_json
from sharding.sources.rows import (
    TO_UTF8,
    Row,
    encode_text,
    is_undecoded,
    parse_group,
    parse_labels,
    parse_list_cell,
    parse_own_split,
)

_ALLOWED = {
    "image": "the URI or path of an image file",
    "bytes": "the URI or path of a file",
    "text": "text",
    "class": "text or a whole number",
    "classes": "a list of text or whole numbers (in a CSV as JSON, or with sharding.label_separator)",
    "category": "text or a whole number",
    "number": "a finite number",
    "numbers": "a list of finite numbers (in a CSV as JSON), or with columns one in each",
    "json": "a JSON value without NaN and infinity, other than null",
}
# What a cell that does not fit its kind raises.
_MISFITS = (ValueError, TypeError, OverflowError, RecursionError)
# Of a list of classes that is empty, as `to_json` has it.
_NO_CLASSES = b"[]"
# Names whose parsed form is kept: classes and categories come again and again.
_KEPT_NAMES = 1 << 14
_NUMBER_TYPES = {int, float}
# Numbers with commas, and what begins as dates do: 4,069 and 2024-01-31, 31.01.2024, 1/31/24.
_COMMA = re.compile(r"[+-]?\d[\d. ]*(,\d+)+(\.\d+)?")
_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}")
# Cells of a row: those of a CSV by place, those of other files by name.
_Cells = Sequence[Any] | Mapping[str, Any]
_Pick = Callable[[Any], Any]


class Values(NamedTuple):
    """The fields of a row, as `Fields.pack` takes them."""

    numbers: Sequence[float]
    """Of `Fields.numbers`; NaN where one is missing."""
    contents: list[Any]
    """Of `Fields.contents`; of a file the cell."""
    label: bytes
    """What stands for the label in the identity of a row."""
    further: list[tuple[str | int, ...]]
    """Labels of `Fields.vocabularies`."""


class RowParser:
    """Parses the rows of one file.

    Args:
        section: The fields; `columns` are names of columns (tables.name_columns).
        shown: Name of the file in errors.
        header: Columns of a CSV; None: rows are mappings, and cells have types.
        holds_json: Cells cannot hold JSON values themselves: text in them is parsed.

    Raises:
        DataError: All other columns are asked for, and the file has none.
    """

    def __init__(
        self, section: ShardingSection, shown: str, header: Sequence[str] | None, *, holds_json: bool = True
    ) -> None:
        fields = Fields.of(section)
        assert fields is not None
        if find_rest(section.fields) is not None:
            raise DataError(
                f"{shown} has no columns: its first row is empty",
                allowed='names of columns in the first row, where sharding.fields has columns: ["*"]',
                todo="remove the empty row, or name the columns",
            )
        self._section, self._fields, self._shown = section, fields, shown
        self._is_csv, self._holds_json = header is not None, holds_json
        self._keys: Mapping[str, Any] | None = None
        if header is not None:
            self._keys = {name: at for at, name in enumerate(header)}
        self._has_splits = header is None or section.split_column in header
        numbers = [section.fields[name] for name in fields.numbers]
        self._pick_numbers = self._pick([field.column for field in numbers]) if numbers else None
        self._keeps_all = all(field.missing == "keep" for field in numbers)
        self._contents = [self._maker(name) for name in fields.contents]
        self._named = [fields.contents.index(name) for name in fields.vocabularies]
        self._label = self._maker(fields.label) if fields.label is not None else None
        self._is_list = fields.label is not None and fields.kinds[fields.label] == "classes"
        self._file = section.fields[fields.file].column if fields.file is not None else None

    def parse(self, cells: _Cells, place: str) -> Row:
        """Return a row.

        Raises:
            DataError: A cell is empty, or does not fit its kind.
        """
        try:
            numbers: Sequence[float] = ()
            if self._pick_numbers is not None:
                numbers = self._parse_numbers(self._pick_numbers(cells), keeps=self._keeps_all)
            contents = [make(cells) for make in self._contents]
            labels, label = self._label(cells) if self._label is not None else ((), b"")
            further = self._take_labels(contents) if self._named else []
            uri = self._cell(cells, self._file) if self._file is not None else ""
        except (*_MISFITS, DataError):
            return self._parse_slowly(cells, place)
        return self._row(cells, place, uri, labels, Values(numbers, contents, label, further))

    def _row(self, cells: _Cells, place: str, uri: str | bytes, labels: tuple[str | int, ...], values: Values) -> Row:
        section = self._section
        own_split = group = None
        if self._has_splits:
            split = self._cell(cells, section.split_column, optional=True)
            if split is not None and split != "":
                own_split = parse_own_split(split, f"{self._shown}, {place}")
        if section.group_by:
            group = parse_group(self._cell(cells, section.group_by), section.group_by, f"{self._shown}, {place}")
        return Row(place, uri, labels, self._is_list, own_split, group, values)

    def _cell(self, cells: Any, column: str, *, optional: bool = False) -> Any:
        if self._keys is None:
            return cells.get(column) if optional else cells[column]
        at = self._keys.get(column)
        return None if at is None else cells[at]

    def _pick(self, columns: Sequence[str]) -> _Pick:
        """Return a function from the cells of a row to those of some columns."""
        keys = columns if self._keys is None else [self._keys[column] for column in columns]
        if len(keys) > 1:
            return itemgetter(*keys)
        return lambda cells: [cells[key] for key in keys]

    def _parse_numbers(self, cells: Sequence[Any], *, keeps: bool) -> Sequence[float]:
        """Return numbers; ValueError where one is not usual."""
        if self._is_csv:
            numbers = [float(one) if one else math.nan for one in cells] if keeps else [*map(float, cells)]
            if "_" in "".join(cells):
                raise ValueError
        elif {*map(type, cells)} <= _NUMBER_TYPES:
            numbers = [*map(float, cells)]
        elif keeps:
            numbers = [math.nan if one is None else _to_float(one, keeps=True) for one in cells]
        else:
            raise ValueError
        if not math.isfinite(sum(numbers)):
            if not keeps or math.inf in numbers or -math.inf in numbers:
                raise ValueError
            # One NaN of all that there are.
            numbers = [math.nan if one != one else one for one in numbers]
        return numbers

    def _maker(self, name: str) -> Callable[[Any], Any]:
        """Return a function from the cells of a row to the content of a field; of classes, to labels and content."""
        field = self._section.fields[name]
        if field.columns:
            several, keeps = self._pick(field.columns), field.missing == "keep"
            return lambda cells: pack_numbers(self._parse_numbers(several(cells), keeps=keeps))
        key = field.column if self._keys is None else self._keys[field.column]
        if field.kind not in ("class", "category"):
            return lambda cells: self._parse(field, cells[key], "")
        known: dict[str, Any] = {}

        def look_up(cells: Any) -> Any:
            cell = cells[key]
            if type(cell) is not str:
                return self._parse(field, cell, "")
            found = known.get(cell)
            if found is None:
                found = self._parse(field, cell, "")
                if len(known) < _KEPT_NAMES:
                    known[cell] = found
            return found

        return look_up

    def _take_labels(self, contents: list[Any]) -> list[tuple[str | int, ...]]:
        """Return the labels of further fields of classes, whose contents stay in the list."""
        found = []
        for at in self._named:
            labels, contents[at] = contents[at]
            found.append(labels)
        return found

    def _parse_slowly(self, cells: _Cells, place: str) -> Row:
        where = f"{self._shown}, {place}"
        found: dict[str, Any] = {}
        for name, field in self._section.fields.items():
            parsed = []
            for column in field.columns or (field.column,):
                cell = self._cell(cells, column)
                try:
                    parsed.append(self._parse(field, cell, where))
                except _MISFITS as error:
                    raise _wrong(
                        field, name, column, cell, where, str(error), has_images=self._fields.image is not None
                    ) from None
            found[name] = pack_numbers(parsed) if field.columns else parsed[0]
        fields = self._fields
        contents = [found[name] for name in fields.contents]
        further = self._take_labels(contents)
        labels, label = found[fields.label] if fields.label is not None else ((), b"")
        values = Values([found[name] for name in fields.numbers], contents, label, further)
        return self._row(cells, place, found[fields.file] if fields.file is not None else "", labels, values)

    def _parse(self, field: FieldSection, cell: Any, where: str) -> Any:
        """Return the content of a cell; of classes, labels and content; of a number, the number."""
        kind = field.kind
        keeps = field.missing == "keep"
        if cell is None or cell == "" or cell == b"":
            # A list that is missing has no length.
            if not keeps or (kind == "numbers" and not field.columns):
                raise ValueError
            if kind == "classes":
                return (), _NO_CLASSES
            return b"" if kind in ("text", "category") else math.nan
        if kind in FILE_KINDS:
            if not isinstance(cell, str | bytes):
                raise ValueError
            return cell
        if kind in CLASS_KINDS:
            return self._parse_labels(kind, cell, where)
        if kind in ("text", "category"):
            return _encode(cell, allows_numbers=kind == "category")
        if kind == "number" or field.columns:
            return _to_float(float(cell) if self._is_csv and "_" not in cell else cell, keeps=keeps)
        if isinstance(cell, str) and self._holds_json:
            cell = json.loads(cell)
        if kind == "numbers":
            if not isinstance(cell, list | tuple) or not cell:
                raise ValueError("no list of numbers")
            return pack_numbers([math.nan if one is None and keeps else _to_float(one, keeps=keeps) for one in cell])
        if cell is None:
            raise ValueError
        # What a Parquet file holds may be no JSON: a date.
        return to_json(cell)

    def _parse_labels(self, kind: FieldKind, cell: Any, where: str) -> tuple[tuple[str | int, ...], bytes]:
        separator = self._section.label_separator
        if self._is_csv and not separator:
            cell = parse_list_cell(cell, where)
        labels, is_list = parse_labels(cell, separator if kind == "classes" else None, where)
        if is_list != (kind == "classes"):
            raise ValueError("a list" if is_list else "no list")
        for label in labels:
            encode_text(str(label), where)
        names = [encode_name(os.fsencode(str(label))) for label in labels]
        return labels, to_json(names) if is_list else names[0].encode()


def _to_float(value: Any, *, keeps: bool) -> float:
    """Return a number; where it may be missing, NaN for one that is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("no number")
    if math.isfinite(number := float(value)):
        return number
    if keeps and math.isnan(number):
        return math.nan
    raise ValueError("not finite")


def _encode(value: Any, *, allows_numbers: bool) -> bytes:
    if not isinstance(value, str):
        if not allows_numbers:
            raise ValueError
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("neither text nor a whole number")
        return b"%d" % value
    try:
        return value.encode()
    except UnicodeEncodeError:
        # Bytes that are no UTF-8 come as half characters.
        raise ValueError("it is not UTF-8") from None


def _wrong(
    field: FieldSection, name: str, column: str, cell: Any, where: str, reason: str, *, has_images: bool
) -> DataError:
    """Return the error of a cell that its field cannot take."""
    place = f"{where}, column {column!r} (field {name}, {field.kind})"
    if cell is None or cell == "" or cell == b"":
        keep = f", or set sharding.fields.{name}.missing=keep" if field.kind in MISSING_KINDS else ""
        return DataError(f"{place} is empty", allowed=_ALLOWED[field.kind], todo=f"correct the row{keep}")
    shown = repr(cell)
    shown = shown if len(shown) <= 100 else shown[:100] + "..."
    return DataError(
        f"{place} is {shown} ({type(cell).__name__}){f': {reason}' if reason else ''}",
        allowed=_ALLOWED[field.kind],
        todo=_how_to_correct(field, name, column, cell, reason, has_images=has_images),
    )


def _how_to_correct(field: FieldSection, name: str, column: str, cell: Any, reason: str, *, has_images: bool) -> str:
    """Return what to do about a cell that its field cannot take."""
    if isinstance(cell, str) and is_undecoded(cell):
        return TO_UTF8
    if field.kind in ("number", "numbers") and isinstance(cell, str):
        return _how_to_write_numbers(field, name, column, cell.strip())
    if field.kind == "class" and reason == "a list":
        several = f"; or, for several labels, set sharding.fields.{name}.kind=classes and task.name=image_multilabel"
        return "write one label in each row" + (several if has_images else "")
    return f"correct the row, or set sharding.fields.{name}.kind to what the column holds"


def _how_to_write_numbers(field: FieldSection, name: str, column: str, text: str) -> str:
    """Return what to do about text where a number is expected."""
    if _COMMA.fullmatch(text):
        return "write numbers with a decimal point, and without separators of thousands: 4.069, or 4069"
    if _DATE.match(text):
        return "write dates as numbers, e.g. as days since a certain one" + (
            f", or name the columns in sharding.fields.{name}.columns without it" if field.columns else ""
        )
    missing = f"correct the row (a missing value is an empty cell, with sharding.fields.{name}.missing=keep)"
    if field.columns:
        return (
            f"{missing}; or, where the column holds text, give it a field of its own: {{column: {column!r}, kind: "
            "category}, or kind: text for what is not to be learnt from, such as a name or number of the row"
        )
    return f"{missing}, or set sharding.fields.{name}.kind to what the column holds (class: names of classes)"
