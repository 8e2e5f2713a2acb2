"""Files that a manifest (CSV, JSONL or Parquet) names: those of its rows that lie below its own folder."""

from __future__ import annotations

import contextlib
import csv
import json
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contracts.config import ShardingSection
from contracts.config.sharding import FILE_KINDS

_MOST_CELL_BYTES = 1 << 24


def find_named_files(manifest: Path, section: ShardingSection) -> list[Path]:
    """Return the files that a manifest names and that are there, relative to its folder and sorted.

    A path that leads out of the folder is left out, and so are rows that cannot be read: sharding names them.

    Args:
        manifest: The local file.
        section: Its columns; `source` is the URI under which the manifest is served.
    """
    columns = [field.column for field in section.fields.values() if field.kind in FILE_KINDS]
    if not section.fields:
        columns = [section.uri_column]
    folder_uri = f"{section.source.rpartition('/')[0]}/"
    names: set[str] = set()
    # A file that is none is named by sharding too.
    with contextlib.suppress(csv.Error, ValueError):
        for cell in _read_cells(manifest, columns) if columns else ():
            text = cell.decode(errors="surrogateescape") if isinstance(cell, bytes) else str(cell)
            path = text.removeprefix(folder_uri)
            name = posixpath.normpath(path)
            if "\0" not in name and "://" not in path and not name.startswith(("/", "../")):
                names.add(name)
    return [Path(name) for name in sorted(names) if (manifest.parent / name).is_file()]


def _read_cells(manifest: Path, columns: list[str]) -> Iterator[Any]:
    """Yield the cells of some columns that are not empty."""
    suffix = manifest.suffix.lower()
    if suffix == ".parquet":
        yield from _read_parquet(manifest, columns)
        return
    with manifest.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
        csv.field_size_limit(_MOST_CELL_BYTES)
        for row in csv.DictReader(stream, skipinitialspace=True) if suffix == ".csv" else map(_parse_line, stream):
            yield from (row[column] for column in columns if row.get(column))


def _read_parquet(manifest: Path, columns: list[str]) -> Iterator[Any]:
    import pyarrow.parquet  # type: ignore[import-untyped]

    table = pyarrow.parquet.ParquetFile(manifest)
    wanted = [column for column in columns if column in table.schema_arrow.names]
    for batch in table.iter_batches(columns=wanted):
        for column in wanted:
            yield from (cell for cell in batch.column(column).to_pylist() if cell)


def _parse_line(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}
