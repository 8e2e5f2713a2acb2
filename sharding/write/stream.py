"""Streams around the writer of a shard: its files are read ahead of it, and its bytes go to the disk behind it.

Local files are read where they are needed, a few system calls each, which threads would only slow down; the system is
told about them beforehand, and fetches those that it does not hold (docs/sharding.md). Where calls are slow, as on a
network mount, several files may be read at a time, by threads, in order, within a bound on memory. Objects of a bucket
are read in sharding/write/objects.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO

from sharding.sources import Reference

# Bytes that were read, or are being read, and not yet taken; a single larger file is read alone.
BYTES_IN_FLIGHT = 64 << 20
# One task of a thread: enough files to be worth the hand-over.
TASK_BYTES = 1 << 20
TASK_FILES = 32

# How far ahead the system is told what will be read.
ANNOUNCED_BYTES = 16 << 20
ANNOUNCED_FILES = 64

# Bytes of a shard that the system is told to write out at a time.
WRITE_BEHIND_BYTES = 8 << 20
_SYNC_FILE_RANGE_WRITE = 2

Read = Callable[[Reference], bytes]
Announce = Callable[[Reference], None]


def read_ahead(
    references: Iterable[Reference],
    read: Read,
    *,
    threads: int,
    announce: Announce | None = None,
    bytes_in_flight: int = BYTES_IN_FLIGHT,
) -> Generator[tuple[Reference, bytes]]:
    """Yield references with their content, in order.

    Args:
        references: What to read.
        read: Returns the content of one; its first error is raised here, in its place.
        threads: Number of files that are read at a time; 0 reads each when it is asked for.
        announce: Called with each reference some time before it is read; only without threads.
        bytes_in_flight: Bound on the content that is held, by the sizes of the listing.
    """
    if threads == 0:
        for reference in _announced(references, announce) if announce else references:
            yield reference, read(reference)
        return
    pending: deque[tuple[list[Reference], int, Future[list[bytes]]]] = deque()
    held = 0
    pool = ThreadPoolExecutor(threads, thread_name_prefix="read")
    try:
        for task in cut(
            references, most_bytes=min(TASK_BYTES, bytes_in_flight // (2 * threads)), most_files=TASK_FILES
        ):
            size = sum(reference.size for reference in task)
            while pending and (held + size > bytes_in_flight or len(pending) > 2 * threads):
                taken, taken_size, future = pending.popleft()
                yield from zip(taken, future.result(), strict=True)
                held -= taken_size
            pending.append((task, size, pool.submit(_read_all, task, read)))
            held += size
        while pending:
            taken, _, future = pending.popleft()
            yield from zip(taken, future.result(), strict=True)
    finally:
        # Also when the writer gives up: what is not yet read is not read any more.
        pool.shutdown(cancel_futures=True)


def _read_all(references: list[Reference], read: Read) -> list[bytes]:
    return [read(reference) for reference in references]


def _announced(references: Iterable[Reference], announce: Announce) -> Iterator[Reference]:
    """Yield references, each some time after it was announced."""
    waiting: deque[Reference] = deque()
    size = 0
    for reference in references:
        announce(reference)
        waiting.append(reference)
        size += reference.size
        while len(waiting) > ANNOUNCED_FILES or size > ANNOUNCED_BYTES:
            size -= waiting[0].size
            yield waiting.popleft()
    yield from waiting


def announce_file(path: bytes) -> None:
    """Have the system fetch a file that will be read soon; a hint: nothing goes wrong here."""
    if not hasattr(os, "posix_fadvise"):
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)


def cut(references: Iterable[Reference], *, most_bytes: int, most_files: int) -> Iterator[list[Reference]]:
    """Yield references in runs of so many bytes and files at most; what is larger than that comes alone."""
    run: list[Reference] = []
    size = 0
    for reference in references:
        if run and (size + reference.size > most_bytes or len(run) == most_files):
            yield run
            run, size = [], 0
        run.append(reference)
        size += reference.size
    if run:
        yield run


class WriteBehind:
    """Passes bytes on to a new file, and has the system put them on the disk while the next ones are made.

    The flush at the end of a file then waits for its last megabytes only. Where the system has no such call, nothing
    but the flush happens.

    Args:
        stream: The file, unbuffered, at its start.
    """

    def __init__(self, stream: FileIO) -> None:
        self._stream = stream
        self._written = 0
        self._begun = 0
        self._begin = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform.startswith("linux") else None

    def writelines(self, parts: Iterable[bytes], /) -> None:
        """Append `parts`, if the system agrees by one call."""
        parts = tuple(parts)
        size = sum(map(len, parts))
        written = os.writev(self._stream.fileno(), parts)
        if written < size:
            # A full disk takes what fits, and says so at the next call.
            rest = memoryview(b"".join(parts))
            while written < size:
                written += os.write(self._stream.fileno(), rest[written:])
        self._written += size
        if self._begin is not None and self._written - self._begun >= WRITE_BEHIND_BYTES:
            # A hint: the answer does not matter.
            length = self._written - self._begun
            self._begin(
                self._stream.fileno(),
                ctypes.c_int64(self._begun),
                ctypes.c_int64(length),
                _SYNC_FILE_RANGE_WRITE,
            )
            self._begun = self._written

    def close(self) -> None:
        """Flush everything to the disk; the stream stays open."""
        os.fsync(self._stream.fileno())
