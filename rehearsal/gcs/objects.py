"""The objects of all buckets: one live generation each, in an index that says which content it has.

A row of the index is the commit: content is complete on disk before the row names it, and what the row no longer names
is removed after it, so a server that is killed shows the old object or the new one. Every change happens under one
lock, with its preconditions checked inside it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from rehearsal.gcs.content import STATE_FOLDER, Content, ContentFolder, read_in_turn
from rehearsal.gcs.index import Bucket, Index, Record
from rehearsal.gcs.messages import ApiError
from rehearsal.gcs.preconditions import NOTHING, Preconditions
from rehearsal.gcs.write_rate import WriteRate

# https://cloud.google.com/storage/quotas#objects
MAX_NAME_BYTES = 1024
MAX_COMPOSED = 32


class Objects:
    """The buckets and objects below a root folder.

    Args:
        root: The folder, made if it is not there.
        write_interval_s: Shortest time between two writes to one object; 0: no limit (write_rate.py).
        location: Of the buckets that plain files make.
    """

    def __init__(self, root: Path, *, write_interval_s: float = 0.0, location: str = "US") -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._location = location
        self.write_rate = WriteRate(write_interval_s)
        self.contents = ContentFolder(root)
        self.lock = threading.RLock()
        self._index = Index(root / STATE_FOLDER / "index.sqlite")
        self._last_us = self._index.last_generation()
        try:
            self._recover()
        except BaseException:
            self._index.close()
            raise

    def close(self) -> None:
        """Close the index."""
        with self.lock:
            self._index.close()

    def _recover(self) -> None:
        live = self._index.contents()
        for bucket, name, content in self.contents.recover(live):
            if self._index.find_bucket(bucket) is None:
                self.create_bucket(bucket, {"location": self._location})
            self.commit(bucket, name, content, {})

    def _next_us(self) -> int:
        """Return the time in microseconds, never the same twice: a new generation."""
        self._last_us = max(self._last_us + 1, time.time_ns() // 1000)
        return self._last_us

    # --- buckets ---

    def create_bucket(self, name: str, fields: dict[str, Any]) -> Bucket:
        """Make a bucket; ApiError 409 when it exists."""
        with self.lock:
            if self._index.find_bucket(name) is not None:
                raise ApiError(
                    409, "Your previous request to create the named bucket succeeded and you already own it."
                )
            bucket = Bucket(name, self._next_us(), fields)
            self.contents.make_bucket(name)
            self._index.put_bucket(bucket)
            return bucket

    def update_bucket(self, name: str, changes: Mapping[str, Any]) -> Bucket:
        """Change a bucket's own fields; None removes one."""
        with self.lock:
            bucket = self.bucket(name)
            bucket = replace(bucket, fields=merge(bucket.fields, changes))
            self._index.put_bucket(bucket)
            return bucket

    def bucket(self, name: str) -> Bucket:
        """Return a bucket; ApiError 404 when it is not there."""
        with self.lock:
            found = self._index.find_bucket(name)
        if found is None:
            raise ApiError(404, "The specified bucket does not exist.", code="NoSuchBucket")
        return found

    def buckets(self) -> list[Bucket]:
        """Return all buckets by name."""
        with self.lock:
            return self._index.buckets()

    def delete_bucket(self, name: str) -> None:
        """Delete an empty bucket; ApiError 404 or 409."""
        with self.lock:
            self.bucket(name)
            if self._index.rows(name, "", "", 1):
                raise ApiError(409, "The bucket you tried to delete is not empty.", code="BucketNotEmpty")
            self._index.drop_bucket(name)
            self.contents.remove_bucket(name)

    # --- reading ---

    def find(self, bucket: str, name: str) -> Record | None:
        """Return the live object, None when there is none; ApiError 404 when there is no bucket."""
        with self.lock:
            found = self._index.find(bucket, name)
            if found is None:
                self.bucket(bucket)
            return found

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
            return self._index.rows(bucket, start, end, limit)

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
        with self.lock:
            try:
                self.check_upload(bucket, name, check)
                self.write_rate.take("write", bucket, name)
            except BaseException:
                self.contents.remove(content.id)
                raise
            now = self._next_us()
            md5 = content.md5 if with_md5 else None
            record = Record(
                bucket, name, now, 1, now, content.id, content.size, content.crc32c, md5, components, fields
            )
            self._replace(record)
            return record

    def _replace(self, record: Record, *, moved_from: Record | None = None) -> None:
        """Let a new generation take its place, and another object's row go with the same commit."""
        old = self._index.find(record.bucket, record.name)
        with self._index.transaction():
            self._index.put(record)
            if moved_from is not None:
                self._index.drop(moved_from.bucket, moved_from.name)
        self.contents.show(record.bucket, record.name, record.content_id)
        if old is not None:
            self.contents.remove(old.content_id)
        if moved_from is not None:
            self._forget(moved_from)

    def _forget(self, record: Record) -> None:
        """Remove the files of an object whose row is gone."""
        self.contents.hide(record.bucket, record.name)
        self.contents.remove(record.content_id)

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
            self.write_rate.take("metadata update", bucket, name)
            changed = replace(
                found,
                metageneration=found.metageneration + 1,
                updated_us=self._next_us(),
                fields=merge(found.fields if keep else {}, changes),
            )
            self._index.put(changed)
            return changed

    def delete(self, bucket: str, name: str, generation: int | None, check: Preconditions) -> None:
        """Delete the live object; ApiError 404 or 412."""
        with self.lock:
            found = self.get(bucket, name, generation, check, reading=False)
            self._index.drop(bucket, name)
            self._forget(found)

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
            if name == source:
                return self.copy(found, bucket, name, None, check)
            self.check_upload(bucket, name, check)
            self.write_rate.take("write", bucket, name)
            now = self._next_us()
            content_id = self.contents.duplicate(found.content_id)
            moved = replace(found, name=name, generation=now, metageneration=1, updated_us=now, content_id=content_id)
            self._replace(moved, moved_from=found)
            return moved

    def compose(
        self, bucket: str, name: str, sources: Sequence[Record], fields: dict[str, Any], check: Preconditions
    ) -> Record:
        """Make an object of others' bytes, one after the other."""
        if not 1 <= len(sources) <= MAX_COMPOSED:
            raise ApiError(
                400, f"The number of source components provided ({len(sources)}) is not in 1..{MAX_COMPOSED}"
            )
        self.check_upload(bucket, name, check)
        with self.lock:
            # A source may have gone since it was looked up; once it is open its bytes stay.
            for source in sources:
                self.get(source.bucket, source.name, source.generation)
            files = [self.contents.open(source.content_id) for source in sources]
        content = self.contents.write(read_in_turn(files))
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
