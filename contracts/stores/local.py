"""`file://`: files of this machine.

A write goes to a temporary file that is synced to the disk, and then takes its name: by a hard link where the name must
be new, which is create-only. contracts.storage says what each function means.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

import google_crc32c

from contracts.errors import StorageError
from contracts.stores import PIECE_BYTES, AlreadyPublished, ObjectInfo, crc32c_of_stream

TEMPORARY_PREFIX = ".tmp-"
# Permanent errors. File systems without hard links give EPERM.
_REFUSALS = (errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EPERM, errno.EROFS)


def path_of(uri: str) -> Path:
    """Return the path behind a `file://` URI."""
    return Path(unquote(uri.removeprefix("file://")))


def info(uri: str) -> ObjectInfo:
    """Return size and time; a file system keeps no checksums."""
    path = path_of(uri)
    status = path.stat()
    return ObjectInfo(path.name, status.st_size, updated_s=status.st_mtime)


def open_read(uri: str) -> BinaryIO:
    """Open a regular file; pipes and devices, which may block or never end, are refused."""
    path = path_of(uri)
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


def copy_range(uri: str, start: int, length: int, sink: Callable[[bytes], object]) -> int:
    """Pass a part of the content to `sink`."""
    num_copied = 0
    with open_read(uri) as stream:
        stream.seek(start)
        while num_copied < length and (piece := stream.read(min(PIECE_BYTES, length - num_copied))):
            sink(piece)
            num_copied += len(piece)
    return num_copied


def list_names(uri: str) -> list[str]:
    """Return the names directly below a folder."""
    path = path_of(uri)
    return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []


def list_objects(uri: str, recursive: bool) -> Iterator[ObjectInfo]:
    """Yield the files below a folder, in the order of their names as text."""
    folder = path_of(uri)
    if folder.is_dir():
        yield from _list_below(folder, "", recursive)


def _list_below(folder: Path, prefix: str, recursive: bool) -> Iterator[ObjectInfo]:
    with os.scandir(folder) as entries:
        # With the slash, folders sort as their files do.
        ordered = sorted((entry.name + "/" * entry.is_dir(), entry) for entry in entries)
    for name, entry in ordered:
        if name.endswith("/"):
            if recursive:
                yield from _list_below(folder / entry.name, prefix + name, recursive)
        elif not name.startswith(TEMPORARY_PREFIX):
            status = entry.stat()
            yield ObjectInfo(prefix + name, status.st_size, updated_s=status.st_mtime)


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
                with target.open("rb") as published, path.open("rb") as candidate:
                    if crc32c_of_stream(published) != crc32c_of_stream(candidate):
                        raise AlreadyPublished(uri) from None
    finally:
        path.unlink()
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def publish_stream(uri: str, stream: BinaryIO) -> str:
    """Create a file from a stream; return the crc32c."""
    temporary, crc32c = _write_temporary(path_of(uri), stream)
    publish_file(temporary, uri)
    return crc32c


def replace(uri: str, content: bytes) -> None:
    """Write a file whether or not it exists."""
    target = path_of(uri)
    temporary, _ = _write_temporary(target, io.BytesIO(content))
    with _explained(target):
        temporary.replace(target)


def delete_tree(uri: str, manifest_name: str) -> None:
    """Delete a folder, its manifests first."""
    path = path_of(uri)
    if path.is_dir():
        for manifest in sorted(path.rglob(manifest_name)):
            manifest.unlink()
        shutil.rmtree(path)


def _write_temporary(target: Path, stream: BinaryIO) -> tuple[Path, str]:
    """Write a stream to a file beside its target; return its path and the crc32c."""
    temporary = target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    total = 0
    try:
        with _explained(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                while piece := stream.read(PIECE_BYTES):
                    total = google_crc32c.extend(total, piece)
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        # The file may not exist; the first error is raised.
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return temporary, f"{total:08x}"


@contextlib.contextmanager
def _explained(target: Path) -> Iterator[None]:
    """Convert errors of writing a file to StorageError, except a full disk, which callers handle."""
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
