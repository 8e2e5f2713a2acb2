"""An index read record by record, for processes that read for hours from a file that others can reach.

A mapped file that somebody cuts short kills whoever looks at it (SIGBUS), and its pages are counted as memory of each
process that maps it. Reading 40 bytes costs microseconds more than looking into a map.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from records.index import HEADER_BYTES, RECORD, check_length, damaged_index, read_fully

# Parts held open at a time: few beside the shards that a process has open, and opening one costs little.
_MOST_OPEN = 16


class IndexFile:
    """The records of an index of version 1: `index[place]` is one, `index[first:end]` an array [N] of them.

    Args:
        path: The file; it stays open, and may be deleted.
        renew: Called when the file turns out to be gone or cut short; returns the path of one that is whole. Unset:
            that is an error.

    Raises:
        DataError: The file is missing, is no index, is of a newer version, or its length does not fit its header.
    """

    def __init__(self, path: Path, renew: Callable[[], Path] | None = None) -> None:
        self._file = _OpenFile(path, renew)
        self._count = check_length(path, self._file.descriptor())

    def __len__(self) -> int:
        return self._count

    def labels(self, first: int, count: int) -> npt.NDArray[np.int32]:
        """Return the labels of the samples [first, first + count)."""
        return np.asarray(self[first : first + count]["label"])

    def __getitem__(self, place: int | slice) -> Any:
        """Read a record, or a run of them.

        Raises:
            DataError: The file cannot be read, or was cut short.
        """
        if isinstance(place, slice):
            first, end, step = place.indices(self._count)
            if step != 1:
                raise IndexError(f"a run of records, not each {step}th")
            return self._file.read(first, max(0, end - first))
        if not 0 <= place < self._count:
            raise IndexError(f"record {place} of {self._count}")
        return self._file.read_one(place)


class _OpenFile:
    """The file of an index in this process; threads may share it."""

    def __init__(self, path: Path, renew: Callable[[], Path] | None) -> None:
        self._path, self._renew = path, renew
        self._opening = threading.Lock()
        self._descriptor = -1
        self._last: tuple[int, Any] = (-1, None)

    def __reduce__(self) -> tuple[type[_OpenFile], tuple[Path, Callable[[], Path] | None]]:
        # Open files do not travel to a spawned process; it opens its own.
        return _OpenFile, (self._path, self._renew)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def descriptor(self) -> int:
        """Return the descriptor of the file, opened at the first call."""
        with self._opening:
            if self._descriptor < 0:
                self._descriptor = self._open()
            return self._descriptor

    def _open(self) -> int:
        try:
            if self._renew is not None and not self._path.exists():
                self._path = self._renew()
            return os.open(self._path, os.O_RDONLY)
        except OSError as error:
            raise damaged_index(self._path, f"cannot be read ({error.strerror})") from None

    def read_one(self, place: int) -> Any:
        """Return a record; the last one is kept, for it is often asked for twice."""
        last, record = self._last
        if last != place:
            record = self.read(place, 1)[0]
            self._last = (place, record)
        return record

    def read(self, first: int, count: int) -> Any:
        """Return records as an array [count], read-only."""
        offset, size = HEADER_BYTES + first * RECORD.itemsize, count * RECORD.itemsize
        content = self._read(offset, size)
        if len(content) < size and self._renew is not None:
            self._take_over(self._renew())
            content = self._read(offset, size)
        if len(content) < size:
            raise damaged_index(self._path, f"was cut short while it was read: it ends before record {first + count}")
        return np.frombuffer(content, RECORD)

    def _read(self, offset: int, size: int) -> bytes:
        try:
            return read_fully(self.descriptor(), offset, size)
        except OSError as error:
            raise damaged_index(self._path, f"cannot be read ({error.strerror})") from None

    def _take_over(self, path: Path) -> None:
        """Go on with another file, under the same descriptor: other threads may be reading from it."""
        self._path = path
        opened = self._open()
        try:
            os.dup2(opened, self.descriptor(), inheritable=False)
        finally:
            os.close(opened)


class PartFiles:
    """The part files of an index of version 2 on this machine, a few of them open at a time; threads may share them.

    Args:
        path_of: Returns the path of a part, by its number; asked again when a file turns out to be gone or cut short.
    """

    def __init__(self, path_of: Callable[[int], Path]) -> None:
        self._path_of = path_of
        self._descriptors: OrderedDict[int, int] = OrderedDict()
        # Around reading, too: another thread may close the file otherwise.
        self._reading = threading.Lock()

    def __reduce__(self) -> tuple[type[PartFiles], tuple[Callable[[int], Path]]]:
        # Open files do not travel to a spawned process; it opens its own.
        return PartFiles, (self._path_of,)

    def __del__(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def read(self, part: int, offset: int, size: int) -> bytes:
        """Return the bytes [offset, offset + size) of a part, fewer where its file ends before.

        Raises:
            DataError: The file cannot be read.
        """
        with self._reading:
            content = self._read(part, offset, size)
            if len(content) < size:
                os.close(self._descriptors.pop(part))
                content = self._read(part, offset, size)
        return content

    def _read(self, part: int, offset: int, size: int) -> bytes:
        path: Path | str = f"part {part} of the index"
        try:
            if part in self._descriptors:
                self._descriptors.move_to_end(part)
            else:
                path = self._path_of(part)
                if len(self._descriptors) >= _MOST_OPEN:
                    os.close(self._descriptors.popitem(last=False)[1])
                self._descriptors[part] = os.open(path, os.O_RDONLY)
            return read_fully(self._descriptors[part], offset, size)
        except OSError as error:
            raise damaged_index(path, f"cannot be read ({error.strerror})") from None
