"""Folders of a source, on this machine or in a bucket: names directly in one, and all files below one in path order.

Names and paths are bytes. Names of folders end with a slash: so they sort as the paths in them do.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from contracts import storage
from contracts.errors import DataError, TryAgain
from contracts.stores import gcs
from sharding.file_versions import FileVersions
from sharding.names import encode_path, is_ignored
from sharding.reference import SourceFile


def hash_of(entry: storage.ObjectInfo) -> bytes:
    """Return the content hash of a listed object: its md5, or where it has none its crc32c, which may collide."""
    if entry.md5:
        return f"md5:{entry.md5}".encode()
    return f"crc32c:{entry.crc32c}".encode() if entry.crc32c else b""


class BucketFolders:
    """The folders of a source in a bucket, derived from its listing.

    Args:
        uri: The gs:// folder that paths are relative to.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def names(self, folder: bytes) -> list[bytes]:
        """Return the names directly in a folder (empty: the source), sorted."""
        uri = storage.join(self._uri, folder.decode()) if folder else self._uri
        names = {f"{name}/" for name in gcs.list_folders(uri)}
        names.update(entry.name for entry in storage.list_objects(uri, recursive=False))
        # Placeholder objects of folders, and names with two slashes.
        names -= {"", "/"}
        return sorted(name.encode() for name in names)

    def walk(self, folder: bytes) -> Iterator[SourceFile]:
        """Yield the files below a folder in the order of their paths; size -1: ignored (also a folder).

        Raises:
            TryAgain: The folder is empty now.
        """
        is_empty, last_ignored = True, b""
        for entry in storage.list_objects(storage.join(self._uri, folder.decode())):
            is_empty = False
            name = entry.name.encode()
            if ignored := _find_ignored(name):
                if ignored != last_ignored:
                    yield SourceFile(folder + b"/" + ignored, -1, 0)
                last_ignored = ignored
            elif name and not name.endswith(b"/"):
                yield SourceFile(folder + b"/" + name, entry.size, entry.generation or 0, hash_of(entry))
        if is_empty:
            raise TryAgain(
                f"the class folder {encode_path(folder)} of {self._uri} vanished while it was listed; run again when "
                "nothing writes to it"
            )


def _find_ignored(name: bytes) -> bytes:
    """Return the path of the first folder of a name, or of the file, that is ignored; empty: none."""
    at = 0
    for part in name.split(b"/"):
        if is_ignored(part):
            return name[: at + len(part) + 1]
        at += len(part) + 1
    return b""


class LocalFolders:
    """The folders of a source on this machine. Links are followed.

    Args:
        uri: The file:// folder that paths are relative to.
        versions: Versions of its files.
    """

    def __init__(self, uri: str, versions: FileVersions) -> None:
        self._root = os.fsencode(storage.local_path(uri))
        self._shown = storage.display(uri)
        self._versions = versions

    def names(self, folder: bytes) -> list[bytes]:
        """Return the names directly in a folder (empty: the source), sorted.

        Raises:
            DataError: It cannot be read.
            TryAgain: It vanished.
        """
        try:
            with os.scandir(self._join(folder)) as entries:
                return sorted(entry.name + b"/" * entry.is_dir() for entry in entries)
        except OSError as error:
            raise self._unreadable(folder, error) from None

    def walk(self, folder: bytes) -> Iterator[SourceFile]:
        """Yield the files below a folder in the order of their paths; size -1: ignored (also a folder).

        Raises:
            DataError: Something in it cannot be read, is no file, or is a link to a folder above it.
            TryAgain: Something vanished.
        """
        yield from self._walk(folder, (_identify(self._stat(b"")),))

    def _walk(self, folder: bytes, above: tuple[tuple[int, int], ...]) -> Iterator[SourceFile]:
        identity = _identify(self._stat(folder))
        if identity in above:
            raise DataError(
                f"{encode_path(folder)} in the source is a link to a folder above it",
                allowed="links that lead to no folder they are in",
                todo="remove the link",
            )
        for name in self.names(folder):
            path = folder + b"/" + name
            if is_ignored(name.rstrip(b"/")):
                yield SourceFile(path, -1, 0)
            elif name.endswith(b"/"):
                yield from self._walk(path[:-1], (*above, identity))
            else:
                status = self._stat(path)
                if not stat.S_ISREG(status.st_mode):
                    raise DataError(
                        f"{encode_path(path)} in the source is neither a file nor a folder",
                        allowed="files and folders, or links to them",
                        todo="remove it from the source",
                    )
                try:
                    version = self._versions.get(self._join(path), status)
                except OSError as error:
                    raise self._unreadable(path, error) from None
                yield SourceFile(path, status.st_size, version)

    def _stat(self, path: bytes) -> os.stat_result:
        try:
            return os.stat(self._join(path))  # noqa: PTH116 - a path of bytes
        except OSError as error:
            raise self._unreadable(path, error) from None

    def _join(self, path: bytes) -> bytes:
        return self._root + b"/" + path if path else self._root

    def _unreadable(self, path: bytes, error: OSError) -> DataError | TryAgain:
        """Return the error of a file or folder that cannot be read; a broken link is a fault of the source."""
        if isinstance(error, FileNotFoundError) and not Path(os.fsdecode(self._join(path))).is_symlink():
            return TryAgain(
                f"{encode_path(path) or self._shown} vanished while the source was listed; run again when nothing "
                "writes to it"
            )
        return DataError(
            f"{f'{encode_path(path)} in {self._shown}' if path else self._shown} cannot be read: {error.strerror}",
            allowed="a source whose files and folders this user may read",
            todo="correct its permissions, repair or remove a broken link, or run as another user",
        )


def _identify(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
