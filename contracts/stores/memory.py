"""`memory://`: fsspec's dictionary of this process, for tests and previews."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c

from contracts.stores import AlreadyPublished, ObjectInfo


def exists(uri: str) -> bool:
    """See contracts.storage, as for the other functions here."""
    return bool(_files().exists(uri))


def size(uri: str) -> int:
    """Return the number of bytes."""
    return int(_files().size(uri))


def read_bytes(uri: str, generation: int | None) -> bytes:
    """Return the whole content."""
    return bytes(_files().cat_file(uri))


def read_range(uri: str, start: int, length: int, generation: int | None) -> bytes:
    """Return part of the content."""
    return read_bytes(uri, generation)[start : start + length]


def open_read(uri: str, generation: int | None) -> BinaryIO:
    """Open for reading."""
    return io.BytesIO(read_bytes(uri, generation))


def list_names(uri: str) -> list[str]:
    """Return the names directly below a folder."""
    files = _files()
    if not files.exists(uri):
        return []
    return sorted(str(name).rstrip("/").rpartition("/")[2] for name in files.ls(uri, detail=False))


def list_objects(uri: str, recursive: bool) -> Iterator[ObjectInfo]:
    """Yield the objects below a folder, by name."""
    files = _files()
    folder = str(files._strip_protocol(uri)).rstrip("/") + "/"
    for path, info in sorted(files.find(uri, detail=True).items()):
        name = path.removeprefix(folder)
        if path.startswith(folder) and (recursive or "/" not in name):
            yield ObjectInfo(name, int(info["size"]))


def publish(uri: str, content: bytes) -> None:
    """Create an object that must not exist yet."""
    try:
        _files().pipe_file(uri, content, mode="create")
    except FileExistsError:
        if read_bytes(uri, None) != content:
            raise AlreadyPublished(uri) from None


def publish_file(path: Path, uri: str) -> None:
    """Move a file to memory, create-only."""
    try:
        publish(uri, path.read_bytes())
    finally:
        path.unlink()


def publish_stream(uri: str, stream: BinaryIO, num_bytes: int) -> str:
    """Create an object from a stream."""
    content = stream.read(num_bytes)
    publish(uri, content)
    return f"{google_crc32c.value(content):08x}"


def replace(uri: str, content: bytes) -> None:
    """Write an object whether or not it exists."""
    _files().pipe_file(uri, content)


def delete(uri: str) -> None:
    """Delete an object."""
    with contextlib.suppress(FileNotFoundError):
        _files().rm_file(uri)


def delete_tree(uri: str, manifest_name: str) -> None:
    """Delete a folder, its manifests first."""
    files = _files()
    if files.exists(uri):
        for name in sorted(files.find(uri), key=lambda name: not str(name).endswith("/" + manifest_name)):
            files.rm_file(name)


def crc32c_of(uri: str) -> str:
    """Return the crc32c."""
    return f"{google_crc32c.value(read_bytes(uri, None)):08x}"


def _files() -> Any:
    from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

    return MemoryFileSystem()
