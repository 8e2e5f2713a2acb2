"""Where the bytes of a bucket's shards lie on this machine: in data.cache_dir, else in memory while they are read.

In memory means files below /dev/shm, or in the temporary folder where that is too small. Every process that reads keeps
a lock on the folder; the last one deletes it, and what killed processes left is deleted by the next that begins.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
import uuid
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

from contracts import storage
from contracts.artifacts import FileEntry, ShardManifest
from contracts.artifacts.shard_table import shard_columns
from contracts.config import DataSection
from trainer.data.bucket.cache import RangeCache
from trainer.data.bucket.index_cache import fetch_index
from trainer.data.bucket.plan import cache_limit
from trainer.data.bucket.rows import FetchedRows

SHARED_MEMORY = Path("/dev/shm")
_PREFIX = f"shardline-{os.getuid()}-"
_ALIVE = "alive"
# Of a folder that is being deleted.
_GONE = ".gone"
# Room for each byte of ours: where loader processes pass batches too, and on a disk, for its own records.
_SHARED_MEMORY_FACTOR, _DISK_FACTOR = 1.25, 1.02
_log = logging.getLogger(__name__)


class CacheFolder:
    """The cache of this machine, and where the index is kept.

    Args:
        data: cache_dir and cache_bytes, else memory_bytes.
        name: Of an attempt: equal in all processes that share what is in memory, and that need look at the index only
            once; unset: they are this process and its children.
    """

    def __init__(self, data: DataSection, name: str | None = None) -> None:
        self._close = None
        self._is_fitted = self._in_shared_memory = False
        self._field = cache_limit(data)[0]
        self._attempt = name or uuid.uuid4().hex
        if data.cache_bytes:
            folder = Path(data.cache_dir).expanduser().absolute()
            # Where the index is kept: beside the ranges.
            self.ranges = self._kept = RangeCache(folder, data.cache_bytes)
            self.ranges.open()
            return
        name = _PREFIX + self._attempt
        # The index may be larger than the bound on memory: it is a plain file, which the system holds in memory or not.
        places = [_place_in_memory(data.memory_bytes), Path(tempfile.gettempdir())]
        for place in dict.fromkeys(places):
            _delete_abandoned(place)
        kept = {place: _keep(place / name) for place in dict.fromkeys(places)}
        self.ranges = RangeCache(places[0] / name, data.memory_bytes)
        self.ranges.open()
        self._in_shared_memory = places[0] == SHARED_MEMORY
        self._kept = RangeCache(places[1] / name, 0)
        owned = [(place / name, descriptor) for place, descriptor in kept.items()]
        # Also at the end of the process, whatever ends it in order; not in a forked child.
        self._close = weakref.finalize(self, _let_go, owned, os.getpid())

    def __getstate__(self) -> dict[str, Any]:
        # A spawned loader process reads as long as its parent does, which keeps the folder.
        return {**self.__dict__, "_close": None}

    def close(self) -> None:
        """Let go of the folder; what lies in memory is deleted when nobody else reads it."""
        if self._close is not None:
            self._close()

    def fitted(self, manifest: ShardManifest) -> RangeCache:
        """Return the cache, its bound lowered to what the disk has room for; the log says so where it matters."""
        if self._is_fitted:
            return self.ranges
        self._is_fitted = True
        limit = self.ranges.limit_bytes
        with contextlib.suppress(OSError):
            status = os.statvfs(self.ranges.folder)
            room = status.f_bavail * status.f_frsize
            factor = _SHARED_MEMORY_FACTOR if self._in_shared_memory else _DISK_FACTOR
            # Ranges are only looked at where it matters: there may be many.
            if room < factor * limit:
                limit = min(limit, int((room + self.ranges.used_bytes()) / factor))
        if limit < min(self.ranges.limit_bytes, int(shard_columns(manifest.shards).bytes.sum())):
            _log.warning(
                "%s = %d, but there is room for %d bytes of shards in %s: that is the bound now",
                *(self._field, self.ranges.limit_bytes, limit, self.ranges.folder),
            )
        self.ranges = replace(self.ranges, limit_bytes=limit)
        return self.ranges

    def index_path(self, shards_uri: str, entry: FileEntry) -> Path:
        """Return the index, or a part of it, as a file of this machine, downloaded if no process has done so.

        Args:
            shards_uri: Folder of the shards.
            entry: The manifest's, of the file.

        Raises:
            DataError: It is missing, or has other bytes than the manifest says.
            StorageError: There is no room for it.
        """
        uri = entry.uri(shards_uri)
        return storage.local_path(uri) if storage.is_local(uri) else fetch_index(uri, entry, self._kept, self._attempt)

    def rows(self, shards_uri: str, manifest: ShardManifest) -> FetchedRows:
        """Return the index of shards in a bucket, of which rows are fetched when they are needed."""
        return FetchedRows(shards_uri, manifest, self._kept, self.ranges.limit_bytes)


def _place_in_memory(size: int) -> Path:
    """Return where files stay in memory, if there may be room for `size` bytes, else the temporary folder."""
    place = SHARED_MEMORY
    with contextlib.suppress(OSError):
        status = os.statvfs(place)
        # Of the whole, not of what is free: all ranks must find the same place.
        if status.f_blocks * status.f_frsize >= _SHARED_MEMORY_FACTOR * size and os.access(place, os.W_OK):
            return place
    return Path(tempfile.gettempdir())


def _keep(folder: Path) -> int:
    """Make a folder and hold a lock in it that says that it is used; return the lock's descriptor."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            descriptor = os.open(folder / _ALIVE, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue
        # Its marker: what lies in it is ours.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with contextlib.suppress(OSError):
            if (folder / _ALIVE).stat().st_ino == os.fstat(descriptor).st_ino:
                RangeCache(folder, 0).mark()
                return descriptor
        os.close(descriptor)


def _let_go(owned: list[tuple[Path, int]], owner: int) -> None:
    if os.getpid() != owner:
        return
    for folder, descriptor in owned:
        # Also for forked children, which share the lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
        _delete_unused(folder)


def _delete_abandoned(place: Path) -> None:
    """Delete what killed processes of this user have left."""
    with contextlib.suppress(OSError):
        for folder in place.glob(_PREFIX + "*"):
            if folder.suffix == _GONE:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                _delete_unused(folder)


def _delete_unused(folder: Path) -> None:
    """Delete a folder that no process keeps."""
    with contextlib.suppress(OSError):
        try:
            descriptor = os.open(folder / _ALIVE, os.O_RDWR)
        except FileNotFoundError:
            # Of a process that was killed before it made the file; whoever is about to make it begins again.
            folder.rmdir()
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another's folder may have this name by now.
            if (folder / _ALIVE).stat().st_ino == os.fstat(descriptor).st_ino:
                # At once out of the way: who joins while files are deleted one by one would lose some of its own.
                gone = folder.with_name(f"{_PREFIX}{uuid.uuid4().hex}{_GONE}")
                folder.rename(gone)
                shutil.rmtree(gone)
        finally:
            os.close(descriptor)
