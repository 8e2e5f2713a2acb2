"""Objects of all buckets: one live generation each, in memory, with content in a file (content.py).

Changes and their preconditions are checked under one lock. The generation is also the file's modification time, so that
it survives a restart of the server; other fields (content type, metadata) do not.
"""

from __future__ import annotations

import base64
import bisect
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from rehearsal.errors import StorageError
from rehearsal.gcs.content import Checksums, ContentFolder, StagedFile

PROJECT_NUMBER = "123456789012"
# https://cloud.google.com/storage/quotas#objects
MAX_NAME_BYTES = 1024
WRITE_INTERVAL_S = 1.0
"""Time between two writes to one name, in seconds: https://docs.cloud.google.com/storage/quotas#objects."""


@dataclass(frozen=True)
class Bucket:
    """One bucket."""

    name: str
    created_us: int
    fields: dict[str, Any]

    def resource(self, endpoint: str) -> dict[str, Any]:
        """Return it as https://cloud.google.com/storage/docs/json_api/v1/buckets#resource."""
        created = _time_text(self.created_us)
        resource = {
            "kind": "storage#bucket",
            "id": self.name,
            "selfLink": f"{endpoint}/storage/v1/b/{self.name}",
            "projectNumber": PROJECT_NUMBER,
            "name": self.name,
            "timeCreated": created,
            "updated": created,
            "metageneration": "1",
            "location": "US",
            "locationType": "multi-region",
            "storageClass": "STANDARD",
            "etag": "CAE=",
            "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "inherited"},
            "softDeletePolicy": {"retentionDurationSeconds": "0"},
        }
        return resource | self.fields


@dataclass(frozen=True)
class Record:
    """A live object. Its metageneration is always 1, since metadata cannot be changed."""

    bucket: str
    name: str
    generation: int
    """Microseconds since 1970 of the write."""
    path: Path
    size: int
    crc32c: str
    md5: str
    fields: dict[str, Any] = field(default_factory=dict)
    """Fields set by clients: contentType, metadata, cacheControl and so on."""

    @property
    def etag(self) -> str:
        """ETag of the generation."""
        return base64.b64encode(f"{self.generation}/1".encode()).decode()

    def resource(self, endpoint: str) -> dict[str, Any]:
        """Return it as https://cloud.google.com/storage/docs/json_api/v1/objects#resource."""
        path = f"b/{quote(self.bucket, safe='')}/o/{quote(self.name, safe='')}"
        created = _time_text(self.generation)
        resource: dict[str, Any] = {
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "selfLink": f"{endpoint}/storage/v1/{path}",
            "mediaLink": f"{endpoint}/download/storage/v1/{path}?generation={self.generation}&alt=media",
            "name": self.name,
            "bucket": self.bucket,
            "generation": str(self.generation),
            "metageneration": "1",
            "contentType": "application/octet-stream",
            "storageClass": "STANDARD",
            "size": str(self.size),
            "crc32c": self.crc32c,
            "md5Hash": self.md5,
            "etag": self.etag,
            "timeCreated": created,
            "updated": created,
            "timeStorageClassUpdated": created,
        }
        return resource | self.fields


@dataclass(frozen=True)
class Preconditions:
    """Preconditions on the live object: https://cloud.google.com/storage/docs/request-preconditions.

    Generation 0 means that the object does not exist, so ifGenerationMatch=0 never overwrites.
    """

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Preconditions:
        """Read the JSON API's query parameters."""
        return cls(
            number_in(query, "ifGenerationMatch"),
            number_in(query, "ifGenerationNotMatch"),
            number_in(query, "ifMetagenerationMatch"),
            number_in(query, "ifMetagenerationNotMatch"),
        )

    def check(self, record: Record | None, *, reading: bool = False) -> None:
        """Compare with the live object.

        Raises:
            StorageError: 412; or 304 for a read of an unchanged object.
        """
        generation, metageneration = (record.generation, 1) if record else (0, 0)
        if self.generation_match not in (None, generation) or self.metageneration_match not in (None, metageneration):
            raise StorageError(412, "At least one of the pre-conditions you specified did not hold.")
        if generation == self.generation_not_match or metageneration == self.metageneration_not_match:
            if reading:
                raise StorageError(304, "Not Modified")
            raise StorageError(412, "At least one of the pre-conditions you specified did not hold.")


NOTHING = Preconditions()


class Objects:
    """The buckets and objects below a root folder.

    Two writes to one object are at least `write_interval_s` apart (0: no limit).
    """

    def __init__(
        self, root: Path, *, write_interval_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._contents = ContentFolder(root)
        self._write_interval_s, self._clock = write_interval_s, clock
        # The oldest first.
        self._written_s: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._lock = threading.RLock()
        self._buckets: dict[str, Bucket] = {}
        self._names: dict[str, list[str]] = {}
        """Sorted object names per bucket. Python's string order equals UTF-8 byte order."""
        self._records: dict[tuple[str, str], Record] = {}
        self._last_us = 0
        for bucket, name, path, checksums in self._contents.adopt():
            if bucket not in self._buckets:
                self.create_bucket(bucket, {})
            generation = max(1, path.stat().st_mtime_ns // 1000)
            self._last_us = max(self._last_us, generation)
            self._put(_record(bucket, name, generation, path, checksums, {}))

    def _next_us(self) -> int:
        """Return a new generation: the time in microseconds, strictly increasing."""
        self._last_us = max(self._last_us + 1, time.time_ns() // 1000)
        return self._last_us

    # --- buckets ---

    def create_bucket(self, name: str, fields: dict[str, Any]) -> Bucket:
        """Create a bucket; StorageError 409 if it exists."""
        with self._lock:
            if name in self._buckets:
                text = "Your previous request to create the named bucket succeeded and you already own it."
                raise StorageError(409, text)
            self._contents.make_bucket(name)
            self._buckets[name], self._names[name] = Bucket(name, self._next_us(), fields), []
            return self._buckets[name]

    def bucket(self, name: str) -> Bucket:
        """Return a bucket; StorageError 404 if it does not exist."""
        with self._lock:
            if name not in self._buckets:
                raise StorageError(404, "The specified bucket does not exist.")
            return self._buckets[name]

    def buckets(self) -> list[Bucket]:
        """Return all buckets by name."""
        with self._lock:
            return sorted(self._buckets.values(), key=lambda bucket: bucket.name)

    def delete_bucket(self, name: str) -> None:
        """Delete an empty bucket; StorageError 404 or 409."""
        with self._lock:
            self.bucket(name)
            if self._names[name]:
                raise StorageError(409, "The bucket you tried to delete is not empty.")
            del self._buckets[name], self._names[name]
            self._contents.remove_bucket(name)

    # --- reading ---

    def find(self, bucket: str, name: str) -> Record | None:
        """Return the live object or None; StorageError 404 if the bucket does not exist."""
        with self._lock:
            self.bucket(bucket)
            return self._records.get((bucket, name))

    def get(
        self,
        bucket: str,
        name: str,
        generation: int | None = None,
        check: Preconditions = NOTHING,
        *,
        reading: bool = True,
    ) -> Record:
        """Return the live object; StorageError 404, or that of a failed precondition."""
        record = self.find(bucket, name)
        if record is None or generation not in (None, record.generation):
            raise StorageError(404, f"No such object: {bucket}/{name}")
        check.check(record, reading=reading)
        return record

    def open(
        self, bucket: str, name: str, generation: int | None = None, check: Preconditions = NOTHING
    ) -> tuple[Record, BinaryIO]:
        """Return the live object and its content, which later overwrites do not affect."""
        with self._lock:
            record = self.get(bucket, name, generation, check)
            return record, record.path.open("rb")

    def rows(self, bucket: str, start: str, end: str, limit: int) -> list[Record]:
        """Return up to `limit` objects with start <= name (< end, where that is not empty), by their UTF-8 names."""
        with self._lock:
            names = self._names.get(bucket, [])
            first = bisect.bisect_left(names, start)
            last = bisect.bisect_left(names, end) if end else len(names)
            return [self._records[bucket, name] for name in names[first : min(last, first + limit)]]

    # --- writing ---

    def stage(self) -> StagedFile:
        """Start an upload, for `commit`."""
        return self._contents.stage()

    def check_upload(self, bucket: str, name: str, check: Preconditions) -> None:
        """Raise StorageError for an invalid name, a missing bucket or failed preconditions."""
        if not name or len(name.encode()) > MAX_NAME_BYTES or {"\r", "\n", "\0"} & set(name) or name in (".", ".."):
            raise StorageError(400, f"Invalid object name: {name[:80]!r} ({len(name.encode())} bytes)")
        if name.startswith(".well-known/acme-challenge/"):
            raise StorageError(400, "Invalid object name: it starts with .well-known/acme-challenge/")
        check.check(self.find(bucket, name))

    def commit(
        self, bucket: str, name: str, staged: StagedFile, fields: dict[str, Any], check: Preconditions = NOTHING
    ) -> Record:
        """Publish a complete upload as the live object; on an error the caller must discard it."""
        staged.finish()
        with self._lock:
            self.check_upload(bucket, name, check)
            self._count_write(bucket, name)
            generation = self._next_us()
            os.utime(staged.path, ns=(generation * 1000, generation * 1000))
            previous = self._records.get((bucket, name))
            path = self._contents.publish(staged, bucket, name)
            if previous is not None and previous.path != path:
                self._contents.remove(bucket, previous.path)
            record = _record(bucket, name, generation, path, staged.checksums, fields)
            self._put(record)
            return record

    def _count_write(self, bucket: str, name: str) -> None:
        """Count a write; StorageError 429 within the interval after the last write to this name.

        Deletions and refused requests do not count: undocumented, our choice.
        """
        now_s = self._clock()
        while self._written_s and next(iter(self._written_s.values())) <= now_s - self._write_interval_s:
            self._written_s.popitem(last=False)
        if (bucket, name) in self._written_s:
            limit = f"one write in {self._write_interval_s:g} s"
            raise StorageError(429, f"The object {bucket}/{name} exceeded the rate limit of {limit}.")
        if self._write_interval_s:
            self._written_s[bucket, name] = now_s

    def write(
        self,
        bucket: str,
        name: str,
        pieces: Iterable[bytes],
        fields: dict[str, Any] | None = None,
        check: Preconditions = NOTHING,
        verify: Callable[[Checksums], None] = lambda checksums: None,
    ) -> Record:
        """Write an object from pieces; discards it if `pieces` or `verify` raise."""
        staged = self.stage()
        try:
            for piece in pieces:
                staged.write(piece)
            verify(staged.checksums)
            return self.commit(bucket, name, staged, fields or {}, check)
        except BaseException:
            staged.discard()
            raise

    def delete(self, bucket: str, name: str, generation: int | None = None, check: Preconditions = NOTHING) -> None:
        """Delete the live object; StorageError 404 or 412."""
        with self._lock:
            record = self.get(bucket, name, generation, check, reading=False)
            self._remove(record)
            self._contents.remove(bucket, record.path)

    def _put(self, record: Record) -> None:
        with self._lock:
            if (record.bucket, record.name) not in self._records:
                bisect.insort(self._names[record.bucket], record.name)
            self._records[record.bucket, record.name] = record

    def _remove(self, record: Record) -> None:
        with self._lock:
            names = self._names[record.bucket]
            del names[bisect.bisect_left(names, record.name)], self._records[record.bucket, record.name]


def number_in(values: Mapping[str, str], name: str) -> int | None:
    """Parse an integer of a query or of headers, None if it is missing; StorageError 400 if it is invalid."""
    text = values.get(name)
    try:
        return None if text is None else int(text)
    except ValueError:
        raise StorageError(400, f"Invalid value for {name}: {text!r}") from None


def _record(
    bucket: str, name: str, generation: int, path: Path, checksums: Checksums, fields: dict[str, Any]
) -> Record:
    return Record(bucket, name, generation, path, checksums.size, checksums.crc32c, checksums.md5, fields)


def _time_text(microseconds: int) -> str:
    """Return a time in RFC 3339, in milliseconds, as Cloud Storage writes it."""
    seconds, remainder = divmod(microseconds, 10**6)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{remainder // 1000:03d}Z"
