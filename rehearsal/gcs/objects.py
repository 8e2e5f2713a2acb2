"""The objects of all buckets: one live generation each, in an index that says which content it has.

The index is an SQLite table, and its row is the commit: content is complete on disk before the row names it, so a
server that is killed shows the old object or the new one. (Only a power cut may lose the last rows: nothing waits for
the disk.) Every change happens under one lock, with its preconditions checked inside it.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from rehearsal.gcs.content import STATE_FOLDER, Content, ContentFolder
from rehearsal.gcs.messages import ApiError
from rehearsal.gcs.preconditions import NOTHING, Preconditions

# https://cloud.google.com/storage/quotas#objects
MAX_NAME_BYTES = 1024
MAX_COMPOSED = 32

_SCHEMA = """
create table if not exists buckets (name text primary key, created_us integer, fields text) without rowid;
create table if not exists objects (
    bucket text, name text, generation integer, metageneration integer, updated_us integer,
    content text, size integer, crc32c text, md5 text, components integer, fields text,
    primary key (bucket, name)
) without rowid;
"""
_COLUMNS = "bucket, name, generation, metageneration, updated_us, content, size, crc32c, md5, components, fields"


@dataclass(frozen=True)
class Record:
    """One live object."""

    bucket: str
    name: str
    generation: int
    metageneration: int
    updated_us: int
    content_id: str
    size: int
    crc32c: str
    md5: str | None
    """None for composed objects, which have none in Cloud Storage either."""
    components: int | None
    """Number of parts of a composed object."""
    fields: dict[str, Any] = field(default_factory=dict)
    """What a client may set: contentType, metadata, cacheControl and so on."""


@dataclass(frozen=True)
class Bucket:
    """One bucket."""

    name: str
    created_us: int
    fields: dict[str, Any]


class Objects:
    """The buckets and objects below a root folder."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.contents = ContentFolder(root)
        self.lock = threading.RLock()
        self._index = _open_index(root / STATE_FOLDER / "index.sqlite")
        self._last_us = self._number("select coalesce(max(generation), 0) from objects")
        self._recover()

    def close(self) -> None:
        """Close the index."""
        with self.lock:
            self._index.close()

    def _recover(self) -> None:
        rows = self._index.execute("select bucket, name, content from objects").fetchall()
        self.contents.sweep({row[2] for row in rows})
        for row in rows:
            self.contents.show_again(*row)
        for bucket, name, content in self.contents.strangers():
            if self._bucket(bucket) is None:
                self.create_bucket(bucket, {})
            self.commit(bucket, name, content, {})

    def _number(self, query: str, *values: object) -> int:
        return int(self._index.execute(query, values).fetchone()[0])

    def _next_us(self) -> int:
        """Return the time in microseconds, never the same twice: a new generation."""
        self._last_us = max(self._last_us + 1, time.time_ns() // 1000)
        return self._last_us

    # --- buckets ---

    def create_bucket(self, name: str, fields: dict[str, Any]) -> Bucket:
        """Make a bucket; ApiError 409 when it exists."""
        with self.lock:
            if self._bucket(name) is not None:
                raise ApiError(
                    409, "Your previous request to create the named bucket succeeded and you already own it."
                )
            bucket = Bucket(name, self._next_us(), fields)
            self.contents.make_bucket(name)
            self._write_bucket(bucket)
            return bucket

    def update_bucket(self, name: str, changes: Mapping[str, Any]) -> Bucket:
        """Change a bucket's own fields; None removes one."""
        with self.lock:
            bucket = self.bucket(name)
            bucket = replace(bucket, fields=merge(bucket.fields, changes))
            self._write_bucket(bucket)
            return bucket

    def bucket(self, name: str) -> Bucket:
        """Return a bucket; ApiError 404 when it is not there."""
        with self.lock:
            found = self._bucket(name)
        if found is None:
            raise ApiError(404, "The specified bucket does not exist.", code="NoSuchBucket")
        return found

    def buckets(self) -> list[Bucket]:
        """Return all buckets by name."""
        with self.lock:
            rows = self._index.execute("select name, created_us, fields from buckets order by name").fetchall()
        return [Bucket(name, created, json.loads(fields)) for name, created, fields in rows]

    def delete_bucket(self, name: str) -> None:
        """Delete an empty bucket; ApiError 404 or 409."""
        with self.lock:
            self.bucket(name)
            if self._number("select exists(select 1 from objects where bucket = ?)", name):
                raise ApiError(409, "The bucket you tried to delete is not empty.", code="BucketNotEmpty")
            self._index.execute("delete from buckets where name = ?", (name,))
            self.contents.remove_bucket(name)

    def _bucket(self, name: str) -> Bucket | None:
        row = self._index.execute("select created_us, fields from buckets where name = ?", (name,)).fetchone()
        return None if row is None else Bucket(name, row[0], json.loads(row[1]))

    def _write_bucket(self, bucket: Bucket) -> None:
        self._index.execute(
            "insert or replace into buckets values (?, ?, ?)",
            (bucket.name, bucket.created_us, json.dumps(bucket.fields)),
        )

    # --- reading ---

    def find(self, bucket: str, name: str) -> Record | None:
        """Return the live object, None when there is none; ApiError 404 when there is no bucket."""
        with self.lock:
            query = f"select {_COLUMNS} from objects where bucket = ? and name = ?"
            row = self._index.execute(query, (bucket, name)).fetchone()
            if row is None:
                self.bucket(bucket)
                return None
        return _record(row)

    def get(
        self,
        bucket: str,
        name: str,
        generation: int | None = None,
        check: Preconditions = NOTHING,
        *,
        reading: bool = True,
    ) -> Record:
        """Return the live object; ApiError 404, or what the preconditions say."""
        found = self.find(bucket, name)
        if found is None or generation not in (None, found.generation):
            raise ApiError(404, f"No such object: {bucket}/{name}")
        check.check(found.generation, found.metageneration, reading=reading)
        return found

    def open(self, bucket: str, name: str, generation: int | None, check: Preconditions) -> tuple[Record, BinaryIO]:
        """Return the live object and its bytes; an overwrite meanwhile does not touch them."""
        with self.lock:
            found = self.get(bucket, name, generation, check)
            return found, self.contents.open(found.content_id)

    def rows(self, bucket: str, start: str, end: str, limit: int) -> list[Record]:
        """Return up to `limit` objects with start <= name (< end, where that is not empty), by their UTF-8 names."""
        with self.lock:
            bounds = "and name < ?" if end else ""
            query = f"select {_COLUMNS} from objects where bucket = ? and name >= ? {bounds} order by name limit ?"
            values = (bucket, start, end, limit) if end else (bucket, start, limit)
            found = self._index.execute(query, values).fetchall()
        return [_record(row) for row in found]

    # --- writing ---

    def check_upload(self, bucket: str, name: str, check: Preconditions) -> None:
        """Raise what an upload under this name would: a bad name, no bucket, preconditions that do not hold."""
        if not name or len(name.encode()) > MAX_NAME_BYTES or {"\r", "\n", "\0"} & set(name) or name in (".", ".."):
            raise ApiError(400, f"Invalid object name: {name[:80]!r} ({len(name.encode())} bytes)")
        if name.startswith(".well-known/acme-challenge/"):
            raise ApiError(400, "Invalid object name: it starts with .well-known/acme-challenge/")
        found = self.find(bucket, name)
        check.check(found.generation if found else 0, found.metageneration if found else 0)

    def commit(
        self,
        bucket: str,
        name: str,
        content: Content,
        fields: dict[str, Any],
        check: Preconditions = NOTHING,
        *,
        components: int | None = None,
        with_md5: bool = True,
    ) -> Record:
        """Make a finished content the live object; the content is removed when that is refused."""
        try:
            with self.lock:
                self.check_upload(bucket, name, check)
                now = self._next_us()
                md5 = content.md5 if with_md5 else None
                record = Record(
                    bucket, name, now, 1, now, content.id, content.size, content.crc32c, md5, components, fields
                )
                self._write(record)
        except BaseException:
            self.contents.remove(content.id)
            raise
        return record

    def _write(self, record: Record) -> None:
        old = self.find(record.bucket, record.name)
        values = (
            record.bucket,
            record.name,
            record.generation,
            record.metageneration,
            record.updated_us,
            record.content_id,
            record.size,
            record.crc32c,
            record.md5,
            record.components,
            json.dumps(record.fields),
        )
        self._index.execute(f"insert or replace into objects ({_COLUMNS}) values ({', '.join('?' * 11)})", values)
        if old is None or old.content_id != record.content_id:
            self.contents.show(record.bucket, record.name, record.content_id)
            if old is not None:
                self.contents.remove(old.content_id)

    def patch(
        self,
        bucket: str,
        name: str,
        generation: int | None,
        changes: Mapping[str, Any],
        check: Preconditions,
        *,
        keep: bool = True,
    ) -> Record:
        """Change an object's fields (None removes one): the same generation, the next metageneration.

        `keep` is false for an update, which removes what it does not name.
        """
        with self.lock:
            found = self.get(bucket, name, generation, check, reading=False)
            changed = replace(
                found,
                metageneration=found.metageneration + 1,
                updated_us=self._next_us(),
                fields=merge(found.fields if keep else {}, changes),
            )
            self._write(changed)
            return changed

    def delete(self, bucket: str, name: str, generation: int | None, check: Preconditions) -> None:
        """Delete the live object; ApiError 404 or 412."""
        with self.lock:
            found = self.get(bucket, name, generation, check, reading=False)
            self._index.execute("delete from objects where bucket = ? and name = ?", (bucket, name))
            self.contents.hide(bucket, name)
            self.contents.remove(found.content_id)

    def copy(
        self, source: Record, bucket: str, name: str, fields: dict[str, Any] | None, check: Preconditions
    ) -> Record:
        """Make a new object of the same bytes, without moving any; `fields` None takes the source's."""
        with self.lock:
            # The source may have gone since it was looked up.
            self.get(source.bucket, source.name, source.generation)
            content = Content(self.contents.duplicate(source.content_id), source.size, source.crc32c, source.md5 or "")
            return self.commit(
                bucket,
                name,
                content,
                source.fields if fields is None else fields,
                check,
                components=source.components,
                with_md5=source.md5 is not None,
            )

    def move(
        self,
        bucket: str,
        source: str,
        name: str,
        generation: int | None,
        of_source: Preconditions,
        check: Preconditions,
    ) -> Record:
        """Rename an object within its bucket, in one step."""
        with self.lock:
            found = self.get(bucket, source, generation, of_source, reading=False)
            moved = self.copy(found, bucket, name, None, check)
            if name != source:
                self.delete(bucket, source, found.generation, NOTHING)
            return moved

    def compose(
        self, bucket: str, name: str, sources: Sequence[Record], fields: dict[str, Any], check: Preconditions
    ) -> Record:
        """Make an object of others' bytes, one after the other."""
        if not 1 <= len(sources) <= MAX_COMPOSED:
            raise ApiError(
                400, f"The number of source components provided ({len(sources)}) is not in 1..{MAX_COMPOSED}"
            )
        with self.lock:
            pieces = (piece for source in sources for piece in self.contents.pieces(source.content_id))
            content = self.contents.write(pieces)
        total = sum(source.components or 1 for source in sources)
        return self.commit(bucket, name, content, fields, check, components=total, with_md5=False)


def merge(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields after a PATCH: mappings are merged, None removes (RFC 7396, which Google's "patch" follows)."""
    merged = dict(fields)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def _open_index(path: Path) -> sqlite3.Connection:
    index = sqlite3.connect(path, check_same_thread=False, timeout=1)
    index.isolation_level = None
    try:
        # One writer: a second server on the same root would give out the same generations.
        index.execute("pragma locking_mode = exclusive")
        index.execute("pragma journal_mode = wal")
        # A kill loses nothing that was written; only a power cut can.
        index.execute("pragma synchronous = off")
        index.executescript(_SCHEMA)
    except sqlite3.OperationalError as error:
        index.close()
        raise RuntimeError(f"{path.parent.parent} cannot be served ({error}): does another server use it?") from error
    return index


def _record(row: Sequence[Any]) -> Record:
    return Record(*(*row[:-1], json.loads(row[-1])))
