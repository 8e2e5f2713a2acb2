"""The index: which objects and buckets there are, in one SQLite file. A row is the commit of what it names.

A kill loses nothing that was written; only a power cut may lose the last rows, since nothing waits for the disk.
Callers hold one lock around every use (objects.Objects.lock).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

_SCHEMA = """
create table if not exists buckets (name text primary key, created_us integer, fields text) without rowid;
create table if not exists objects (
    bucket text, name text, generation integer, metageneration integer, updated_us integer,
    content text, size integer, crc32c text, md5 text, fields text,
    primary key (bucket, name)
) without rowid;
"""
_COLUMNS = "bucket, name, generation, metageneration, updated_us, content, size, crc32c, md5, fields"


@dataclass(frozen=True)
class Record:
    """One live object; the columns of its row."""

    bucket: str
    name: str
    generation: int
    metageneration: int
    updated_us: int
    content_id: str
    size: int
    crc32c: str
    md5: str | None
    """None: it has none, as composed objects of Cloud Storage."""
    fields: dict[str, Any] = field(default_factory=dict)
    """What a client may set: contentType, metadata, cacheControl and so on."""


@dataclass(frozen=True)
class Bucket:
    """One bucket."""

    name: str
    created_us: int
    fields: dict[str, Any]


class Index:
    """The rows."""

    def __init__(self, path: Path) -> None:
        self._file = sqlite3.connect(path, check_same_thread=False, timeout=1)
        self._file.isolation_level = None
        try:
            # One writer: a second server on the same root would give out the same generations.
            self._file.execute("pragma locking_mode = exclusive")
            self._file.execute("pragma journal_mode = wal")
            self._file.execute("pragma synchronous = off")
            self._file.executescript(_SCHEMA)
        except sqlite3.OperationalError as error:
            self._file.close()
            raise RuntimeError(f"{path} cannot be used ({error}): does another server serve this root?") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    # --- objects ---

    def find(self, bucket: str, name: str) -> Record | None:
        """Return the row of an object."""
        query = f"select {_COLUMNS} from objects where bucket = ? and name = ?"
        row = self._file.execute(query, (bucket, name)).fetchone()
        return None if row is None else _record(row)

    def rows(self, bucket: str, start: str, end: str, limit: int) -> list[Record]:
        """Return up to `limit` objects with start <= name (< end, where that is not empty), by their UTF-8 names."""
        bounds = "and name < ?" if end else ""
        query = f"select {_COLUMNS} from objects where bucket = ? and name >= ? {bounds} order by name limit ?"
        values = (bucket, start, end, limit) if end else (bucket, start, limit)
        return [_record(row) for row in self._file.execute(query, values).fetchall()]

    def contents(self) -> dict[tuple[str, str], str]:
        """Return the content of every object, by bucket and name."""
        rows = self._file.execute("select bucket, name, content from objects").fetchall()
        return {(bucket, name): content for bucket, name, content in rows}

    def put(self, record: Record) -> None:
        """Write the row of an object."""
        *values, fields = astuple(record)
        marks = ", ".join("?" * (len(values) + 1))
        self._file.execute(
            f"insert or replace into objects ({_COLUMNS}) values ({marks})", (*values, json.dumps(fields))
        )

    def drop(self, bucket: str, name: str) -> None:
        """Remove the row of an object."""
        self._file.execute("delete from objects where bucket = ? and name = ?", (bucket, name))

    def last_generation(self) -> int:
        """Return the highest generation, 0 where there is none."""
        return int(self._file.execute("select coalesce(max(generation), 0) from objects").fetchone()[0])

    # --- buckets ---

    def find_bucket(self, name: str) -> Bucket | None:
        """Return the row of a bucket."""
        row = self._file.execute("select name, created_us, fields from buckets where name = ?", (name,)).fetchone()
        return None if row is None else Bucket(row[0], row[1], json.loads(row[2]))

    def buckets(self) -> list[Bucket]:
        """Return all buckets by name."""
        rows = self._file.execute("select name, created_us, fields from buckets order by name").fetchall()
        return [Bucket(name, created, json.loads(fields)) for name, created, fields in rows]

    def put_bucket(self, bucket: Bucket) -> None:
        """Write the row of a bucket."""
        values = (bucket.name, bucket.created_us, json.dumps(bucket.fields))
        self._file.execute("insert or replace into buckets values (?, ?, ?)", values)

    def drop_bucket(self, name: str) -> None:
        """Remove the row of a bucket."""
        self._file.execute("delete from buckets where name = ?", (name,))


def _record(row: Sequence[Any]) -> Record:
    return Record(*(*row[:-1], json.loads(row[-1])))
