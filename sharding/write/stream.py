"""The file that a shard is written to: its bytes go to the disk behind the writer."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from io import FileIO

# Bytes that are collected before the system is given them: a row of a table is some hundred.
COLLECTED_BYTES = 1 << 17
# Bytes of a shard that the system is told to write out at a time.
WRITE_BEHIND_BYTES = 8 << 20
_SYNC_FILE_RANGE_WRITE = 2


class WriteBehind:
    """Passes bytes on to a new file, and has the system put them on the disk while the next ones are made.

    The flush at the end of a file then waits for its last megabytes only. Where the system has no such call, nothing
    but the flush happens.

    Args:
        stream: The file, unbuffered, at its start.
    """

    def __init__(self, stream: FileIO) -> None:
        self._stream = stream
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._written = 0
        self._begun = 0
        self._begin = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform.startswith("linux") else None

    def writelines(self, parts: Iterable[bytes], /) -> None:
        """Append `parts`; small ones together, and those with a large one by one call, if the system agrees."""
        parts = list(parts)
        size = sum(map(len, parts))
        if self._waiting_bytes + size < COLLECTED_BYTES:
            self._waiting += parts
            self._waiting_bytes += size
            return
        if self._waiting:
            parts = [b"".join(self._waiting), *parts]
            size += self._waiting_bytes
            self._waiting, self._waiting_bytes = [], 0
        self._write(parts, size)

    def _write(self, parts: list[bytes], size: int) -> None:
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
        if self._waiting:
            self._write([b"".join(self._waiting)], self._waiting_bytes)
            self._waiting, self._waiting_bytes = [], 0
        os.fsync(self._stream.fileno())
