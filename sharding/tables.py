"""Read manifests as tables: CSV with a header, JSONL or Parquet, one file or a folder of parts.

`read_table` yields each row as a dictionary by column, with its place for messages. manifests.py interprets the cells.
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
from contracts.config import ShardingSection
from contracts.errors import ConfigError, DataError
from sharding.fields import Fields
from sharding.names import is_ignored, join_names

SUFFIXES = (".csv", ".jsonl", ".parquet")
# Rows of a Parquet file that are converted to Python objects at a time.
_BATCH_ROWS = 4096
# Buffer for a manifest in a bucket.
_PIECE_BYTES = 1 << 18
# Largest cell of a CSV, also in unused columns.
_MOST_CELL_BYTES = 1 << 30
# Names of columns in an error.
_SHOWN_COLUMNS = 20

Table = Iterator[tuple[str, dict[str, Any]]]
"""Place (`line 7` or `row 7`, counted from 1; of a part, after its name) and cells by column, in a CSV text."""


def read_table(section: ShardingSection, uri: str, parts: Sequence[str] = ()) -> Table:
    """Yield the rows of a manifest.

    Args:
        section: Names of columns.
        uri: The file, or the folder of its parts.
        parts: URIs of the parts of a folder, in order.

    Raises:
        DataError: It is unreadable or malformed; the error names the last valid row.
    """
    if not parts:
        yield from _read_file(section, uri)
    for part in parts:
        name = part.rpartition("/")[2]
        yield from ((f"{name}, {place}", values) for place, values in _read_file(section, part))


def find_parts(uri: str, top: Iterable[bytes]) -> list[str]:
    """Return the URIs of the parts of a table in a folder, sorted; empty if the folder is no table.

    Args:
        uri: The folder.
        top: Names directly in it, folders with a slash.

    Raises:
        DataError: The folder holds parts of a table beside other files.
    """
    # Ignores Spark's files _SUCCESS and _metadata, but not folders, which may be classes.
    names = sorted(
        os.fsdecode(name)
        for name in top
        if not is_ignored(name.rstrip(b"/")) and (name.endswith(b"/") or not name.startswith(b"_"))
    )
    parts = [name for name in names if name.lower().endswith(SUFFIXES)]
    if not parts or any(name.endswith("/") for name in names):
        # A table beside class folders is ignored.
        return []
    if mismatched := [name for name in names if suffix_of(name) != suffix_of(parts[0])]:
        raise DataError(
            f"sharding.source {storage.display(uri)} holds {parts[0]} beside {join_names(mismatched)}",
            allowed=f"a folder of the parts of one table ({', '.join(SUFFIXES)}), all of one type",
            todo="give the file, or move the others out of the folder",
        )
    return [storage.join(uri, name) for name in parts]


def check_has_columns(section: ShardingSection, uri: str) -> None:
    """Raise ConfigError if `sharding.fields` maps columns and the source has none."""
    if section.fields and not uri.lower().endswith(SUFFIXES):
        raise ConfigError(
            f"sharding.source {storage.display(uri)} has no columns, and sharding.fields maps columns",
            allowed=f"a file with columns ({', '.join(SUFFIXES)}), or a folder of its parts; class folders have the "
            "fields image and label",
            todo="give such a file, or unset sharding.fields",
        )


def _read_file(section: ShardingSection, uri: str) -> Table:
    shown, position = storage.display(uri), ""
    read = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}[suffix_of(uri)]
    try:
        with _open(uri) as stream:
            for place, values in read(section, stream, shown):
                position = f" after {place}"
                yield place, values
    except (OSError, EOFError, ValueError, RecursionError, csv.Error, zlib.error) as error:
        raise DataError(
            f"{shown} cannot be read{position}: {getattr(error, 'strerror', None) or error}",
            allowed="CSV with as many cells in a row as in the header, and quotes around text that holds a comma or a "
            "line break; one JSON object per line; or Parquet",
            todo="correct the row that follows, write the file again, or correct its permissions",
        ) from None


def suffix_of(uri: str) -> str:
    """Return the suffix of a file in lower case, with its dot."""
    return os.path.splitext(uri)[1].lower()  # noqa: PTH122 - of a URI


def _read_csv(section: ShardingSection, stream: Any, shown: str) -> Table:
    # With named fields, leading blanks are part of the text.
    reader = csv.reader(stream, skipinitialspace=not section.fields, strict=True)
    # A setting of the whole process.
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
        columns = {*_columns_of(section), section.split_column}
        number = 0
        for batch in table.iter_batches(_BATCH_ROWS, columns=[name for name in names if name in columns]):
            for values in batch.to_pylist():
                number += 1
                yield f"row {number}", values
    except pyarrow.ArrowException as error:
        raise ValueError(str(error)) from None


def _columns_of(section: ShardingSection) -> list[str]:
    columns = list(Fields(section).columns.values())
    if section.split_column != ShardingSection.model_fields["split_column"].default:
        columns.append(section.split_column)
    return [*columns, section.group_by] if section.group_by else columns


def _check_columns(section: ShardingSection, names: Sequence[str], shown: str) -> None:
    """Raise DataError if a required column is missing or duplicate."""
    for name in _columns_of(section):
        if names.count(name) != 1:
            raise DataError(
                f"{shown} has {'several columns' if name in names else 'no column'} {name!r}; it has "
                f"{join_names([repr(column) for column in names], _SHOWN_COLUMNS)}",
                allowed="one column of each name in sharding.fields (unset: uri and label), split_column and group_by; "
                "CSV has commas between cells, and is UTF-8",
                todo="rename the column, or map it: sharding.fields: {image: {column: ..., kind: image}, label: ...}",
            )


@contextlib.contextmanager
def _open(uri: str) -> Iterator[Any]:
    """Open a Parquet file, or text, which is inflated if it is gzip (objects with Content-Encoding: gzip)."""
    if storage.is_local(uri):
        stream: Any = storage.local_path(uri).open("rb")
    else:
        stream = io.BufferedReader(cast(io.RawIOBase, storage.open_read(uri)), _PIECE_BYTES)
    with stream:
        if suffix_of(uri) == ".parquet":
            yield stream
            return
        is_packed = stream.peek(2)[:2] == b"\x1f\x8b"
        # Bytes that are not UTF-8 become surrogates: names of files need not be text.
        with io.TextIOWrapper(
            gzip.GzipFile(fileobj=stream) if is_packed else stream, "utf-8-sig", "surrogateescape", newline=""
        ) as text:
            yield text
