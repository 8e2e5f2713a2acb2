"""Local cache of shards in a bucket, shared by all processes of this machine, and safe to kill at any time.

    DIR/CRC-BYTES-NAME         a shard or an index; its modification time is its last use, or 0
    DIR/CRC-BYTES-NAME.part    a file being fetched while its lock is taken
    DIR/shardline-cache/       locks; a non-empty folder without it is refused

Locks use flock, so a killed process releases them. Files may be deleted at any time; open files stay readable. Files
are neither verified nor flushed here: samples and indices are verified on every read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from contracts import storage
from contracts.artifacts import FileEntry, ShardEntry, ShardManifest
from contracts.config import DataSection
from contracts.environment import user_cache
from contracts.errors import ConfigError, DataError, ShardlineError, StorageError

# Concurrent fetches per process.
STREAMS = 8
NEVER = sys.maxsize

_LOCKS, _ROOM_LOCK, _PART = "shardline-cache", "room", ".part"
# Entries allowed in a new cache folder.
_NOT_FOREIGN = {"lost+found"}
_POLL_S = 0.02

Item = TypeVar("Item")
_log = logging.getLogger(__name__)


class ShardCache:
    """Caches shards and indices of a bucket in a local folder, up to `limit_bytes`.

    Raises:
        ConfigError: The folder is not a cache, cannot be written, or the limit is below the largest shard.
    """

    def __init__(self, shards_uri: str, manifest: ShardManifest, data: DataSection) -> None:
        self.folder = Path(data.cache_dir).expanduser().absolute() if data.cache_dir else user_cache("shards")
        self._shards_uri, self._shards = shards_uri, manifest.shards
        self._open_folder()
        self.limit_bytes = data.cache_bytes or self._half_of_disk()
        largest = max(map(self.bytes_of, range(len(self._shards))), default=0)
        if largest > self.limit_bytes:
            limit = (
                f"data.cache_bytes = {self.limit_bytes}" if data.cache_bytes else f"half of the disk of {self.folder}"
            )
            raise ConfigError(
                f"{limit} does not hold the largest shard with its index ({largest} bytes)",
                allowed="room for one shard; training is fast with room for twice the shards of a window",
                todo=f"set data.cache_bytes to {largest} or more, or shard again with a smaller "
                "sharding.target_shard_bytes",
            )

    def bytes_of(self, shard: int) -> int:
        """Return the bytes of a shard and its index."""
        return self._shards.bytes[shard] + self._shards.index_bytes[shard]

    def path_of(self, entry: FileEntry) -> Path:
        """Return the cache path of a shard or an index; the file may not exist."""
        return self.folder / f"{entry.crc32c}-{entry.bytes}-{entry.name.rpartition('/')[2]}"

    def open(self, entry: FileEntry) -> int:
        """Return a descriptor of a shard or an index, fetching it if needed; the caller closes it.

        Raises:
            DataError: It is missing in the bucket.
            StorageError: The disk is full or not writable.
        """
        path = self.path_of(entry)
        while True:
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY)
                _touch(path)
                return descriptor
            if (fetched := self._fetch(entry)) is not None:
                return fetched

    def read_index(self, entry: ShardEntry) -> bytes:
        """Return the content of a shard's index; a damaged file is fetched again once. Raises like `open`."""
        for _ in range(2):
            with open(self.open(entry.index), "rb") as stream:
                content = stream.read()
            if storage.crc32c(content) == entry.index.crc32c:
                break
            self.discard(entry.index)
        return content

    def discard(self, entry: FileEntry) -> None:
        """Delete a corrupt file; the next use fetches it again."""
        self.path_of(entry).unlink(missing_ok=True)

    def prefetch(self, shard: int) -> None:
        """Fetch a shard and its index unless cached or being fetched; raises like `open`."""
        entry = self._shards[shard]
        for file in (entry.index, entry):
            if not _touch(self.path_of(file)):
                with contextlib.suppress(BlockingIOError):
                    if (descriptor := self._fetch(file, wait=False)) is not None:
                        os.close(descriptor)

    def release(self, shard: int) -> None:
        """Mark a shard as the first to be evicted."""
        entry = self._shards[shard]
        for file in (entry.index, entry):
            _touch(self.path_of(file), time_s=0.0)

    def _fetch(self, entry: FileEntry, *, wait: bool = True) -> int | None:
        """Fetch a file and return its descriptor; None: retry, another process fetched it or deleted the folder.

        Without `wait`, raises BlockingIOError if another process is fetching it.
        """
        path = self.path_of(entry)
        part = path.with_name(path.name + _PART)
        try:
            with self._locked(path.name, wait=wait):
                if path.exists():
                    return None
                descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
                try:
                    self._receive(entry, descriptor)
                    part.rename(path)
                except BaseException:
                    os.close(descriptor)
                    part.unlink(missing_ok=True)
                    raise
        except FileNotFoundError:
            return None
        except BlockingIOError:
            raise
        except OSError as error:
            raise StorageError(
                f"shard {entry.relative_path} ({entry.bytes} bytes) cannot be kept in {self.folder} ({error.strerror})",
                allowed="a disk with room for data.cache_bytes that you may write",
                todo="delete other files there, set data.cache_bytes lower, or set data.cache_dir to a folder of a "
                "larger disk",
            ) from None
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    def _receive(self, entry: FileEntry, descriptor: int) -> None:
        self._reserve(entry.bytes, descriptor)
        uri = entry.uri(self._shards_uri)
        try:
            with open(descriptor, "wb", closefd=False) as stream:
                storage.copy_range(uri, 0, entry.bytes, stream.write)
        except FileNotFoundError:
            raise DataError(
                f"shard {entry.relative_path} cannot be read (there is no {uri})",
                allowed="shards as the shard stage left them",
                todo="run the shard stage again with --fresh, or copy the folder of shards again",
            ) from None

    def _reserve(self, size: int, descriptor: int) -> None:
        """Allocate a file's full length, evicting least recently used files if needed."""
        while True:
            with self._locked(_ROOM_LOCK):
                sizes = self._sizes()
                used_bytes, disk_error = sum(sizes.values()), None
                for evicted in (None, *(path for path in sizes if path.suffix != _PART)):
                    if evicted is not None:
                        evicted.unlink(missing_ok=True)
                        used_bytes -= sizes[evicted]
                    if used_bytes + size <= self.limit_bytes:
                        try:
                            os.posix_fallocate(descriptor, 0, size)
                            return
                        except OSError as error:
                            # Other programs use the disk too.
                            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                                raise
                            disk_error = error
                if disk_error is not None:
                    raise disk_error
            # Files being fetched take all the space; they can be evicted once complete.
            time.sleep(_POLL_S)

    def _sizes(self) -> dict[Path, int]:
        """Return the sizes of all files, least recently used first; delete files of killed processes."""
        files = []
        for path in self.folder.glob("*-*-*"):
            # Files may be deleted at any time.
            with contextlib.suppress(FileNotFoundError):
                if path.suffix != _PART or not self._delete_abandoned(path):
                    status = path.stat()
                    files.append((status.st_mtime_ns, path, status.st_size))
        return {path: size for _, path, size in sorted(files)}

    def _delete_abandoned(self, part: Path) -> bool:
        """Delete a partial file if no process is fetching it; return whether it was deleted."""
        try:
            with self._locked(part.stem, wait=False):
                part.unlink(missing_ok=True)
        except BlockingIOError:
            return False
        return True

    def _half_of_disk(self) -> int:
        """Return half of the free space, including the cache's files."""
        status = os.statvfs(self.folder)
        return (status.f_bavail * status.f_frsize + sum(self._sizes().values())) // 2

    @contextlib.contextmanager
    def _locked(self, name: str, *, wait: bool = True) -> Iterator[None]:
        path = self.folder / _LOCKS / name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)
        except FileNotFoundError:
            self._open_folder()
            descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield
        finally:
            # A forked child shares the lock, so closing would not release it.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _open_folder(self) -> None:
        """Create the folder, or check an existing one."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            names = {entry.name for entry in self.folder.iterdir()} - _NOT_FOREIGN
            # Another process may have created the cache meanwhile.
            if names and not (self.folder / _LOCKS).exists():
                raise ConfigError(
                    f"data.cache_dir {self.folder} is not empty, and is no cache of shards ({min(names)} lies there)",
                    allowed="a folder that is empty, not there, or was a cache before",
                    todo="choose another folder",
                )
            (self.folder / _LOCKS).mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"data.cache_dir {self.folder} cannot be used ({error.strerror})",
                allowed="a folder that you may write",
                todo="choose another folder, or correct its permissions",
            ) from None


def _touch(path: Path, time_s: float | None = None) -> bool:
    """Set the time of a file's last use, by default now; return whether the file exists."""
    try:
        os.utime(path, None if time_s is None else (time_s, time_s))
    except FileNotFoundError:
        return False
    except PermissionError:
        # The file belongs to another user.
        return path.exists()
    return True


class Need(NamedTuple):
    """A shard that is needed until a position; NEVER: always."""

    until: int
    shard: int


class Prefetcher:
    """Prefetches shards in threads, up to the cache's limit.

    `needs` are in reading order, with non-decreasing `until`. Without a cache it does nothing. Start it after the
    loader processes: a fork would copy locks of its threads.
    """

    def __init__(self, cache: ShardCache | None, needs: Iterable[Need] = ()) -> None:
        self._cache, self._needs = cache, iter(needs)
        self._changed = threading.Condition()
        # Waiting for space.
        self._next: Need | None = None
        # Fetched, or being fetched.
        self._active: deque[Need] = deque()
        self._active_bytes = self._position = 0
        self._is_closed = False

    def start(self) -> Self:
        """Begin to fetch."""
        if self._cache is not None:
            for _ in range(STREAMS):
                threading.Thread(target=self._fetch_all, args=(self._cache,), name="prefetch", daemon=True).start()
        return self

    def start_with(self, requests: Iterable[Item]) -> Iterator[Item]:
        """Yield requests, and start with the first one: by then the loader has forked its processes."""
        self.start()
        yield from requests

    def advance(self, position: int) -> None:
        """Report that everything before a position was read."""
        if self._cache is None:
            return
        with self._changed:
            self._position = position
            read = set()
            while self._active and self._active[0].until <= position:
                shard = self._active.popleft().shard
                self._active_bytes -= self._cache.bytes_of(shard)
                read.add(shard)
            # Except shards that the next epoch needs soon.
            for shard in read - {need.shard for need in self._active}:
                self._cache.release(shard)
            self._changed.notify_all()

    def close(self) -> None:
        """Start no more fetches; does not wait for running ones."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _fetch_all(self, cache: ShardCache) -> None:
        while (shard := self._take(cache)) is not None:
            try:
                cache.prefetch(shard)
            except ShardlineError as error:
                # The reader raises the same error.
                _log.warning("fetching ahead failed: %s", error)

    def _take(self, cache: ShardCache) -> int | None:
        """Wait for space and return the next shard to fetch; None at the end."""
        with self._changed:
            while not self._is_closed:
                self._next = self._next or next(self._needs, None)
                if self._next is None:
                    return None
                need, size = self._next, cache.bytes_of(self._next.shard)
                if need.until <= self._position:
                    self._next = None
                elif not self._active or self._active_bytes + size <= cache.limit_bytes:
                    self._next = None
                    self._active.append(need)
                    self._active_bytes += size
                    return need.shard
                else:
                    self._changed.wait()
            return None


def check_room(shards_uri: str, data: DataSection, manifest: ShardManifest) -> str | None:
    """Raise ConfigError if this machine cannot cache the shards; return a warning if data.cache_dir has no effect."""
    if not storage.is_local(shards_uri):
        ShardCache(shards_uri, manifest, data)
    elif data.cache_dir:
        return (
            f"data.cache_dir {data.cache_dir} has no effect: the shards are local files, which are read where they are"
        )
    return None
