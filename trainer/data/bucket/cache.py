"""Ranges of shards on a disk of this machine, shared by all ranks and loader processes, safe for a kill at any moment.

    DIR/shardline-cache       the marker: without it a folder that is not empty is nobody's to write to
    DIR/.lock, DIR/.usage     who adds bytes; how many there are
    DIR/SHARD/.lock           who looks at or claims ranges of a shard; SHARD is its crc32c and size
    DIR/SHARD/FIRST-COUNT     the bytes of samples [FIRST, FIRST + COUNT) of the shard: under this name never changed
    DIR/SHARD/FIRST-COUNT.part   a claim on them: being fetched by the process that holds its lock

Locks are the kernel's (flock): those of a killed process are gone with it, so its claims fall to whoever comes next.
Nothing here is believed: whoever reads a sample compares it with the index, and discards a range that is wrong. A file
may vanish at any time. Nothing is flushed to the disk for the same reason.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from contracts.errors import ConfigError

MARKER_NAME = "shardline-cache"
INDEX_FOLDER = "index"
_NAME = re.compile(r"(\d+)-(\d+)(\.part)?")
# What a fresh file system has on its own.
_NOT_FOREIGN = {"lost+found"}
# Ranges that are done with are dated back by so much: they go before all that are still to be read.
_DONE_AGE_S = 10 * 365 * 86400
# Evicted at a time, of what is done with: looking at every file for each new range would cost more than it frees.
_SLACK = 0.05
_USAGE = struct.Struct("<q")


class CachedRange(NamedTuple):
    """A range in the cache: samples [first, end) of a shard."""

    first: int
    end: int
    path: Path


class RangeClaim:
    """A range that this process is to fetch: write to `descriptor`, then `publish` or `abandon`."""

    def __init__(self, path: Path, first: int, count: int, descriptor: int) -> None:
        self.first, self.count, self.descriptor = first, count, descriptor
        self._path = path

    def publish(self) -> CachedRange:
        """Give the file its name; FileNotFoundError when the folder was deleted meanwhile."""
        final = self._path.with_suffix("")
        try:
            self._path.rename(final)
        finally:
            self._close()
        return CachedRange(self.first, self.first + self.count, final)

    def abandon(self) -> None:
        """Delete the file."""
        try:
            # Before the lock goes: else the name may be another process's claim by now.
            self._path.unlink(missing_ok=True)
        finally:
            self._close()

    def _close(self) -> None:
        if self.descriptor >= 0:
            # Not by closing alone: a forked child may have the same lock.
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            os.close(self.descriptor)
            self.descriptor = -1


@dataclass(frozen=True)
class RangeCache:
    """Ranges of shards in a folder, at most `limit_bytes` of them.

    Methods that write raise OSError when the disk is full or the folder cannot be written: the caller does without.
    """

    folder: Path
    limit_bytes: int

    def open(self) -> None:
        """Take the folder.

        Raises:
            ConfigError: It is not empty and not ours, or cannot be written.
        """
        marker = self.folder / MARKER_NAME
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            found = {entry.name for entry in self.folder.iterdir()} - _NOT_FOREIGN
            if found and MARKER_NAME not in found and not marker.exists():
                raise ConfigError(
                    f"data.cache_dir {self.folder} is not empty, and is no cache of shards ({min(found)} lies there)",
                    allowed="a folder that is empty, not there, or was a cache before",
                    todo="choose another folder",
                )
            self.mark()
        except OSError as error:
            raise ConfigError(
                f"data.cache_dir {self.folder} cannot be used ({error.strerror})",
                allowed="a folder that you may write",
                todo="choose another folder, or correct its permissions",
            ) from None

    def mark(self) -> None:
        """Say that the folder is ours."""
        (self.folder / MARKER_NAME).touch()

    def make(self, folder: Path) -> None:
        """Make a folder inside, or the cache's own, (again) if it is not there.

        The marker comes first: whoever is killed in between leaves a cache, not a folder that is nobody's.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.mark()
        folder.mkdir(exist_ok=True)

    # --- what is there ------------------------------------------------------------------------------------------------

    def held(self, shard: str) -> list[CachedRange]:
        """Return the ranges of a shard, in the order of their samples."""
        folder = self.folder / shard
        try:
            names = os.listdir(folder)  # noqa: PTH208
        except OSError:
            return []
        return sorted(
            CachedRange(int(match[1]), int(match[1]) + int(match[2]), folder / match[0])
            for match in map(_NAME.fullmatch, names)
            if match is not None and match[3] is None
        )

    def touch(self, held: CachedRange) -> None:
        """Remember that a range is used: of the others, those go first that were used least recently."""
        with contextlib.suppress(OSError):
            os.utime(held.path)

    def done(self, shard: str, first: int, count: int) -> None:
        """Remember that the ranges inside of [first, first + count) are not needed for now: they go before others."""
        date = time.time() - _DONE_AGE_S
        for held in self.held(shard):
            if first <= held.first and held.end <= first + count:
                with contextlib.suppress(OSError):
                    os.utime(held.path, (date, date))

    def drop(self, shard: str, first: int, count: int) -> None:
        """Delete the range [first, first + count), if there is one of just these samples."""
        with contextlib.suppress(OSError):
            (self.folder / shard / f"{first}-{count}").unlink()

    def discard(self, held: CachedRange) -> None:
        """Delete a range that turned out to be wrong."""
        with contextlib.suppress(OSError):
            held.path.unlink()

    # --- what is to be fetched ----------------------------------------------------------------------------------------

    def claim(self, shard: str, first: int, count: int) -> tuple[list[RangeClaim], bool]:
        """Claim what is missing of samples [first, first + count) of a shard.

        Returns:
            The claims of this process, and whether other processes are fetching some of the rest.
        """
        folder = self.folder / shard
        claims: list[RangeClaim] = []
        with self._locked(folder):
            while (taken := self._taken(folder, first, first + count)) is None:
                continue
            position = first
            try:
                for begin, end, _ in [*sorted(taken), (first + count, first + count, False)]:
                    if begin > position:
                        claims.append(_claim_file(folder, position, begin - position))
                    position = max(position, end)
            except OSError:
                for claim in claims:
                    claim.abandon()
                raise
        return claims, any(fetching for _, _, fetching in taken)

    def _taken(self, folder: Path, first: int, end: int) -> list[tuple[int, int, bool]] | None:
        """Return the parts of [first, end) that are there or are being fetched; None: it changed, look again."""
        taken = []
        for name in os.listdir(folder):  # noqa: PTH208
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            begin, stop = max(first, int(match[1])), min(end, int(match[1]) + int(match[2]))
            if begin >= stop:
                continue
            if match[3] is not None and not _is_locked(folder / name):
                # Of a process that died, or published between the two looks.
                (folder / name).unlink(missing_ok=True)
                return None
            taken.append((begin, stop, match[3] is not None))
        return taken

    def reserve(self, claim: RangeClaim, size: int) -> bool:
        """Make room for the bytes of a claim, and count them; False when there is no room to be made."""
        if size > self.limit_bytes:
            return False
        with self._locked(self.folder):
            usage_path = self.folder / ".usage"
            try:
                usage = _USAGE.unpack(usage_path.read_bytes())[0]
            except (OSError, struct.error):
                usage = self.limit_bytes
            if usage + size > self.limit_bytes:
                usage = self._evict(size)
            if usage + size > self.limit_bytes:
                return False
            # Its full length at once: it is counted whole, and a full disk is known before anything is fetched.
            try:
                os.posix_fallocate(claim.descriptor, 0, size)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                # The disk has less room than the bound, for others write to it too. What is done with makes room; what
                # is still to be read would only be fetched again.
                os.ftruncate(claim.descriptor, 0)
                usage = self._evict(size, only_done=True)
                os.posix_fallocate(claim.descriptor, 0, size)
            _write_usage(usage_path, usage + size)
        return True

    def used_bytes(self) -> int:
        """Return the bytes of all ranges, those being fetched too."""
        total = 0
        for path in _range_files(self.folder):
            with contextlib.suppress(OSError):
                total += path.stat().st_size
        return total

    def _evict(self, size: int, *, only_done: bool = False) -> int:
        """Delete ranges until `size` bytes fit, and some more that are done with; return the bytes that are left.

        With `only_done` nothing goes that is still to be read, and the bound is what is used now.
        """
        found, usage = [], 0
        for path in _range_files(self.folder):
            with contextlib.suppress(OSError):
                status = path.stat()
                usage += status.st_size
                if path.suffix != ".part":
                    found.append((status.st_mtime, status.st_size, path))
                elif status.st_mtime < time.time() - 60 and not _is_locked(path):
                    path.unlink()
                    usage -= status.st_size
        limit = usage if only_done else self.limit_bytes
        done_before = time.time() - _DONE_AGE_S / 2
        for date, freed, path in sorted(found):
            wanted = size if date > done_before else size + int(_SLACK * limit)
            if usage + wanted <= limit or (only_done and date > done_before):
                break
            with contextlib.suppress(OSError):
                path.unlink()
                usage -= freed
        return usage

    @contextlib.contextmanager
    def _locked(self, folder: Path) -> Iterator[None]:
        """Hold the lock of a folder, which is made (again) if it is not there."""
        path = folder / ".lock"
        # Also where the folder is there: one that is being deleted while others write may keep all but its marker.
        if not (self.folder / MARKER_NAME).exists():
            self.make(folder)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            self.make(folder)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def shard_key(entry: Any) -> str:
    """Return the folder of a shard: equal for equal bytes, wherever the shard lies.

    Args:
        entry: Its ShardEntry.
    """
    return f"{entry.crc32c}-{entry.bytes}"


def _write_usage(path: Path, usage: int) -> None:
    """Write over what is there: a full disk has no room for it a second time."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        os.pwrite(descriptor, _USAGE.pack(usage), 0)
    finally:
        os.close(descriptor)


def _claim_file(folder: Path, first: int, count: int) -> RangeClaim:
    path = folder / f"{first}-{count}.part"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return RangeClaim(path, first, count, descriptor)


def _is_locked(path: Path) -> bool:
    """Whether some process holds the lock of a claim."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _range_files(folder: Path) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.name != INDEX_FOLDER and entry.is_dir():
            with contextlib.suppress(FileNotFoundError):
                yield from (path for path in entry.iterdir() if _NAME.fullmatch(path.name))
