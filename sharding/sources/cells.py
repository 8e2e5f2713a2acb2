"""The cells of a row of named fields (`sharding.fields`): each is of its kind, or the row is named."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from contracts.config import CLASS_KINDS, FILE_KINDS, FieldKind, FieldSection, ShardingSection
from contracts.errors import DataError
from sharding.limits import encode_name
from sharding.sources.fields import Fields, to_json
from sharding.sources.rows import (
    TO_UTF8,
    Row,
    encode_text,
    is_undecoded,
    parse_group,
    parse_labels,
    parse_list_cell,
    parse_own_split,
    replace_halves,
)

_ALLOWED = {
    "image": "the URI or path of an image file",
    "bytes": "the URI or path of a file",
    "text": "text",
    "class": "text, a whole number or a boolean",
    "classes": "a list of text, whole numbers or booleans (in a CSV as JSON, or with sharding.label_separator)",
    "number": "a finite number",
    "json": "a JSON value without NaN and infinity, other than null",
}
# What a cell that does not fit its kind raises.
_MISFITS = (ValueError, TypeError, OverflowError, RecursionError)
# Numbers with commas, and what begins as dates do: 4,069 and 2024-01-31, 31.01.2024, 1/31/24.
_COMMA = re.compile(r"[+-]?\d[\d. ]*(,\d+)+(\.\d+)?")
_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}")
# Cells of a row: those of a CSV by place, those of other files by name.
_Cells = Sequence[Any] | Mapping[str, Any]


class Values(NamedTuple):
    """The fields of a row, as `Fields.pack` takes them."""

    numbers: Sequence[float]
    """Of `Fields.numbers`."""
    contents: list[Any]
    """Of `Fields.contents`; of a file the cell."""
    label: bytes
    """What stands for the label in the identity of a row."""
    further: list[tuple[str | int, ...]]
    """Labels of `Fields.vocabularies`."""
    has_halves: bool = False
    """Whether halves of characters were replaced in its texts."""


class RowParser:
    """Parses the rows of one file.

    Args:
        section: The fields.
        shown: Name of the file in errors.
        header: Columns of a CSV; None: rows are mappings, and cells have types.
        holds_json: Cells cannot hold JSON values themselves: text in them is parsed.
    """

    def __init__(
        self, section: ShardingSection, shown: str, header: Sequence[str] | None, *, holds_json: bool = True
    ) -> None:
        fields = Fields.of(section)
        assert fields is not None
        self._section, self._fields, self._shown = section, fields, shown
        self._is_csv, self._holds_json = header is not None, holds_json
        self._keys: Mapping[str, Any] | None = None
        if header is not None:
            self._keys = {name: at for at, name in enumerate(header)}
        self._has_splits = header is None or section.split_column in header
        self._is_list = fields.label is not None and fields.kinds[fields.label] == "classes"

    def parse(self, cells: _Cells, place: str, *, is_utf8: bool = False) -> Row:
        """Return a row.

        Args:
            cells: Its cells.
            place: Where it stands.
            is_utf8: Its bytes were UTF-8: surrogates in its text are halves of characters, which are replaced.

        Raises:
            DataError: A cell is empty, or does not fit its kind.
        """
        where = f"{self._shown}, {place}"
        found: dict[str, Any] = {}
        has_halves = False
        for name, field in self._section.fields.items():
            cell = self._cell(cells, field.column)
            try:
                if is_utf8 and field.kind in ("text", "json") and (whole := _replace_halves(cell)) != cell:
                    cell, has_halves = whole, True
                found[name] = self._parse(field, cell, where)
            except _MISFITS as error:
                raise _wrong(field, name, cell, where, str(error), has_images=self._fields.image is not None) from None
        fields = self._fields
        labels, label = found[fields.label] if fields.label is not None else ((), b"")
        further = [found[name][0] for name in fields.vocabularies]
        contents = [found[name][1] if name in fields.vocabularies else found[name] for name in fields.contents]
        values = Values([found[name] for name in fields.numbers], contents, label, further, has_halves)
        return self._row(cells, place, found[fields.file] if fields.file is not None else "", labels, values)

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

    def _parse(self, field: FieldSection, cell: Any, where: str) -> Any:
        """Return the content of a cell; of classes, labels and content; of a number, the number."""
        kind = field.kind
        if cell is None or cell == "" or cell == b"":
            raise ValueError
        if kind in FILE_KINDS:
            if not isinstance(cell, str | bytes):
                raise ValueError
            return cell
        if kind in CLASS_KINDS:
            return self._parse_labels(kind, cell, where)
        if kind == "text":
            return _encode(cell)
        if kind == "number":
            return _to_float(float(cell) if self._is_csv and "_" not in cell else cell)
        if isinstance(cell, str) and self._holds_json:
            cell = json.loads(cell)
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


def _replace_halves(value: Any) -> Any:
    """Return a JSON value without halves of characters in its texts and keys."""
    if isinstance(value, str):
        return replace_halves(value)
    if isinstance(value, list):
        return [_replace_halves(one) for one in value]
    if isinstance(value, dict):
        return {replace_halves(name): _replace_halves(one) for name, one in value.items()}
    return value


def _to_float(value: Any) -> float:
    """Return a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("no number")
    if not math.isfinite(number := float(value)):
        raise ValueError("not finite")
    return number


def _encode(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError
    try:
        return value.encode()
    except UnicodeEncodeError:
        # Bytes that are no UTF-8 come as half characters.
        raise ValueError("it is not UTF-8") from None


def _wrong(field: FieldSection, name: str, cell: Any, where: str, reason: str, *, has_images: bool) -> DataError:
    """Return the error of a cell that its field cannot take."""
    place = f"{where}, column {field.column!r} (field {name}, {field.kind})"
    if cell is None or cell == "" or cell == b"":
        return DataError(f"{place} is empty", allowed=_ALLOWED[field.kind], todo="correct the row")
    shown = repr(cell)
    shown = shown if len(shown) <= 100 else shown[:100] + "..."
    return DataError(
        f"{place} is {shown} ({type(cell).__name__}){f': {reason}' if reason else ''}",
        allowed=_ALLOWED[field.kind],
        todo=_how_to_correct(field, name, cell, reason, has_images=has_images),
    )


def _how_to_correct(field: FieldSection, name: str, cell: Any, reason: str, *, has_images: bool) -> str:
    """Return what to do about a cell that its field cannot take."""
    if isinstance(cell, str) and is_undecoded(cell):
        return TO_UTF8
    if field.kind == "number" and isinstance(cell, str):
        return _how_to_write_numbers(name, cell.strip())
    if field.kind == "class" and reason == "a list":
        several = f"; or, for several labels, set sharding.fields.{name}.kind=classes and task.name=image_multilabel"
        return "write one label in each row" + (several if has_images else "")
    return f"correct the row, or set sharding.fields.{name}.kind to what the column holds"


def _how_to_write_numbers(name: str, text: str) -> str:
    """Return what to do about text where a number is expected."""
    if _COMMA.fullmatch(text):
        return "write numbers with a decimal point, and without separators of thousands: 4.069, or 4069"
    if _DATE.match(text):
        return "write dates as numbers, e.g. as days since a certain one"
    return f"correct the row, or set sharding.fields.{name}.kind to what the column holds (class: names of classes)"
