"""Reading a manifest to rows: CSV with a header, JSONL or Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, cast

from contracts import storage
from contracts.config import ShardingSection
from contracts.errors import ConfigError, DataError
from sharding.limits import MAX_EXAMPLES, name_some
from sharding.sources.buckets import FEW_OBJECTS
from sharding.sources.cells import RowParser
from sharding.sources.layout import ALLOWED
from sharding.sources.names import is_ignored
from sharding.sources.rows import (
    TO_UTF8,
    Row,
    is_undecoded,
    parse_group,
    parse_labels,
    parse_list_cell,
    parse_own_split,
)

_TEXT_SUFFIXES = (".csv", ".jsonl")
SUFFIXES = (*_TEXT_SUFFIXES, ".parquet")
# Rows of a Parquet file that are turned into Python objects at a time.
_BATCH_ROWS = 4096
# Of a manifest in a bucket, below the pieces of its stream.
_PIECE_BYTES = 1 << 18
# Of a cell of a CSV: a column that is not read may be long too.
_MOST_CELL_BYTES = 1 << 30
# What other tables have between cells.
_OTHER_SEPARATOR = re.compile(r"[;\t|]")
# Names of columns shown in an error.
_SHOWN_COLUMNS = 20


def read_rows(section: ShardingSection, uri: str, parts: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the rows of a manifest.

    Args:
        section: Names of columns.
        uri: The file, or the folder of its parts.
        parts: URIs of the parts of a folder, in order.

    Raises:
        DataError: It is not readable, of no known form, or a row of it is wrong; the row is named.
    """
    if not parts:
        yield from _read_file(section, uri)
    for part in parts:
        name = part.rpartition("/")[2]
        yield from (row._replace(place=f"{name}, {row.place}") for row in _read_file(section, part))


def list_top(uri: str) -> list[str]:
    """Return the names directly in a source that is a folder, folders with / at their end; none of another source."""
    if not storage.is_local(uri):
        return [] if uri.lower().endswith(_TEXT_SUFFIXES) else storage.list_names(uri)
    folder = storage.local_path(uri)
    if not folder.is_dir():
        return []
    try:
        return [path.name + "/" * path.is_dir() for path in folder.iterdir()]
    except OSError:
        # Whoever lists class folders says so.
        return []


def find_parts(uri: str, names: Iterable[str]) -> list[str]:
    """Return the URIs of the parts of a table in a folder, in the order of their names; none of another source.

    Args:
        uri: The folder.
        names: As `list_top` gives them.

    Raises:
        DataError: The folder holds parts of a table beside other files, or in folders of their own.
    """
    # Spark's files _SUCCESS and _metadata; a folder of such a name may be one of a class.
    names = sorted(
        name for name in names if not is_ignored(os.fsencode(name)) and (name.endswith("/") or not name.startswith("_"))
    )
    parts = [name for name in names if name.lower().endswith(SUFFIXES)]
    shown = f"sharding.source {storage.display(uri)}"
    if names and all("=" in name for name in names) and _holds_parts(storage.join(uri, names[0].rstrip("/"))):
        raise DataError(
            f"{shown} holds folders of partitions ({name_some(names, MAX_EXAMPLES)})",
            allowed="a folder of the parts of a table, without folders in it",
            todo="write it as one table with a column for what the folders are named by",
        )
    if not parts or any(name.endswith("/") for name in names):
        # A list beside class folders is none of their images.
        return []
    others = [name for name in names if name not in parts or _suffix(name) != _suffix(parts[0])]
    if others:
        raise DataError(
            f"{shown} holds {parts[0]} beside {name_some(others, MAX_EXAMPLES)}",
            allowed=f"a folder of the parts of one table ({', '.join(SUFFIXES)}), all of one type",
            todo="give the file, or move the others out of the folder",
        )
    return [storage.join(uri, name) for name in parts]


def _holds_parts(uri: str) -> bool:
    """Whether a folder of a partition holds parts of a table, directly or in partitions below it."""
    names = storage.list_names(uri)
    if any(name.lower().endswith(SUFFIXES) for name in names):
        return True
    return bool(names) and "=" in names[0] and _holds_parts(storage.join(uri, names[0]))


def _read_file(section: ShardingSection, uri: str) -> Iterator[Row]:
    shown = storage.display(uri)
    suffix = _suffix(uri)
    try:
        if suffix == ".parquet":
            yield from _read_parquet(section, uri, shown)
            return
        with _open_text(uri) as stream:
            if suffix == ".csv":
                yield from _read_csv(section, stream, shown)
            else:
                yield from _read_jsonl(section, stream, shown)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{shown} is damaged: {error}", allowed="a whole file, or one that gzip has packed", todo="write it again"
        ) from None


def _suffix(uri: str) -> str:
    return uri[uri.rindex(".") :].lower()


def _open_text(uri: str) -> io.TextIOWrapper:
    # Bytes that are no UTF-8 come back as they were: names of files need not be text.
    return io.TextIOWrapper(_open(uri), "utf-8-sig", "surrogateescape", newline="")


def check_has_columns(section: ShardingSection, uri: str) -> None:
    """Raise ConfigError where columns are mapped and the source has none."""
    if section.fields and uri.lower().endswith((".tsv", ".txt", ".xlsx", ".xls")):
        raise ConfigError(
            f"sharding.source {storage.display(uri)} is no table that is read here",
            allowed=f"a table that ends in {', '.join(SUFFIXES)}",
            todo="write it as CSV: UTF-8, commas between cells",
        )
    if section.fields and not uri.lower().endswith(tuple(SUFFIXES)):
        raise ConfigError(
            f"sharding.source {storage.display(uri)} has no columns, and sharding.fields maps columns",
            allowed=f"a file with columns ({', '.join(SUFFIXES)}), or a folder of its parts and of no more than "
            f"{FEW_OBJECTS:,} objects in a bucket; class folders have the fields image and label",
            todo="give a file, or unset sharding.fields",
        )


def require_source(section: ShardingSection, uri: str) -> None:
    """Raise DataError where there is nothing at the URI of the source."""
    if not storage.exists(uri):
        tables = ", ".join(SUFFIXES)
        raise DataError(
            f"sharding.source {storage.display(uri)} does not exist",
            allowed=f"a table with a header ({tables})" if section.fields else f"{ALLOWED}; or a manifest ({tables})",
            todo="check the path: one without / at its start is below the folder that the command runs in",
        )


def no_rows(shown: str, *, is_plain: bool) -> DataError:
    """Return the error of a file without rows.

    Args:
        shown: Its name.
        is_plain: Samples are an image and a label.
    """
    return DataError(
        f"{shown} names no image" if is_plain else f"{shown} has no rows",
        allowed="at least one row",
        todo="add rows to the manifest" if is_plain else "write the table with rows below its header",
    )


def _read_csv(section: ShardingSection, stream: IO[str], shown: str) -> Iterator[Row]:
    # Blanks at the start of a text are part of it.
    reader = csv.reader(stream, skipinitialspace=not section.fields, strict=True)
    # One setting for all of the process.
    csv.field_size_limit(_MOST_CELL_BYTES)
    began = 1
    try:
        header = next(reader, None)
        began = reader.line_num + 1
        if header is None:
            raise DataError(f"{shown} is empty", allowed="a header and rows", todo="write the manifest again")
        _check_columns(section, header, shown)
        parse = RowParser(section, shown, header).parse if section.fields else None
        for cells in reader:
            place = f"line {reader.line_num}"
            began = reader.line_num + 1
            if not cells:
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{shown}, {place}: {len(cells)} cells, the header has {len(header)}",
                    allowed="as many cells as columns",
                    todo="correct the row; text that holds a comma stands in quotes",
                )
            if parse is not None:
                yield parse(cells, place)
                continue
            values: dict[str, Any] = dict(zip(header, cells, strict=True))
            values[section.label_column] = parse_list_cell(values[section.label_column], f"{shown}, {place}")
            yield _parse_own(section, values, shown, place)
    except csv.Error as error:
        # At the end of the file where a quote is not closed: the row with it began at `began`.
        where = f"line {began}" if began == reader.line_num else f"lines {began} to {reader.line_num}"
        raise DataError(
            f"{shown}, {where}: {error}",
            allowed="comma-separated values, each quote closed",
            todo=f"correct the row that begins in line {began}",
        ) from None


def _read_objects(stream: IO[str], shown: str) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Yield the place, the values and whether it is UTF-8 of each line of a JSONL file that holds something."""
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
        yield place, values, line.isascii() or not is_undecoded(line)


def _read_jsonl(section: ShardingSection, stream: IO[str], shown: str) -> Iterator[Row]:
    needed = {*_columns(section).values(), *filter(None, [section.group_by])}
    parse = RowParser(section, shown, None, holds_json=False).parse if section.fields else None
    is_empty = True
    for place, values, is_utf8 in _read_objects(stream, shown):
        is_empty = False
        if not needed <= values.keys():
            _check_columns(section, values, f"{shown}, {place}", optional_split=True)
        yield parse(values, place, is_utf8=is_utf8) if parse is not None else _parse_own(section, values, shown, place)
    if is_empty:
        raise DataError(f"{shown} is empty", allowed="one JSON object a line", todo="write the manifest again")


def _read_parquet(section: ShardingSection, uri: str, shown: str) -> Iterator[Row]:
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    wanted = dict.fromkeys((*_columns(section).values(), section.split_column, section.group_by))
    number = 0
    parse = RowParser(section, shown, None).parse if section.fields else None
    try:
        with _open(uri) as stream:
            table = pyarrow.parquet.ParquetFile(stream)
            names = list(table.schema_arrow.names)
            _check_columns(section, names, shown)
            for batch in table.iter_batches(_BATCH_ROWS, columns=[name for name in wanted if name in names]):
                for values in batch.to_pylist():
                    number += 1
                    place = f"row {number}"
                    if parse is not None:
                        yield parse(values, place)
                    else:
                        yield _parse_own(section, values, shown, place)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        # Damaged pages come as OSError, damaged text as that of Python.
        raise _no_parquet(shown, error) from None


def _no_parquet(shown: str, error: Exception) -> DataError:
    return DataError(
        f"{shown} cannot be read as Parquet: {error}", allowed="a Parquet file", todo="write the manifest again"
    )


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
        if name not in names and any(isinstance(one, str) and is_undecoded(one) for one in names):
            raise DataError(
                f"{where} is not UTF-8: its columns are {_show_columns(names)}",
                allowed="UTF-8 (with or without a byte order mark)",
                todo=TO_UTF8,
            )
        if name not in names and len(names) == 1 and (mark := _OTHER_SEPARATOR.search(str(names[0]))):
            raise DataError(
                f"{where} has the one column {names[0]!r}: its cells seem to be separated by {mark[0]!r}",
                allowed="cells that commas separate",
                todo="write it with commas between cells, and quotes around text that holds one",
            )
        if name not in names:
            raise DataError(
                f"{where} has no column {name!r}; it has {_show_columns(names)}",
                allowed=f"a manifest with the column that sharding.{field} names"
                + ("" if section.fields else ", or one that Vertex AI imports"),
                todo=f"rename the column, or set sharding.{field} to the name it has",
            )


def _show_columns(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN_COLUMNS} more" if len(names) > _SHOWN_COLUMNS else ""
    return ", ".join(map(repr, names[:_SHOWN_COLUMNS])) + more


def _columns(section: ShardingSection) -> dict[str, str]:
    """Return the columns that hold samples, by what names them in the section sharding."""
    if section.fields:
        return {f"fields.{name}.column": field.column for name, field in section.fields.items()}
    return {"uri_column": section.uri_column, "label_column": section.label_column}


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


class _Unpacked(gzip.GzipFile):
    """What a stream holds that gzip has packed; closing it closes the stream."""

    def __init__(self, stream: Any) -> None:
        super().__init__(fileobj=stream, mode="rb")
        self._packed = stream

    def close(self) -> None:
        """Close both."""
        super().close()
        self._packed.close()


def _open(uri: str) -> Any:
    """Open a file as it was before gzip: objects with Content-Encoding: gzip are stored so, and read as stored."""
    stream = _open_stored(uri)
    if stream.peek(2)[:2] != b"\x1f\x8b":
        return stream
    unpacked = _Unpacked(stream)
    if _suffix(uri) != ".parquet":
        return unpacked
    # It is read from its end.
    with unpacked:
        return io.BytesIO(unpacked.read())


def _open_stored(uri: str) -> Any:
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
