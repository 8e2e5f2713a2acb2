"""Shards of a bucket as files of this machine, shared by all its processes, safe for a kill at any moment.

    DIR/CRC-BYTES-NAME         a shard or an index; its modification time is that of its last use, or 0
    DIR/CRC-BYTES-NAME.part    being fetched, if a process holds its lock
    DIR/shardline-cache/       the locks; a folder that is not empty and lacks this one is refused

Locks are the kernel's (flock): a killed process holds none, so the next that needs the file fetches it. A file may
vanish at any time, but an open one stays readable. Nothing is verified or flushed to the disk here: samples and
indices are compared with their checksums whenever they are read.
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

# Shards that a process fetches at a time.
STREAMS = 8
NEVER = sys.maxsize

_LOCKS, _ROOM_LOCK, _PART = "shardline-cache", "room", ".part"
# Present in a new file system.
_NOT_FOREIGN = {"lost+found"}
_POLL_S = 0.02

Item = TypeVar("Item")
_log = logging.getLogger(__name__)


class ShardCache:
    """The shards of a manifest in a bucket and their indices, of at most `limit_bytes` in a folder of this machine.

    Raises:
        ConfigError: The folder is another's, cannot be written, or may not hold the largest shard.
    """

    def __init__(self, shards_uri: str, manifest: ShardManifest, data: DataSection) -> None:
        self.folder = Path(data.cache_dir).expanduser().absolute() if data.cache_dir else user_cache("shards")
        self._shards_uri, self._shards = shards_uri, manifest.shards
        self._open_folder()
        self.limit_bytes = data.cache_bytes or self._half_of_disk()
        largest = max(map(self.bytes_of, range(len(self._shards))), default=0)
        if largest > self.limit_bytes:
            given = (
                f"data.cache_bytes = {self.limit_bytes}" if data.cache_bytes else f"half of the disk of {self.folder}"
            )
            raise ConfigError(
                f"{given} does not hold the largest shard with its index ({largest} bytes)",
                allowed="room for one shard; training is fast with room for twice the shards of a window",
                todo=f"set data.cache_bytes to {largest} or more, or shard again with a smaller "
                "sharding.target_shard_bytes",
            )

    def bytes_of(self, shard: int) -> int:
        """Return the bytes of a shard and its index."""
        return self._shards.bytes[shard] + self._shards.index_bytes[shard]

    def path_of(self, entry: FileEntry) -> Path:
        """Return the path of a shard or an index, whether it is there or not."""
        return self.folder / f"{entry.crc32c}-{entry.bytes}-{entry.name.rpartition('/')[2]}"

    def open(self, entry: FileEntry) -> int:
        """Return a descriptor of a shard or an index, fetched if it is not there, to be closed by the caller.

        Raises:
            DataError: The bucket lacks it.
            StorageError: The disk is full, or there is no permission.
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
        """Return the content of a shard's index; a damaged file is fetched again once. Raises as `open`."""
        for _ in range(2):
            with open(self.open(entry.index), "rb") as stream:
                content = stream.read()
            if storage.crc32c(content) == entry.index.crc32c:
                break
            self.discard(entry.index)
        return content

    def discard(self, entry: FileEntry) -> None:
        """Delete a file with wrong bytes; the next process that needs it fetches it."""
        self.path_of(entry).unlink(missing_ok=True)

    def prefetch(self, shard: int) -> None:
        """Fetch a shard and its index, except what is there or being fetched; raises as `open`."""
        entry = self._shards[shard]
        for file in (entry.index, entry):
            if not _touch(self.path_of(file)):
                with contextlib.suppress(BlockingIOError):
                    if (descriptor := self._fetch(file, wait=False)) is not None:
                        os.close(descriptor)

    def release(self, shard: int) -> None:
        """Let a shard that is not needed for now be deleted before others."""
        entry = self._shards[shard]
        for file in (entry.index, entry):
            _touch(self.path_of(file), time_s=0.0)

    def _fetch(self, entry: FileEntry, *, wait: bool = True) -> int | None:
        """Fetch a file and return a descriptor of it; None: look again, another process has fetched it.

        Without `wait`, BlockingIOError is raised while another process is fetching it.
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
            # The folder was deleted meanwhile.
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
        """Allocate a file's full length, after the least recently used files have made room for it."""
        while True:
            with self._locked(_ROOM_LOCK):
                sizes = self._sizes()
                used, full = sum(sizes.values()), None
                for victim in (None, *(path for path in sizes if path.suffix != _PART)):
                    if victim is not None:
                        victim.unlink(missing_ok=True)
                        used -= sizes[victim]
                    if used + size <= self.limit_bytes:
                        try:
                            os.posix_fallocate(descriptor, 0, size)
                            return
                        except OSError as error:
                            # Others write to the disk too.
                            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                                raise
                            full = error
                if full is not None:
                    raise full
            # Files that others are fetching take all the room: once complete, they can be deleted.
            time.sleep(_POLL_S)

    def _sizes(self) -> dict[Path, int]:
        """Return the sizes of all files, the least recently used first; what a killed process left is deleted."""
        found = []
        for path in self.folder.glob("*-*-*"):
            # A file may vanish at any time.
            with contextlib.suppress(FileNotFoundError):
                if path.suffix != _PART or not self._delete_abandoned(path):
                    status = path.stat()
                    found.append((status.st_mtime_ns, path, status.st_size))
        return {path: size for _, path, size in sorted(found)}

    def _delete_abandoned(self, part: Path) -> bool:
        """Delete a file that no process is fetching any more; return whether it was deleted."""
        try:
            with self._locked(part.stem, wait=False):
                part.unlink(missing_ok=True)
        except BlockingIOError:
            return False
        return True

    def _half_of_disk(self) -> int:
        """Return half of the free space, the cache's own files counted as free."""
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
            # A child that was forked meanwhile has the lock too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _open_folder(self) -> None:
        """Make the folder, or take an existing one; that of the locks first."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            names = {entry.name for entry in self.folder.iterdir()} - _NOT_FOREIGN
            # The second look: another process may have begun after the first.
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
    """Set the time of a file's last use, by default now; return whether it is there."""
    try:
        os.utime(path, None if time_s is None else (time_s, time_s))
    except FileNotFoundError:
        return False
    except PermissionError:
        # It is another user's.
        return path.exists()
    return True


class Need(NamedTuple):
    """A shard, by its number in the manifest, that is read before a position; NEVER: it stays needed."""

    until: int
    shard: int


class Prefetcher:
    """Threads that fetch shards ahead of reading, as many as the cache holds until they are read.

    `needs` are in the order of need, and their `until` never falls; without a cache nothing is fetched. Loader
    processes are forked: start it after them, since a fork copies locks that its threads hold.
    """

    def __init__(self, cache: ShardCache | None, needs: Iterable[Need] = ()) -> None:
        self._cache, self._needs = cache, iter(needs)
        self._changed = threading.Condition()
        # Waits for room.
        self._next: Need | None = None
        # Fetched, or being fetched.
        self._held: deque[Need] = deque()
        self._held_bytes = self._position = 0
        self._is_closed = False

    def start(self) -> Self:
        """Begin to fetch."""
        if self._cache is not None:
            for _ in range(STREAMS):
                threading.Thread(target=self._fetch_all, args=(self._cache,), name="prefetch", daemon=True).start()
        return self

    def start_with(self, requests: Iterable[Item]) -> Iterator[Item]:
        """Yield requests, and start with the first: a loader asks for it when its processes are there."""
        self.start()
        yield from requests

    def advance(self, position: int) -> None:
        """Take note that everything before a position was read."""
        if self._cache is None:
            return
        with self._changed:
            self._position = position
            read = set()
            while self._held and self._held[0].until <= position:
                shard = self._held.popleft().shard
                self._held_bytes -= self._cache.bytes_of(shard)
                read.add(shard)
            # Not those that the next epoch needs soon.
            for shard in read - {need.shard for need in self._held}:
                self._cache.release(shard)
            self._changed.notify_all()

    def close(self) -> None:
        """Begin no more fetches; those under way are not waited for, since the bucket may not answer."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _fetch_all(self, cache: ShardCache) -> None:
        while (shard := self._take(cache)) is not None:
            try:
                cache.prefetch(shard)
            except ShardlineError as error:
                # The reader meets the same error, and ends training by it.
                _log.warning("fetching ahead failed: %s", error)

    def _take(self, cache: ShardCache) -> int | None:
        """Return the next shard to fetch, as soon as there is room for it; None: there is none."""
        with self._changed:
            while not self._is_closed:
                self._next = self._next or next(self._needs, None)
                if self._next is None:
                    return None
                need, size = self._next, cache.bytes_of(self._next.shard)
                if need.until <= self._position:
                    self._next = None
                elif not self._held or self._held_bytes + size <= cache.limit_bytes:
                    self._next = None
                    self._held.append(need)
                    self._held_bytes += size
                    return need.shard
                else:
                    self._changed.wait()
            return None


def check_room(shards_uri: str, data: DataSection, manifest: ShardManifest) -> str | None:
    """Raise ConfigError if this machine cannot keep shards of a bucket; return a warning of a vain setting."""
    if not storage.is_local(shards_uri):
        ShardCache(shards_uri, manifest, data)
    elif data.cache_dir:
        return (
            f"data.cache_dir {data.cache_dir} has no effect: the shards are local files, which are read where they are"
        )
    return None
