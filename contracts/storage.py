"""One door to bytes at a URI: `file://`, `memory://`, and later `gs://`.

A plain path is a `file://` URI. What commits a result uses `publish` (create-only: the second writer loses); what is
only a copy or a hint uses `replace`. Local writes go to a temporary file first, so a reader sees all of it or nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import google_crc32c

from contracts.errors import StorageError

SCHEMES = ("file://", "memory://")
TEMPORARY_PREFIX = ".tmp-"
_CHUNK_BYTES = 8 << 20


class AlreadyPublished(Exception):
    """A create-only write met an object with other content."""


def normalise(path_or_uri: str | os.PathLike[str]) -> str:
    """Return the absolute URI of a path or URI, percent-encoded, without a trailing slash.

    Raises:
        StorageError: The scheme is not one of `SCHEMES`.
    """
    text = os.fspath(path_or_uri)
    if "://" in text:
        check_scheme(text)
        return text.rstrip("/")
    # Not Path.resolve: a link in the path is the user's choice of place.
    return "file://" + quote(os.path.abspath(Path(text).expanduser()))  # noqa: PTH100


def check_scheme(uri: str) -> None:
    """Raise StorageError unless `uri` is of a scheme that works here."""
    if uri.startswith(SCHEMES):
        return
    scheme = uri.partition("://")[0]
    raise StorageError(
        f"{uri}: storage scheme {scheme}:// is not available",
        allowed="a local path, file:// or memory://" + (" (gs:// comes with a later version)" * (scheme == "gs")),
        todo="copy the data to a local directory and give its path",
    )


def is_local(uri: str) -> bool:
    """Whether `uri` names a file of this machine."""
    return uri.startswith("file://")


def local_path(uri: str) -> Path:
    """Return the path behind a `file://` URI."""
    check_scheme(uri)
    if not is_local(uri):
        raise StorageError(f"{uri} is not a local file", allowed="file://", todo="copy it to a local directory first")
    return Path(unquote(uri.removeprefix("file://")))


def display(uri: str) -> str:
    """Return `uri` as a user would type it: a local file's path, relative where it is below the current folder."""
    if not is_local(uri):
        return uri
    path = local_path(uri)
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def join(uri: str, *parts: str) -> str:
    """Append path segments, percent-encoding each."""
    return "/".join([uri.rstrip("/"), *(quote(part) if is_local(uri) else part for part in parts)])


def exists(uri: str) -> bool:
    """Whether an object or a folder is there."""
    if is_local(uri):
        return local_path(uri).exists()
    return bool(_memory(uri).exists(uri))


def size(uri: str) -> int:
    """Return the number of bytes at `uri`; FileNotFoundError when nothing is there."""
    if is_local(uri):
        return local_path(uri).stat().st_size
    return int(_memory(uri).size(uri))


def read_bytes(uri: str) -> bytes:
    """Return the whole content; FileNotFoundError when nothing is there."""
    if is_local(uri):
        return local_path(uri).read_bytes()
    return bytes(_memory(uri).cat_file(uri))


def list_names(uri: str) -> list[str]:
    """Return the names directly below a folder, sorted; none when the folder is not there."""
    if is_local(uri):
        path = local_path(uri)
        return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    files = _memory(uri)
    if not files.exists(uri):
        return []
    return sorted(str(name).rstrip("/").rpartition("/")[2] for name in files.ls(uri, detail=False))


def publish(uri: str, content: bytes) -> None:
    """Create an object that must not exist yet: the commit of a result.

    The same content a second time is success (a retry after a lost answer).

    Raises:
        AlreadyPublished: Another content is there.
    """
    if is_local(uri):
        temporary = _write_temporary(local_path(uri), content)
        publish_file(temporary, uri)
        return
    files = _memory(uri)
    try:
        files.pipe_file(uri, content, mode="create")
    except FileExistsError:
        if read_bytes(uri) != content:
            raise AlreadyPublished(uri) from None


def publish_file(path: Path, uri: str) -> None:
    """Move a finished local file to `uri`, create-only; `path` is gone afterwards.

    Raises:
        AlreadyPublished: A file with another crc32c is there.
    """
    if not is_local(uri):
        publish(uri, path.read_bytes())
        path.unlink()
        return
    target = local_path(uri)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        # A hard link is create-only, os.replace is not.
        os.link(path, target)
    except FileExistsError:
        if crc32c_of(uri) != crc32c_of(normalise(path)):
            raise AlreadyPublished(uri) from None
    finally:
        path.unlink()
    _sync_directory(target.parent)


def replace(uri: str, content: bytes) -> None:
    """Write an object whether or not it exists: for copies and hints, never for a commit."""
    if is_local(uri):
        target = local_path(uri)
        _write_temporary(target, content).replace(target)
        return
    _memory(uri).pipe_file(uri, content)


def delete(uri: str) -> None:
    """Delete one object; nothing happens when it is not there."""
    if is_local(uri):
        local_path(uri).unlink(missing_ok=True)
        return
    with contextlib.suppress(FileNotFoundError):
        _memory(uri).rm_file(uri)


def delete_tree(uri: str, *, manifest_name: str) -> None:
    """Delete a folder, its manifests first, so that a kill on the way leaves nothing that looks finished."""
    if is_local(uri):
        path = local_path(uri)
        for manifest in sorted(path.rglob(manifest_name)) if path.is_dir() else ():
            manifest.unlink()
        if path.is_dir():
            shutil.rmtree(path)
        return
    files = _memory(uri)
    if files.exists(uri):
        names = sorted(files.find(uri), key=lambda name: not str(name).endswith("/" + manifest_name))
        for name in names:
            files.rm_file(name)


def crc32c(content: bytes | memoryview) -> str:
    """Return the crc32c of `content` as eight hex digits."""
    return f"{google_crc32c.value(bytes(content)):08x}"


def crc32c_of(uri: str) -> str:
    """Return the crc32c of the object at `uri`, read in pieces."""
    if not is_local(uri):
        return crc32c(read_bytes(uri))
    total = 0
    with local_path(uri).open("rb") as stream:
        for chunk in _chunks(stream):
            total = google_crc32c.extend(total, chunk)
    return f"{total:08x}"


def _chunks(stream: Any) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK_BYTES):
        yield chunk


def _memory(uri: str) -> Any:
    check_scheme(uri)
    from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

    return MemoryFileSystem()


def _write_temporary(target: Path, content: bytes) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    return temporary


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
