"""`file://`: files of this machine.

Writes go to a temporary file first, so a reader sees all of one or nothing; create-only is a hard link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

import google_crc32c

from contracts.errors import StorageError
from contracts.stores import AlreadyPublished, ObjectInfo

TEMPORARY_PREFIX = ".tmp-"
_BLOCK_BYTES = 8 << 20
# Of a stream: a checksum holds the interpreter's lock, 0.1 ms for a piece, and a thread beside it has to train.
_PIECE_BYTES = 512 << 10
# What no other attempt will change. EPERM is the answer of file systems without hard links.
_REFUSALS = (errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EPERM, errno.EROFS)


def path_of(uri: str) -> Path:
    """Return the path behind a `file://` URI."""
    return Path(unquote(uri.removeprefix("file://")))


def exists(uri: str) -> bool:
    """See contracts.storage, as for the other functions here."""
    return path_of(uri).exists()


def info(uri: str) -> ObjectInfo:
    """Return the size; a file system keeps no checksums."""
    path = path_of(uri)
    stat = path.stat()
    return ObjectInfo(path.name, stat.st_size, updated_s=stat.st_mtime)


def read_bytes(uri: str, generation: int | None) -> bytes:
    """Return the whole content."""
    with _open_file(path_of(uri)) as stream:
        return stream.read()


def read_range(uri: str, start: int, length: int, generation: int | None) -> bytes:
    """Return part of the content."""
    with _open_file(path_of(uri)) as stream:
        stream.seek(start)
        return stream.read(length)


def open_read(uri: str, generation: int | None) -> BinaryIO:
    """Open for reading."""
    return _open_file(path_of(uri))


def _open_file(path: Path) -> BinaryIO:
    """Open an ordinary file: a pipe would keep its reader waiting for ever, a device has no end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "no ordinary file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def list_names(uri: str) -> list[str]:
    """Return the names directly below a folder."""
    path = path_of(uri)
    return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []


def list_objects(uri: str, recursive: bool) -> Iterator[ObjectInfo]:
    """Yield the files below a folder, in the order of their names as text."""
    folder = path_of(uri)
    if folder.is_dir():
        yield from _below(folder, "", recursive)


def _below(folder: Path, prefix: str, recursive: bool) -> Iterator[ObjectInfo]:
    with os.scandir(folder) as entries:
        # A folder sorts as its files do: with the slash.
        found = sorted((entry.name + "/" * entry.is_dir(), entry) for entry in entries)
    for name, entry in found:
        if name.endswith("/"):
            if recursive:
                yield from _below(folder / entry.name, prefix + name, recursive)
        elif not name.startswith(TEMPORARY_PREFIX):
            stat = entry.stat()
            yield ObjectInfo(prefix + name, stat.st_size, updated_s=stat.st_mtime)


def publish(uri: str, content: bytes) -> None:
    """Create a file that must not exist yet."""
    publish_file(_write_temporary(path_of(uri), content), uri)


def publish_file(path: Path, uri: str) -> None:
    """Move a file to its place, create-only."""
    target = path_of(uri)
    try:
        with _explained(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                # A hard link is create-only, os.replace is not.
                os.link(path, target)
            except FileExistsError:
                if crc32c_of(target) != crc32c_of(path):
                    raise AlreadyPublished(uri) from None
    finally:
        path.unlink()
    _sync_directory(target.parent)


def publish_stream(uri: str, stream: BinaryIO, num_bytes: int) -> str:
    """Create a file from a stream."""
    target = path_of(uri)
    temporary = _temporary_of(target)
    total = done = 0
    try:
        with _explained(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb", buffering=0) as file:
                while done < num_bytes and (piece := stream.read(min(_PIECE_BYTES, num_bytes - done))):
                    total = google_crc32c.extend(total, piece)
                    left = memoryview(piece)
                    while left:
                        left = left[file.write(left) :]
                    done += len(piece)
                os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    publish_file(temporary, uri)
    return f"{total:08x}"


def replace(uri: str, content: bytes) -> None:
    """Write a file whether or not it exists."""
    target = path_of(uri)
    temporary = _write_temporary(target, content)
    with _explained(target):
        temporary.replace(target)


def delete(uri: str) -> None:
    """Delete a file."""
    path_of(uri).unlink(missing_ok=True)


def delete_tree(uri: str, manifest_name: str) -> None:
    """Delete a folder, its manifests first."""
    path = path_of(uri)
    if path.is_dir():
        for manifest in sorted(path.rglob(manifest_name)):
            manifest.unlink()
        shutil.rmtree(path)


def crc32c_of(path: Path) -> str:
    """Return the crc32c of a file, read in pieces."""
    total = 0
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            total = google_crc32c.extend(total, block)
    return f"{total:08x}"


def _write_temporary(target: Path, content: bytes) -> Path:
    temporary = _temporary_of(target)
    try:
        with _explained(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
    except BaseException:
        # It may never have been there, nor its folder: what is told is why.
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return temporary


def _temporary_of(target: Path) -> Path:
    return target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")


@contextlib.contextmanager
def _explained(target: Path) -> Iterator[None]:
    """Turn the system's refusal to write a file into our error; a full disk is left to who knows what it is for."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        raise StorageError(
            f"{target} cannot be written: {os.strerror(error.errno)}",
            allowed="a folder that you may write, on a file system with hard links",
            todo="choose another folder, or correct its permissions",
        ) from None


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
