"""Reading a manifest: CSV, JSONL or Parquet, to rows; which form it is shows in its header or first keys.

A CSV with `sharding.uri_column` in its first line, or a JSONL with that key in its first object, is of our own simple
form, and so is every Parquet file. A CSV whose first line starts with an ML_USE or a gs:// URI, and a JSONL with
`imageGcsUri`, are what Vertex AI imports (vertex.py).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, cast

from contracts import storage
from contracts.config import ShardingSection
from contracts.config.fields import find_file, find_label
from contracts.errors import DataError
from sharding.sources import vertex
from sharding.sources.cells import parse_cells
from sharding.sources.rows import Row, parse_group, parse_labels, parse_list_cell, parse_own_split

SUFFIXES = (".csv", ".jsonl", ".parquet")
# Rows of a Parquet file that are turned into Python objects at a time.
_BATCH_ROWS = 4096
# Of a manifest in a bucket, below the pieces of its stream.
_PIECE_BYTES = 1 << 18
# Of a cell of a CSV: of named fields, and Python's own limit.
_MOST_CELL_BYTES, _MOST_NAME_BYTES = 1 << 30, 1 << 17
# Names of columns shown in an error.
_SHOWN_COLUMNS = 20


def read_rows(section: ShardingSection, uri: str) -> Iterator[Row]:
    """Yield the rows of a manifest.

    Raises:
        DataError: It is not readable, of no known form, or a row of it is wrong; the row is named.
    """
    shown = storage.display(uri)
    suffix = uri[uri.rindex(".") :].lower()
    if suffix == ".parquet":
        yield from _read_parquet(section, uri, shown)
        return
    # Bytes that are no UTF-8 come back as they were: names of files need not be text.
    with io.TextIOWrapper(_open(uri), "utf-8-sig", "surrogateescape", newline="") as stream:
        yield from (_read_csv if suffix == ".csv" else _read_jsonl)(section, stream, shown)


def is_vertex(section: ShardingSection, uri: str) -> bool:
    """Whether a manifest is of one of Vertex AI's forms: they have no columns."""
    if section.fields or not uri.lower().endswith((".csv", ".jsonl")):
        return False
    with io.TextIOWrapper(_open(uri), "utf-8-sig", "surrogateescape", newline="") as stream:
        # What cannot be read is said when its rows are.
        try:
            if uri.lower().endswith(".csv"):
                first = next(csv.reader(stream, skipinitialspace=True), [])
                return section.uri_column not in first and vertex.is_csv_row(first)
            values = json.loads(next((line for line in stream if line.strip()), "{}"))
        except (csv.Error, ValueError, RecursionError):
            return False
    return isinstance(values, dict) and not _is_own(section, values)


def _is_own(section: ShardingSection, values: Mapping[str, Any]) -> bool:
    return bool(section.fields) or section.uri_column in values or vertex.URI_KEY not in values


def _read_csv(section: ShardingSection, stream: IO[str], shown: str) -> Iterator[Row]:
    # Blanks at the start of a text are part of it.
    reader = csv.reader(stream, skipinitialspace=not section.fields, strict=True)
    # One setting for all of the process; of a URI or a label Python's own says that a quote is missing.
    csv.field_size_limit(_MOST_CELL_BYTES if section.fields else _MOST_NAME_BYTES)
    try:
        header = next(reader, None)
        if header is None:
            raise DataError(f"{shown} is empty", allowed="a header and rows", todo="write the manifest again")
        if not section.fields and section.uri_column not in header and vertex.is_csv_row(header):
            yield vertex.parse_csv_row(header, f"{shown}, line 1", "line 1")
            for cells in reader:
                place = f"line {reader.line_num}"
                if cells:
                    yield vertex.parse_csv_row(cells, f"{shown}, {place}", place)
            return
        _check_columns(section, header, shown)
        for cells in reader:
            place = f"line {reader.line_num}"
            if not cells:
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{shown}, {place}: {len(cells)} cells, the header has {len(header)}",
                    allowed="as many cells as columns",
                    todo="correct the row; text that holds a comma stands in quotes",
                )
            values: dict[str, Any] = dict(zip(header, cells, strict=True))
            if section.fields:
                yield _parse_fields(section, values, shown, place, ".csv")
                continue
            values[section.label_column] = parse_list_cell(values[section.label_column], f"{shown}, {place}")
            yield _parse_own(section, values, shown, place)
    except csv.Error as error:
        raise DataError(
            f"{shown}, line {reader.line_num}: {error}", allowed="comma-separated values", todo="correct the row"
        ) from None


def _read_jsonl(section: ShardingSection, stream: IO[str], shown: str) -> Iterator[Row]:
    own: bool | None = None
    for number, line in enumerate(stream, start=1):
        place = f"line {number}"
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{shown}, {place} is not JSON: {error}", allowed="one JSON object a line", todo="correct the line"
            ) from None
        if not isinstance(values, dict):
            raise DataError(
                f"{shown}, {place} holds a {type(values).__name__}", allowed="an object", todo="correct the line"
            )
        if own is None:
            own = _is_own(section, values)
        if not own:
            yield vertex.parse_object(values, f"{shown}, {place}", place)
            continue
        _check_columns(section, values, f"{shown}, {place}", optional_split=True)
        if section.fields:
            yield _parse_fields(section, values, shown, place, ".jsonl")
        else:
            yield _parse_own(section, values, shown, place)
    if own is None:
        raise DataError(f"{shown} is empty", allowed="one JSON object a line", todo="write the manifest again")


def _read_parquet(section: ShardingSection, uri: str, shown: str) -> Iterator[Row]:
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    wanted = dict.fromkeys((*_columns(section).values(), section.split_column, section.group_by))
    number = 0
    try:
        with _open(uri) as stream:
            table = pyarrow.parquet.ParquetFile(stream)
            names = list(table.schema_arrow.names)
            _check_columns(section, names, shown)
            for batch in table.iter_batches(_BATCH_ROWS, columns=[name for name in wanted if name in names]):
                for values in batch.to_pylist():
                    number += 1
                    place = f"row {number}"
                    if section.fields:
                        yield _parse_fields(section, values, shown, place, ".parquet")
                    else:
                        yield _parse_own(section, values, shown, place)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        # Damaged pages come as OSError, damaged text as that of Python.
        raise DataError(
            f"{shown} cannot be read as Parquet: {error}", allowed="a Parquet file", todo="write the manifest again"
        ) from None


def _check_columns(section: ShardingSection, found: Iterable[str], where: str, *, optional_split: bool = False) -> None:
    """Raise DataError when a column is missing; the split's may be, unless the configuration names it."""
    names = list(found)
    wanted = _columns(section)
    if not optional_split and section.split_column != ShardingSection.model_fields["split_column"].default:
        wanted["split_column"] = section.split_column
    if section.group_by:
        wanted["group_by"] = section.group_by
    for field, name in wanted.items():
        if names.count(name) > 1:
            raise DataError(
                f"{where} has {names.count(name)} columns {name!r}",
                allowed=f"one column with the name in sharding.{field}",
                todo="remove or rename the others",
            )
        if name not in names:
            more = f" and {len(names) - _SHOWN_COLUMNS} more" if len(names) > _SHOWN_COLUMNS else ""
            raise DataError(
                f"{where} has no column {name!r}; it has {', '.join(map(repr, names[:_SHOWN_COLUMNS]))}{more}",
                allowed=f"a manifest with the column that sharding.{field} names"
                + ("" if section.fields else ", or one that Vertex AI imports"),
                todo=f"rename the column, or set sharding.{field} to the name it has",
            )


def _columns(section: ShardingSection) -> dict[str, str]:
    """Return the columns that hold samples, by what names them in the section sharding."""
    if section.fields:
        return {f"fields.{name}.column": field.column for name, field in section.fields.items()}
    return {"uri_column": section.uri_column, "label_column": section.label_column}


def _parse_fields(section: ShardingSection, values: Mapping[str, Any], shown: str, place: str, suffix: str) -> Row:
    where = f"{shown}, {place}"
    is_csv = suffix == ".csv"
    found = parse_cells(section, values, where, is_csv=is_csv, holds_json=suffix != ".jsonl")
    kinds = {name: field.kind for name, field in section.fields.items()}
    file, label = find_file(kinds), find_label(kinds)
    split = parse_own_split(values.get(section.split_column), where)
    group = parse_group(values[section.group_by], section.group_by, where) if section.group_by else None
    return Row(
        place,
        found[file] if file is not None else "",
        found[label] if label is not None else (),
        label is not None and kinds[label] == "classes",
        split,
        group,
        found,
    )


def _parse_own(section: ShardingSection, values: Mapping[str, Any], shown: str, place: str) -> Row:
    where = f"{shown}, {place}"
    uri = values[section.uri_column]
    if not isinstance(uri, str | bytes) or not uri:
        raise DataError(f"{where}: the URI is {uri!r}", allowed="text", todo="correct the row")
    labels, is_list = parse_labels(values[section.label_column], section.label_separator, where)
    split = parse_own_split(values.get(section.split_column), where)
    group = parse_group(values[section.group_by], section.group_by, where) if section.group_by else None
    return Row(place, uri, labels, is_list, split, group)


class _Pieces(io.BufferedReader):
    """A stream that asks for a whole piece when its buffer is empty."""

    def read1(self, size: int = -1, /) -> bytes:
        """Read as `read` does: that of the base class, which text is read by, passes 8 KB on, a request each."""
        return self.read(size)


def _open(uri: str) -> Any:
    if not storage.is_local(uri):
        return _Pieces(cast(io.RawIOBase, storage.open_read(uri)), _PIECE_BYTES)
    try:
        return storage.local_path(uri).open("rb")
    except OSError as error:
        raise DataError(
            f"{storage.display(uri)} cannot be read: {error.strerror}",
            allowed="a manifest that this user may read",
            todo="correct its permissions, or run as another user",
        ) from None
