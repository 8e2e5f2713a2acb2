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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from contracts import storage
from contracts.artifacts import ShardManifest
from contracts.config import DataSection
from contracts.errors import DataError, StorageError
from trainer.data.cache import INDEX_FOLDER, RangeCache
from trainer.data.plan import cache_limit

SHARED_MEMORY = Path("/dev/shm")
_PREFIX = f"shardline-{os.getuid()}-"
_ALIVE = "alive"
# An index up to here is compared with its checksum whenever it is opened (some 50 ms), a larger one when it comes.
_CHECKED_INDEX_BYTES = 128 << 20
_INDEX_PIECE_BYTES = 32 << 20
_INDEX_STREAMS = 8
# Room for each byte of ours: where loader processes pass batches too, and on a disk, for its own records.
_SHARED_MEMORY_FACTOR, _DISK_FACTOR = 1.25, 1.02
_log = logging.getLogger(__name__)


class CacheFolder:
    """The cache of this machine, and where the index is kept.

    Args:
        data: cache_dir and cache_bytes, else memory_bytes.
        name: Equal in all processes that share what is in memory; unset: they are this process and its children.
    """

    def __init__(self, data: DataSection, name: str | None = None) -> None:
        self._close = None
        self._is_fitted = self._in_shared_memory = False
        self._field = cache_limit(data)[0]
        if data.cache_bytes:
            folder = Path(data.cache_dir).expanduser().absolute()
            self.ranges, self._index_folder = RangeCache(folder, data.cache_bytes), folder / INDEX_FOLDER
            self.ranges.open()
            return
        name = _PREFIX + (name or uuid.uuid4().hex)
        # The index may be larger than the bound on memory: it is a plain file, which the system holds in memory or not.
        places = [_place_in_memory(data.memory_bytes), Path(tempfile.gettempdir())]
        for place in dict.fromkeys(places):
            _delete_abandoned(place)
        kept = {place: _keep(place / name) for place in dict.fromkeys(places)}
        self.ranges = RangeCache(places[0] / name, data.memory_bytes)
        self.ranges.open()
        self._in_shared_memory = places[0] == SHARED_MEMORY
        self._index_folder = places[1] / name / INDEX_FOLDER
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
        if limit < min(self.ranges.limit_bytes, sum(shard.bytes for shard in manifest.shards)):
            _log.warning(
                "%s = %d, but there is room for %d bytes of shards in %s: that is the bound now",
                *(self._field, self.ranges.limit_bytes, limit, self.ranges.folder),
            )
        self.ranges = replace(self.ranges, limit_bytes=limit)
        return self.ranges

    def index_path(self, shards_uri: str, manifest: ShardManifest) -> Path:
        """Return the index as a file of this machine, downloaded if no process has done so.

        Raises:
            DataError: It is missing, or has other bytes than the manifest says.
            StorageError: There is no room for it.
        """
        entry = manifest.index
        uri = entry.uri(shards_uri)
        if storage.is_local(uri):
            return storage.local_path(uri)
        path = self._index_folder / f"{entry.crc32c}-{entry.bytes}.bin"
        try:
            self._index_folder.mkdir(parents=True, exist_ok=True)
            with (self._index_folder / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _is_index(path, entry.bytes, entry.crc32c):
                    _download(uri, entry.bytes, entry.crc32c, path)
        except FileNotFoundError:
            raise _wrong_index(uri, "is not there") from None
        except OSError as error:
            raise StorageError(
                f"the index of {storage.display(shards_uri)} ({entry.bytes} bytes) cannot be kept in {path.parent} "
                f"({error.strerror or error})",
                allowed="a folder with room for it",
                todo="set data.cache_dir and data.cache_bytes, or TMPDIR, to a disk with room",
            ) from None
        return path


def _is_index(path: Path, size: int, crc32c: str) -> bool:
    if not path.exists() or path.stat().st_size != size:
        return False
    return size > _CHECKED_INDEX_BYTES or storage.crc32c_of(path.as_uri()) == crc32c


def _download(uri: str, size: int, crc32c: str, path: Path) -> None:
    """Fetch a file in pieces side by side, and publish it when its checksum is right."""
    temporary = path.with_suffix(f".{uuid.uuid4().hex}.part")
    for leftover in path.parent.glob("*.part"):
        leftover.unlink()
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)

    def fetch(start: int) -> int:
        position = start

        def write(content: bytes) -> None:
            nonlocal position
            view = memoryview(content)
            while view:
                written = os.pwrite(descriptor, view, position)
                position += written
                view = view[written:]

        return storage.copy_range(uri, start, min(_INDEX_PIECE_BYTES, size - start), write)

    try:
        # Twice: what was wrong on the line is right the second time.
        for _ in range(2):
            with ThreadPoolExecutor(_INDEX_STREAMS, thread_name_prefix="index") as threads:
                found = sum(threads.map(fetch, range(0, size, _INDEX_PIECE_BYTES)))
            found_crc32c = storage.crc32c_of(temporary.as_uri())
            if (found, found_crc32c) == (size, crc32c):
                temporary.rename(path)
                return
    finally:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)
    raise _wrong_index(uri, f"has {found} bytes and crc32c {found_crc32c}, its manifest says {size} and {crc32c}")


def _wrong_index(uri: str, what: str) -> DataError:
    return DataError(
        f"the index {uri} {what}",
        allowed="the index that the shard stage wrote",
        todo="run the shard stage again with --fresh, or copy the folder of shards again",
    )


def _place_in_memory(size: int) -> Path:
    """Return where files stay in memory, if there may be room for `size` bytes, else the temporary folder."""
    with contextlib.suppress(OSError):
        status = os.statvfs(SHARED_MEMORY)
        # Of the whole, not of what is free: all ranks must find the same place.
        if status.f_blocks * status.f_frsize >= _SHARED_MEMORY_FACTOR * size and os.access(SHARED_MEMORY, os.W_OK):
            return SHARED_MEMORY
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
            _delete_unused(folder)


def _delete_unused(folder: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / _ALIVE, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its lock file goes first: whoever has opened it sees that it is another one now.
            (folder / _ALIVE).unlink()
            shutil.rmtree(folder)
        finally:
            os.close(descriptor)
