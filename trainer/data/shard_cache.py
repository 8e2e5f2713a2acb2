"""Shards of a bucket as files of this machine, shared by all its processes, safe for a kill at any moment.

    DIR/shardline-cache      the marker: a folder that is not empty and lacks it is refused
    DIR/.lock                held while room is made
    DIR/CRC-BYTES-NAME       a shard or an index; its time of change is that of its last use, or 0
    DIR/CRC-BYTES-NAME.part  being fetched by the process that holds its lock

Locks are the kernel's (flock): a killed process holds none, so whoever needs the file next fetches it. A file may
vanish at any time, but an open one stays readable. Samples and indices are compared with their checksums when they are
read, so nothing is compared here, and nothing is flushed to the disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from contracts import storage
from contracts.artifacts import FileEntry, ShardEntry, ShardManifest
from contracts.config import DataSection
from contracts.environment import user_cache
from contracts.errors import ConfigError, DataError, StorageError

MARKER_NAME = "shardline-cache"
_LOCK_NAME, _PART = ".lock", ".part"
# What a new file system has on its own.
_NOT_FOREIGN = {"lost+found"}
# How often it is looked whether other processes have made room.
_PAUSE_S = 0.02


class ShardCache:
    """The shards of a manifest in a bucket, and their indices, fetched whole to a folder of this machine.

    Args:
        shards_uri: Folder of the shards.
        manifest: Their manifest.
        data: cache_dir and cache_bytes.

    Attributes:
        folder: Where the files lie.
        limit_bytes: Most bytes of all files.

    Raises:
        ConfigError: The folder is another's, cannot be written, or may not hold the largest shard.
    """

    def __init__(self, shards_uri: str, manifest: ShardManifest, data: DataSection) -> None:
        self.folder = Path(data.cache_dir).expanduser().absolute() if data.cache_dir else user_cache("shards")
        self._shards_uri, self._shards = shards_uri, manifest.shards
        self._open_folder()
        self.limit_bytes = data.cache_bytes or self._half_of_disk()
        sizes = zip(manifest.shards.bytes, manifest.shards.index_bytes, strict=True)
        if (least := max(map(sum, sizes), default=0)) > self.limit_bytes:
            given = f"data.cache_bytes = {self.limit_bytes}"
            raise ConfigError(
                f"{given if data.cache_bytes else f'half of the disk of {self.folder}'} does not hold the largest "
                f"shard with its index ({least} bytes)",
                allowed="room for one shard; training is fast with room for twice the shards of a window",
                todo=f"set data.cache_bytes to {least} or more, or shard again with a smaller "
                "sharding.target_shard_bytes",
            )

    def fetch(self, shard: int) -> Path:
        """Return the file of a shard, fetched if it is not there; raises as `open`."""
        os.close(self.open(shard))
        return self._path(self._shards[shard])

    def open(self, shard: int) -> int:
        """Return a descriptor of a shard, fetched if it is not there, to be closed by the caller.

        Args:
            shard: Its number in the manifest.

        Raises:
            DataError: The bucket lacks it.
            StorageError: The disk is full, or there is no permission.
            TryAgain: The bucket does not answer.
        """
        return self._open(self._shards[shard])

    def read_index(self, entry: ShardEntry) -> bytes:
        """Return the content of a shard's index; a damaged file is fetched again once. Raises as `open`."""
        for _ in range(2):
            with open(self._open(entry.index), "rb") as stream:
                content = stream.read()
            if storage.crc32c(content) == entry.index.crc32c:
                break
            self._path(entry.index).unlink(missing_ok=True)
        return content

    def bytes_of(self, shard: int) -> int:
        """Return the bytes of a shard and its index."""
        return self._shards.bytes[shard] + self._shards.index_bytes[shard]

    def discard(self, shard: int) -> None:
        """Delete a file whose bytes are wrong; whoever needs the shard next fetches it."""
        self._path(self._shards[shard]).unlink(missing_ok=True)

    def prefetch(self, shard: int, given_up: Callable[[], bool] = lambda: False) -> None:
        """Fetch a shard and its index if they are not there, unless other processes are doing so; raises as `open`.

        Args:
            shard: Its number in the manifest.
            given_up: Asked whenever bytes come: whether to end without them.
        """
        entry = self._shards[shard]
        for file in (entry.index, entry):
            if not _date(self._path(file)):
                with contextlib.suppress(_GivenUp, BlockingIOError):
                    if (descriptor := self._fetch(file, wait=False, given_up=given_up)) is not None:
                        os.close(descriptor)

    def done(self, shard: int) -> None:
        """Say that a shard is not needed for now: it goes before others."""
        entry = self._shards[shard]
        for file in (entry.index, entry):
            _date(self._path(file), time_s=0.0)

    def _path(self, entry: FileEntry) -> Path:
        return self.folder / f"{entry.crc32c}-{entry.bytes}-{entry.name.rpartition('/')[2]}"

    def _open(self, entry: FileEntry) -> int:
        path = self._path(entry)
        while True:
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY)
                _date(path)
                return descriptor
            if (fetched := self._fetch(entry)) is not None:
                return fetched

    def _fetch(
        self, entry: FileEntry, *, wait: bool = True, given_up: Callable[[], bool] = lambda: False
    ) -> int | None:
        """Fetch a file; return a descriptor of it. None: look again, another process has fetched it.

        Raises:
            BlockingIOError: Another process is doing so, and it is not waited for.
        """
        path = self._path(entry)
        part = path.with_name(path.name + _PART)
        try:
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            self._open_folder()
            return None
        except OSError as error:
            raise self._full(entry, error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # Whoever had the lock may have given the file its name, or deleted it.
            is_current = _is_at(descriptor, part)
            # Or done so before this process made the new one.
            if not is_current or path.exists():
                if is_current:
                    part.unlink()
                _release(descriptor)
                return None
            self._receive(entry, descriptor, given_up)
            # Not there: the folder was deleted meanwhile. What was fetched can be read all the same.
            with contextlib.suppress(FileNotFoundError):
                part.rename(path)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.lseek(descriptor, 0, os.SEEK_SET)
            return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise
        except BaseException:
            with contextlib.suppress(OSError):
                if _is_at(descriptor, part):
                    part.unlink()
            _release(descriptor)
            raise

    def _receive(self, entry: FileEntry, descriptor: int, given_up: Callable[[], bool]) -> None:
        def write(content: bytes) -> None:
            if given_up():
                raise _GivenUp
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]

        uri = entry.uri(self._shards_uri)
        try:
            self._reserve(entry.bytes, descriptor, given_up)
            try:
                storage.copy_range(uri, 0, entry.bytes, write)
            except FileNotFoundError:
                raise DataError(
                    f"shard {entry.relative_path} cannot be read (there is no {uri})",
                    allowed="shards as the shard stage left them",
                    todo="run the shard stage again with --fresh, or copy the folder of shards again",
                ) from None
        except OSError as error:
            raise self._full(entry, error) from None

    def _reserve(self, size: int, descriptor: int, given_up: Callable[[], bool]) -> None:
        """Give a file its full length, when the least recently used ones have made room for it."""
        os.ftruncate(descriptor, 0)
        while not given_up():
            with self._locked():
                if self._evict(size, self.limit_bytes):
                    try:
                        os.posix_fallocate(descriptor, 0, max(1, size))
                    except OSError as error:
                        # Others write to the disk too.
                        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._evict(size):
                            raise
                        os.posix_fallocate(descriptor, 0, max(1, size))
                    os.ftruncate(descriptor, size)
                    return
            # What others are fetching takes all the room: it is soon complete, and can make room then.
            time.sleep(_PAUSE_S)
        raise _GivenUp

    def _evict(self, size: int, limit_bytes: int | None = None) -> bool:
        """Delete what was used least recently until `size` more bytes fit; return whether they do.

        Args:
            size: In bytes.
            limit_bytes: Of all files; unset: what they have now.
        """
        files, used = [], 0
        for path, status in self._files():
            used += status.st_size
            if path.suffix != _PART:
                files.append((status.st_mtime_ns, status.st_size, path))
            elif status.st_size and _delete_abandoned(path):
                used -= status.st_size
        limit = used if limit_bytes is None else limit_bytes
        for _, freed, path in sorted(files):
            if used + size <= limit:
                break
            path.unlink(missing_ok=True)
            used -= freed
        return used + size <= limit

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self.folder.glob("*-*-*"):
            # A file may vanish at any time.
            with contextlib.suppress(FileNotFoundError):
                yield path, path.stat()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if not (self.folder / MARKER_NAME).exists():
            self._open_folder()
        descriptor = os.open(self.folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            _release(descriptor)

    def _open_folder(self) -> None:
        """Make the folder, or take one that is there, the marker first."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            marker = self.folder / MARKER_NAME
            found = {entry.name for entry in self.folder.iterdir()} - _NOT_FOREIGN
            # The second look: another process may have begun after the first.
            if found and not marker.exists():
                raise ConfigError(
                    f"data.cache_dir {self.folder} is not empty, and is no cache of shards ({min(found)} lies there)",
                    allowed="a folder that is empty, not there, or was a cache before",
                    todo="choose another folder",
                )
            marker.touch()
        except OSError as error:
            raise ConfigError(
                f"data.cache_dir {self.folder} cannot be used ({error.strerror})",
                allowed="a folder that you may write",
                todo="choose another folder, or correct its permissions",
            ) from None

    def _half_of_disk(self) -> int:
        """Return half of what is free for the cache, what it has already included."""
        status = os.statvfs(self.folder)
        return (status.f_bavail * status.f_frsize + sum(file.st_size for _, file in self._files())) // 2

    def _full(self, entry: FileEntry, error: OSError) -> StorageError:
        return StorageError(
            f"shard {entry.relative_path} ({entry.bytes} bytes) cannot be kept in {self.folder} ({error.strerror})",
            allowed="a disk with room for data.cache_bytes that you may write",
            todo="delete other files there, set data.cache_bytes lower, or set data.cache_dir to a folder of a larger "
            "disk",
        )


def _date(path: Path, time_s: float | None = None) -> bool:
    """Note when a file was used, now unless a time is given; return whether it is there."""
    try:
        os.utime(path, None if time_s is None else (time_s, time_s))
    except FileNotFoundError:
        return False
    except PermissionError:
        # It is another user's.
        return path.exists()
    return True


def _release(descriptor: int) -> None:
    """Close a file and give up its lock: a child that was forked meanwhile has both too."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file has this name."""
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def _delete_abandoned(part: Path) -> bool:
    """Delete a file that no process holds the lock of; say whether it was."""
    try:
        stream = part.open("rb")
    except FileNotFoundError:
        # It was complete meanwhile, and has its name.
        return False
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # While the lock is held: whoever waits for it sees that the file is gone.
        if _is_at(stream.fileno(), part):
            part.unlink()
    return True


class _GivenUp(Exception):
    """Nobody wants what is being fetched any more."""
