"""The objects of all buckets: one live generation each, in an index that says which content it has.

A row of the index is the commit: content is complete on disk before the row names it, and what the row no longer names
is removed after it, so a server that is killed shows the old object or the new one. Every change happens under one
lock, with its preconditions checked inside it.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

from rehearsal.gcs.content import STATE_FOLDER, Content, ContentFolder
from rehearsal.gcs.index import Bucket, Index, Record
from rehearsal.gcs.messages import ApiError
from rehearsal.gcs.preconditions import NOTHING, Preconditions
from rehearsal.gcs.write_rate import WriteRate

# https://cloud.google.com/storage/quotas#objects
MAX_NAME_BYTES = 1024


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

    def bucket(self, name: str) -> Bucket:
        """Return a bucket; ApiError 404 when it is not there."""
        with self.lock:
            found = self._index.find_bucket(name)
        if found is None:
            raise ApiError(404, "The specified bucket does not exist.")
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
                raise ApiError(409, "The bucket you tried to delete is not empty.")
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
    ) -> Record:
        """Make a finished content the live object; the content is removed when that is refused."""
        with self.lock:
            try:
                self.check_upload(bucket, name, check)
                self.write_rate.take(bucket, name)
            except BaseException:
                self.contents.remove(content.id)
                raise
            now = self._next_us()
            record = Record(bucket, name, now, 1, now, content.id, content.size, content.crc32c, content.md5, fields)
            self._replace(record)
            return record

    def _replace(self, record: Record) -> None:
        """Let a new generation take its place."""
        old = self._index.find(record.bucket, record.name)
        self._index.put(record)
        self.contents.show(record.bucket, record.name, record.content_id)
        if old is not None:
            self.contents.remove(old.content_id)

    def delete(self, bucket: str, name: str, generation: int | None, check: Preconditions) -> None:
        """Delete the live object; ApiError 404 or 412."""
        with self.lock:
            found = self.get(bucket, name, generation, check, reading=False)
            self._index.drop(bucket, name)
            self.contents.hide(bucket, name)
            self.contents.remove(found.content_id)
