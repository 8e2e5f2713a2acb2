"""The cells of a row of named fields (`sharding.fields`): each is of its kind, or the row is named."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from contracts.config import FILE_KINDS, FieldSection, ShardingSection
from contracts.config.fields import MISSING_KINDS
from contracts.errors import DataError
from sharding.sources.rows import encode_text, parse_labels, parse_list_cell

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


def parse_cells(
    section: ShardingSection, values: Mapping[str, Any], where: str, *, is_csv: bool, holds_json: bool
) -> dict[str, Any]:
    """Return the values of all fields of a row by name; of classes, a tuple of labels; None for a missing number.

    Args:
        section: The fields; `columns` are names of columns (tables.name_columns).
        values: Cells by column; all columns are there.
        where: The row, for errors.
        is_csv: All cells are text.
        holds_json: Cells cannot hold JSON values themselves: text in them is parsed.

    Raises:
        DataError: A cell is empty, or does not fit its kind.
    """
    found: dict[str, Any] = {}
    for name, field in section.fields.items():
        cells = []
        for column in field.columns or (field.column,):
            cell = values[column]
            try:
                cells.append(_parse(section, field, cell, where, is_csv=is_csv, holds_json=holds_json))
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                raise _wrong(field, name, column, cell, where, str(error)) from None
        found[name] = cells if field.columns else cells[0]
    return found


def _parse(
    section: ShardingSection, field: FieldSection, cell: Any, where: str, *, is_csv: bool, holds_json: bool
) -> Any:
    kind = field.kind
    keeps = field.missing == "keep"
    if cell is None or cell == "" or cell == b"":
        # A list that is missing has no length.
        if not keeps or (kind == "numbers" and not field.columns):
            raise ValueError
        return "" if kind in ("text", "category") else None
    if kind in FILE_KINDS:
        if not isinstance(cell, str | bytes):
            raise ValueError
        return cell
    if kind == "text":
        if not isinstance(cell, str):
            raise ValueError
        return _to_text(cell)
    if kind in ("class", "classes"):
        if is_csv and not section.label_separator:
            cell = parse_list_cell(cell, where)
        labels, is_list = parse_labels(cell, section.label_separator if kind == "classes" else None, where)
        if is_list != (kind == "classes"):
            raise ValueError("a list" if is_list else "no list")
        for label in labels:
            encode_text(str(label), where)
        return labels
    if kind == "category":
        return _to_text(cell)
    if kind == "number" or field.columns:
        return _to_float(float(cell) if is_csv and "_" not in cell else cell, keeps=keeps)
    if isinstance(cell, str) and holds_json:
        cell = json.loads(cell)
    if kind == "numbers":
        if not isinstance(cell, list | tuple) or not cell:
            raise ValueError("no list of numbers")
        return [None if one is None and keeps else _to_float(one, keeps=keeps) for one in cell]
    if cell is None:
        raise ValueError
    # What a Parquet file holds may be no JSON: a date.
    json.dumps(cell, allow_nan=False)
    return cell


def _to_float(value: Any, *, keeps: bool) -> float | None:
    """Return a number; None for one that is not a number, where it may be missing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("no number")
    if math.isfinite(number := float(value)):
        return number
    if keeps and math.isnan(number):
        return None
    raise ValueError("not finite")


def _to_text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("neither text nor a whole number")
    text = str(value)
    # Bytes that are no UTF-8 come as half characters.
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError("it is not UTF-8")
    return text


def _wrong(field: FieldSection, name: str, column: str, cell: Any, where: str, reason: str) -> DataError:
    """Return the error of a cell that its field cannot take."""
    place = f"{where}, column {column!r} (field {name}, {field.kind})"
    if cell is None or cell == "" or cell == b"":
        keep = f", or set sharding.fields.{name}.missing=keep" if field.kind in MISSING_KINDS else ""
        return DataError(f"{place} is empty", allowed=_ALLOWED[field.kind], todo=f"correct the row{keep}")
    shown = repr(cell)
    shown = shown if len(shown) <= 100 else shown[:100] + "..."
    todo = f"correct the row, or set sharding.fields.{name}.kind to what the column holds"
    if field.columns:
        todo = (
            f"correct the row, or leave the column out of sharding.fields.{name}.columns: text is read by a field of "
            f"its own, {{column: {column!r}, kind: category}}"
        )
    return DataError(
        f"{place} is {shown} ({type(cell).__name__}){f': {reason}' if reason else ''}",
        allowed=_ALLOWED[field.kind],
        todo=todo,
    )
