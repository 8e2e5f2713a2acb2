"""The index of shards in a bucket as a file of this machine: fetched once, compared with its checksum once an attempt.

    ROOT/index/.lock           who fetches or compares
    ROOT/index/CRC-SIZE.bin    the index
    ROOT/index/CRC-SIZE.checked   which attempt compared which file: the other ranks of an attempt need not

Its labels and offsets have no checksum but that of the whole, so a file that was kept is not believed for its length:
bits rot, and a power failure may leave zeros.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from contracts import storage
from contracts.artifacts import FileEntry
from contracts.errors import DataError, StorageError
from trainer.data.bucket.cache import INDEX_FOLDER, RangeCache

_PIECE_BYTES = 32 << 20
_STREAMS = 8
# What changed on its way comes right the second time.
_DOWNLOADS = 2
# How often the folder may be deleted by others while the index comes.
_FOLDERS = 3


def fetch_index(uri: str, entry: FileEntry, root: RangeCache, attempt: str) -> Path:
    """Return the index as a file of this machine, downloaded if no process has done so.

    Args:
        uri: Of the index, in a bucket.
        entry: What the manifest says of it.
        root: Where the file is kept.
        attempt: Equal in all processes that may rely on each other's look at the file.

    Raises:
        DataError: It is missing in the bucket, or has other bytes than the manifest says.
        StorageError: There is no room for it.
    """
    folder = root.folder / INDEX_FOLDER
    path = folder / f"{entry.crc32c}-{entry.bytes}.bin"
    for _ in range(_FOLDERS):
        try:
            root.make(folder)
            with (folder / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _is_right(path, entry, attempt):
                    _download(uri, entry, path)
                    _stamp(path, entry, attempt)
            return path
        except FileNotFoundError:
            # Somebody deleted the folder: nothing of the bucket's, which says so in words of its own.
            error = "it is deleted again and again"
        except OSError as raised:
            error = raised.strerror or str(raised)
            break
    raise StorageError(
        f"the index {uri} ({entry.bytes} bytes) cannot be kept in {folder} ({error})",
        allowed="a folder with room for it, that nobody else writes to",
        todo="set data.cache_dir and data.cache_bytes, or TMPDIR, to a disk with room",
    )


def _is_right(path: Path, entry: FileEntry, attempt: str) -> bool:
    """Whether a file is the index; its bytes are read unless this attempt has done so."""
    with contextlib.suppress(OSError):
        if path.stat().st_size != entry.bytes:
            return False
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if path.with_suffix(".checked").read_text() == _stamp_of(path, entry, attempt):
                return True
        if storage.crc32c_of(path.as_uri()) == entry.crc32c:
            _stamp(path, entry, attempt)
            return True
    return False


def _stamp_of(path: Path, entry: FileEntry, attempt: str) -> str:
    status = path.stat()
    return f"{attempt} {status.st_ino} {status.st_size} {status.st_mtime_ns} {entry.crc32c}\n"


def _stamp(path: Path, entry: FileEntry, attempt: str) -> None:
    """Remember that this attempt compared the file; without room for that each process does so itself."""
    with contextlib.suppress(OSError):
        path.with_suffix(".checked").write_text(_stamp_of(path, entry, attempt))


def _download(uri: str, entry: FileEntry, path: Path) -> None:
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

        try:
            return storage.copy_range(uri, start, min(_PIECE_BYTES, entry.bytes - start), write)
        except FileNotFoundError:
            raise _wrong_index(uri, "is not there") from None

    try:
        for _ in range(_DOWNLOADS):
            with ThreadPoolExecutor(_STREAMS, thread_name_prefix="index") as threads:
                found = sum(threads.map(fetch, range(0, entry.bytes, _PIECE_BYTES)))
            found_crc32c = storage.crc32c_of(temporary.as_uri())
            if (found, found_crc32c) == (entry.bytes, entry.crc32c):
                # Else a power failure may leave the name without the bytes.
                os.fsync(descriptor)
                temporary.rename(path)
                return
    finally:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)
    raise _wrong_index(
        uri, f"has {found} bytes and crc32c {found_crc32c}, its manifest says {entry.bytes} and {entry.crc32c}"
    )


def _wrong_index(uri: str, what: str) -> DataError:
    return DataError(
        f"the index {uri} {what}",
        allowed="the index that the shard stage wrote",
        todo="run the shard stage again with --fresh, or copy the folder of shards again",
    )
