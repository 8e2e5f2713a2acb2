"""The cells of a row of named fields (`sharding.fields`): each is of its kind, or the row is named."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from contracts.config import FILE_KINDS, FieldSection, ShardingSection
from contracts.errors import DataError
from sharding.sources.rows import encode_text, parse_labels, parse_list_cell

_ALLOWED = {
    "image": "the URI or path of an image file",
    "bytes": "the URI or path of a file",
    "text": "text",
    "class": "text or a whole number",
    "classes": "a list of text or whole numbers (in a CSV as JSON, or with sharding.label_separator)",
    "number": "a finite number",
    "numbers": "a list of finite numbers (in a CSV as JSON)",
    "json": "a JSON value without NaN and infinity, other than null",
}


def parse_cells(
    section: ShardingSection, values: Mapping[str, Any], where: str, *, is_csv: bool, holds_json: bool
) -> dict[str, Any]:
    """Return the values of all fields of a row by name; of classes, a tuple of labels.

    Args:
        section: The fields.
        values: Cells by column; all columns are there.
        where: The row, for errors.
        is_csv: All cells are text.
        holds_json: Cells cannot hold JSON values themselves: text in them is parsed.

    Raises:
        DataError: A cell is empty, or does not fit its kind.
    """
    found = {}
    for name, field in section.fields.items():
        cell = values[field.column]
        place = f"{where}, column {field.column!r} (field {name}, {field.kind})"
        if cell is None or cell == "" or cell == b"":
            raise _wrong(field, name, f"{place} is empty")
        try:
            found[name] = _parse(section, field, cell, place, is_csv=is_csv, holds_json=holds_json)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            shown = repr(cell)
            shown = shown if len(shown) <= 100 else shown[:100] + "..."
            reason = f": {error}" if str(error) else ""
            raise _wrong(field, name, f"{place} is {shown} ({type(cell).__name__}){reason}") from None
    return found


def _parse(
    section: ShardingSection, field: FieldSection, cell: Any, where: str, *, is_csv: bool, holds_json: bool
) -> Any:
    kind = field.kind
    if kind in FILE_KINDS:
        if not isinstance(cell, str | bytes):
            raise ValueError
        return cell
    if kind == "text":
        if not isinstance(cell, str):
            raise ValueError
        # Bytes that are no UTF-8 come as half characters.
        if any("\ud800" <= char <= "\udfff" for char in cell):
            raise ValueError("it is not UTF-8")
        return cell
    if kind in ("class", "classes"):
        if is_csv and not section.label_separator:
            cell = parse_list_cell(cell, where)
        labels, is_list = parse_labels(cell, section.label_separator if kind == "classes" else None, where)
        if is_list != (kind == "classes"):
            raise ValueError("a list" if is_list else "no list")
        for label in labels:
            encode_text(str(label), where)
        return labels
    if kind == "number":
        return _to_float(float(cell) if is_csv and "_" not in cell else cell)
    if isinstance(cell, str) and holds_json:
        cell = json.loads(cell)
    if kind == "numbers":
        if not isinstance(cell, list | tuple) or not cell:
            raise ValueError("no list of numbers")
        return [_to_float(one) for one in cell]
    if cell is None:
        raise ValueError
    # What a Parquet file holds may be no JSON: a date.
    json.dumps(cell, allow_nan=False)
    return cell


def _to_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("no number")
    if not math.isfinite(number := float(value)):
        raise ValueError("not finite")
    return number


def _wrong(field: FieldSection, name: str, what: str) -> DataError:
    return DataError(
        what,
        allowed=_ALLOWED[field.kind],
        todo=f"correct the row, or set sharding.fields.{name}.kind to what the column holds",
    )
