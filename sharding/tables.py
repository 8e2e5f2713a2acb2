"""Manifests as tables: the rows of CSV with a header, JSONL and Parquet, of one file or a folder of parts.

`read_table` gives every row as a dictionary by column, with its place for messages. rows.py says what the cells mean.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from contracts import storage
from contracts.config import FieldKind, FieldSection, ShardingSection
from contracts.errors import ConfigError, DataError
from sharding.names import is_ignored, name_some

SUFFIXES = (".csv", ".jsonl", ".parquet")
# Rows of a Parquet file that are turned into Python objects at a time.
_BATCH_ROWS = 4096
# Piece of a manifest in a bucket that is read as text at a time.
_PIECE_BYTES = 1 << 18
# Largest cell of a CSV: a column that is not used may be long too.
_MOST_CELL_BYTES = 1 << 30
# Names of columns in an error.
_SHOWN_COLUMNS = 20

Table = Iterator[tuple[str, dict[str, Any]]]
"""Place (`line 7` or `row 7`, counted from 1; of a part, after its name) and cells by column, in a CSV text."""


def fields_of(section: ShardingSection) -> dict[str, FieldSection]:
    """Return the fields of a manifest; without `sharding.fields` they are an image and its label or labels."""
    kind: FieldKind = "classes" if section.label_separator else "class"
    return section.fields or {
        "image": FieldSection(column=section.uri_column, kind="image"),
        "label": FieldSection(column=section.label_column, kind=kind),
    }


def read_table(section: ShardingSection, uri: str, parts: Sequence[str] = ()) -> Table:
    """Yield the rows of a manifest.

    Args:
        section: Names of columns.
        uri: The file, or the folder of its parts.
        parts: URIs of the parts of a folder, in order.

    Raises:
        DataError: It is not readable, or has another form; the row before is named.
    """
    if not parts:
        yield from _read_file(section, uri)
    for part in parts:
        name = part.rpartition("/")[2]
        yield from ((f"{name}, {place}", values) for place, values in _read_file(section, part))


def find_parts(uri: str, top: Iterable[bytes]) -> list[str]:
    """Return the URIs of the parts of a table in a folder, in the order of their names; none of another source.

    Args:
        uri: The folder.
        top: Names directly in it, folders with a slash.

    Raises:
        DataError: The folder holds parts of a table beside other files.
    """
    # Spark's files _SUCCESS and _metadata; a folder with such a name may be one of a class.
    names = sorted(
        os.fsdecode(name)
        for name in top
        if not is_ignored(name.rstrip(b"/")) and (name.endswith(b"/") or not name.startswith(b"_"))
    )
    parts = [name for name in names if name.lower().endswith(SUFFIXES)]
    if not parts or any(name.endswith("/") for name in names):
        # A list beside class folders is none of their images.
        return []
    if others := [name for name in names if _suffix(name) != _suffix(parts[0])]:
        raise DataError(
            f"sharding.source {storage.display(uri)} holds {parts[0]} beside {name_some(others)}",
            allowed=f"a folder of the parts of one table ({', '.join(SUFFIXES)}), all of one type",
            todo="give the file, or move the others out of the folder",
        )
    return [storage.join(uri, name) for name in parts]


def check_has_columns(section: ShardingSection, uri: str) -> None:
    """Raise ConfigError where columns are mapped and the source has none."""
    if section.fields and not uri.lower().endswith(SUFFIXES):
        raise ConfigError(
            f"sharding.source {storage.display(uri)} has no columns, and sharding.fields maps columns",
            allowed=f"a file with columns ({', '.join(SUFFIXES)}), or a folder of its parts; class folders have the "
            "fields image and label",
            todo="give such a file, or unset sharding.fields",
        )


def _read_file(section: ShardingSection, uri: str) -> Table:
    shown, after = storage.display(uri), ""
    read = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}[_suffix(uri)]
    try:
        with _open(uri) as stream:
            for place, values in read(section, stream, shown):
                after = f" after {place}"
                yield place, values
    except (OSError, EOFError, ValueError, RecursionError, csv.Error, zlib.error) as error:
        raise DataError(
            f"{shown} cannot be read{after}: {getattr(error, 'strerror', None) or error}",
            allowed="CSV with as many cells in a row as in the header, and quotes around text that holds a comma or a "
            "line break; one JSON object per line; or Parquet",
            todo="correct the row that follows, write the file again, or correct its permissions",
        ) from None


def _suffix(uri: str) -> str:
    return os.path.splitext(uri)[1].lower()  # noqa: PTH122 - of a URI


def _read_csv(section: ShardingSection, stream: Any, shown: str) -> Table:
    # Blanks at the start of a text are part of it.
    reader = csv.reader(stream, skipinitialspace=not section.fields, strict=True)
    # One setting for all of the process.
    csv.field_size_limit(_MOST_CELL_BYTES)
    header = next(reader, [])
    _check_columns(section, header, shown)
    for cells in reader:
        if len(cells) not in (0, len(header)):
            raise ValueError(f"{len(cells)} cells, the header has {len(header)}")
        if cells:
            yield f"line {reader.line_num}", dict(zip(header, cells, strict=True))


def _read_jsonl(section: ShardingSection, stream: Any, shown: str) -> Table:
    is_first = True
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        values = json.loads(line)
        if not isinstance(values, dict):
            raise ValueError(f"a {type(values).__name__}, no object")
        if is_first:
            _check_columns(section, list(values), shown)
            is_first = False
        yield f"line {number}", values


def _read_parquet(section: ShardingSection, stream: Any, shown: str) -> Table:
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    try:
        table = pyarrow.parquet.ParquetFile(stream)
        names = list(table.schema_arrow.names)
        _check_columns(section, names, shown)
        wanted = {*_columns_of(section), section.split_column}
        number = 0
        for batch in table.iter_batches(_BATCH_ROWS, columns=[name for name in names if name in wanted]):
            for values in batch.to_pylist():
                number += 1
                yield f"row {number}", values
    except pyarrow.ArrowException as error:
        raise ValueError(str(error)) from None


def _columns_of(section: ShardingSection) -> list[str]:
    columns = [field.column for field in fields_of(section).values()]
    if section.split_column != ShardingSection.model_fields["split_column"].default:
        columns.append(section.split_column)
    return [*columns, section.group_by] if section.group_by else columns


def _check_columns(section: ShardingSection, names: Sequence[str], shown: str) -> None:
    """Raise DataError where a column that is needed is missing, or is there twice."""
    for name in _columns_of(section):
        if names.count(name) != 1:
            raise DataError(
                f"{shown} has {'several columns' if name in names else 'no column'} {name!r}; it has "
                f"{name_some([repr(one) for one in names], _SHOWN_COLUMNS)}",
                allowed="one column of each name in sharding.fields (or uri_column and label_column), split_column and "
                "group_by; CSV has commas between cells, and is UTF-8",
                todo="rename the column, or set the key of sharding to the name it has",
            )


@contextlib.contextmanager
def _open(uri: str) -> Iterator[Any]:
    """Open a Parquet file, or text as it was before gzip: objects with Content-Encoding: gzip are read as stored."""
    if storage.is_local(uri):
        stream: Any = storage.local_path(uri).open("rb")
    else:
        stream = io.BufferedReader(cast(io.RawIOBase, storage.open_read(uri)), _PIECE_BYTES)
    with stream:
        if _suffix(uri) == ".parquet":
            yield stream
            return
        is_packed = stream.peek(2)[:2] == b"\x1f\x8b"
        # Bytes that are no UTF-8 come as surrogates: names of files need not be text.
        with io.TextIOWrapper(
            gzip.GzipFile(fileobj=stream) if is_packed else stream, "utf-8-sig", "surrogateescape", newline=""
        ) as text:
            yield text
