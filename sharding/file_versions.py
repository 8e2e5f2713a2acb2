"""Versions of local files: the modification time in ns, or with sharding.compare=content the crc32c of the content.

A crc32c is read once and remembered by device, inode, size and modification time, in one NumPy file for each source in
the user's cache. NumPy is imported with compare=content alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from array import array
from typing import Any

from contracts import storage
from contracts.config import ShardingSection
from contracts.environment import user_cache
from contracts.errors import StorageError
from contracts.stores import crc32c_of_stream

# Device, inode, size and time of a file (modulo 2^64), and the crc32c of its content.
_COLUMNS = 5


class FileVersions:
    """Versions of the local files of one source; thread-safe.

    Args:
        section: `compare` selects the kind of version.
        source_uri: Selects the cache file.
    """

    def __init__(self, section: ShardingSection, source_uri: str) -> None:
        self._by_content = section.compare == "content"
        self._rows = array("Q")
        if self._by_content:
            import numpy as np

            name = hashlib.sha256(source_uri.encode()).hexdigest()[:32]
            self._uri = storage.normalise(user_cache("crc32c") / f"{name}.npy")
            self._cached: Any = np.empty((0, _COLUMNS), np.uint64)
            # A damaged cache file is ignored.
            with contextlib.suppress(OSError, ValueError, EOFError):
                self._cached = np.load(io.BytesIO(storage.read_bytes(self._uri))).reshape(-1, _COLUMNS)
            self._inodes = self._cached[:, 1].copy()

    def get(self, path: bytes, status: os.stat_result) -> int:
        """Return the version of a file.

        Args:
            path: Absolute.
            status: Of the file itself, not of a link to it.

        Raises:
            OSError: It cannot be read.
        """
        if not self._by_content:
            return status.st_mtime_ns
        identity = array("Q", [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns % (1 << 64)])
        row = self._cached[self._inodes.searchsorted(self._cached.dtype.type(status.st_ino)) :][:1]
        is_cached = row.tobytes()[: 8 * len(identity)] == identity.tobytes()
        crc32c = int(row[0, -1]) if is_cached else _read_crc32c(path)
        # One atomic call: rows of several threads stay whole.
        self._rows.extend(array("Q", [*identity, crc32c]))
        return crc32c

    def save(self) -> list[str]:
        """Write the requested versions to the cache; return a warning if that fails."""
        if not self._rows:
            return []
        import numpy as np

        rows = np.frombuffer(self._rows, np.uint64).reshape(-1, _COLUMNS)
        # Hard links share a row.
        rows = rows[np.unique(rows[:, 1], return_index=True)[1]]
        if np.array_equal(rows, self._cached):
            return []
        stream = io.BytesIO()
        np.save(stream, rows)
        try:
            storage.local_path(self._uri).parent.mkdir(parents=True, exist_ok=True)
            storage.replace(self._uri, stream.getvalue())
        except (StorageError, OSError) as error:
            return [f"the crc32c of files are not cached: {error}"]
        return []


def _read_crc32c(path: bytes) -> int:
    with open(path, "rb") as stream:
        return int(crc32c_of_stream(stream), 16)
