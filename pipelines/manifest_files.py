"""Files listed by a manifest (CSV, JSONL or Parquet): those below the manifest's folder."""

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

MANIFEST_SUFFIXES = (".csv", ".jsonl", ".parquet")
"""Endings of sources that are manifests (sharding/tables.py)."""

_MOST_CELL_BYTES = 1 << 24


def find_named_files(manifest: Path, section: ShardingSection) -> list[Path]:
    """Return the existing files that a manifest lists, relative to its folder and sorted.

    Paths outside of the folder and unreadable rows are skipped: sharding reports them.

    Args:
        manifest: The local file.
        section: Its columns; `source` is the URI under which the manifest is served.
    """
    columns = [field.column for field in section.sample_fields.values() if field.kind in FILE_KINDS]
    folder_uri = f"{section.source.rpartition('/')[0]}/"
    names: set[str] = set()
    # Sharding also reports a manifest that cannot be read.
    with contextlib.suppress(csv.Error, ValueError):
        for row in _read_rows(manifest, columns):
            for cell in filter(None, map(row.get, columns)):
                text = cell.decode(errors="surrogateescape") if isinstance(cell, bytes) else str(cell)
                path = text.removeprefix(folder_uri)
                name = posixpath.normpath(path)
                if "\0" not in name and "://" not in path and not name.startswith(("/", "../")):
                    names.add(name)
    return [Path(name) for name in sorted(names) if (manifest.parent / name).is_file()]


def _read_rows(manifest: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    suffix = manifest.suffix.lower()
    if suffix == ".parquet":
        import pyarrow.parquet  # type: ignore[import-untyped]

        table = pyarrow.parquet.ParquetFile(manifest)
        for batch in table.iter_batches(columns=[name for name in columns if name in table.schema_arrow.names]):
            yield from batch.to_pylist()
        return
    with manifest.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
        csv.field_size_limit(_MOST_CELL_BYTES)
        if suffix == ".csv":
            yield from csv.DictReader(stream, skipinitialspace=True)
            return
        for line in stream:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict):
                    yield row
