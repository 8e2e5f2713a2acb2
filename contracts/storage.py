"""Read and write bytes at a URI: `file://` and `gs://`. A plain path is a `file://` URI.

Commits use `publish` (create-only: the second writer fails); copies and hints use `replace`. Writes are atomic for
readers. contracts.stores has one module per scheme; google-cloud-storage is imported when the first gs:// URI is used.

Every function may raise StorageError (the bucket does not exist, no permission: exit code 2) and, where storage is
remote, TryAgain (no answer after retries: 75); those that read, FileNotFoundError.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import google_crc32c

from contracts.errors import StorageError, TryAgain
from contracts.stores import AlreadyPublished as AlreadyPublished
from contracts.stores import ObjectInfo as ObjectInfo
from contracts.stores import ReadRequest as ReadRequest
from contracts.stores import crc32c_of_stream, gcs, local
from contracts.stores.gcs import bill as bill
from contracts.stores.local import TEMPORARY_PREFIX as TEMPORARY_PREFIX


def normalise(path_or_uri: str | os.PathLike[str]) -> str:
    """Return the absolute URI of a path or URI, without a trailing slash; only file:// is percent-encoded.

    Raises:
        StorageError: It is of another scheme, or a gs:// URI names no bucket.
    """
    text = os.fspath(path_or_uri)
    if "://" not in text:
        # Not Path.resolve: a link in the path is the user's choice of place.
        return "file://" + quote(os.path.abspath(Path(text).expanduser()))  # noqa: PTH100
    if not is_local(text):
        gcs.split(text)
    return text.rstrip("/")


def is_local(uri: str) -> bool:
    """Whether `uri` names a file of this machine."""
    return uri.startswith("file://")


def local_path(uri: str) -> Path:
    """Return the path behind a `file://` URI."""
    if not is_local(uri):
        raise StorageError(f"{uri} is not a local file", allowed="file://", todo="copy it to a local directory first")
    return local.path_of(uri)


def display(uri: str) -> str:
    """Return `uri` as a user would type it: a local file's path, relative where it is below the current folder."""
    if not is_local(uri):
        return uri
    path, folder = local_path(uri), Path.cwd()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def join(uri: str, *parts: str) -> str:
    """Append path segments, percent-encoding each where the scheme does so."""
    return "/".join([uri.rstrip("/"), *(quote(part) if is_local(uri) else part for part in parts)])


def exists(uri: str) -> bool:
    """Whether an object or a folder is there."""
    return local_path(uri).exists() if is_local(uri) else gcs.exists(uri)


def info(uri: str) -> ObjectInfo:
    """Return the metadata of an object."""
    return local.info(uri) if is_local(uri) else gcs.info(uri)


def read_bytes(uri: str, generation: int | None = None) -> bytes:
    """Return the whole content.

    Args:
        uri: The object.
        generation: In gs://: only this version of the object; ignored otherwise.
    """
    if is_local(uri):
        with local.open_read(uri) as stream:
            return stream.read()
    return gcs.read_bytes(uri, generation)


def read_range(uri: str, start: int, length: int, generation: int | None = None) -> bytes:
    """Return up to `length` bytes from `start`: fewer at the end, none behind it; `generation` as in `read_bytes`."""
    pieces: list[bytes] = []
    copy_range(uri, start, length, pieces.append, generation)
    return b"".join(pieces)


def copy_range(
    uri: str, start: int, length: int, sink: Callable[[bytes], object], generation: int | None = None
) -> int:
    """Pass the bytes [start, start + length) to `sink` in pieces; return their number, fewer at the end of the object.

    In gs:// an interrupted download is continued in the same generation of the object.
    """
    if is_local(uri):
        return local.copy_range(uri, start, length, sink)
    return gcs.copy_range(uri, start, length, sink, generation)


def read_many(wanted: Sequence[ReadRequest], *, requests: int = 64) -> list[bytes | FileNotFoundError]:
    """Return the contents of many small objects, in order; a missing object gives its FileNotFoundError.

    All contents are in memory: the caller bounds their number. In gs:// each is verified by the bucket's crc32c.

    Args:
        wanted: The objects to read.
        requests: Concurrent requests in gs://; 64 hide a latency of 30 ms for objects of 100 KB.

    Raises:
        TryAgain: A content has another crc32c than its listing.
    """
    remote = [item for item in wanted if not is_local(item.uri)]
    fast = dict(zip(remote, gcs.read_many(remote, requests), strict=True)) if remote else {}
    contents: list[bytes | FileNotFoundError] = []
    for item in wanted:
        content = fast.get(item)
        if not isinstance(content, bytes) or item.crc32c not in (None, crc32c(content)):
            try:
                content = read_bytes(item.uri, item.generation)
            except FileNotFoundError as error:
                contents.append(error)
                continue
            if item.crc32c not in (None, crc32c(content)):
                raise TryAgain(f"{display(item.uri)} has crc32c {crc32c(content)}, its listing says {item.crc32c}")
        contents.append(content)
    return contents


def open_read(uri: str, generation: int | None = None) -> BinaryIO:
    """Open for reading, seekable, in bounded memory, in one version to the end; `generation` as in `read_bytes`."""
    return local.open_read(uri) if is_local(uri) else gcs.open_read(uri, generation)


def list_names(uri: str) -> list[str]:
    """Return the names directly below a folder, sorted; none when the folder is not there."""
    return local.list_names(uri) if is_local(uri) else gcs.list_names(uri)


def list_objects(uri: str, *, recursive: bool = True) -> Iterator[ObjectInfo]:
    """Yield all objects below a folder by name, lazily: a listing of any length takes little memory.

    Names are relative to `uri`; sorted as text, so equal trees list equally in every scheme. Temporary files of writes
    under way are left out.

    Args:
        uri: The folder.
        recursive: Include its subfolders.
    """
    return local.list_objects(uri, recursive) if is_local(uri) else gcs.list_objects(uri, recursive)


def publish(uri: str, content: bytes) -> None:
    """Create an object that must not exist yet: the commit of a result.

    The same content a second time is success (a retry after a lost answer).

    Raises:
        AlreadyPublished: Another content is there.
    """
    stream = io.BytesIO(content)
    if is_local(uri):
        local.publish_stream(uri, stream)
    else:
        gcs.publish_stream(uri, stream, len(content))


def publish_file(path: Path, uri: str) -> None:
    """Move a finished local file to `uri`, create-only as `publish`; `path` is gone afterwards."""
    if is_local(uri):
        return local.publish_file(path, uri)
    try:
        with path.open("rb") as stream:
            gcs.publish_stream(uri, stream, path.stat().st_size)
    finally:
        path.unlink()


def publish_stream(uri: str, stream: BinaryIO, num_bytes: int) -> str:
    """Create an object from a stream, create-only as `publish` and in bounded memory; return its crc32c.

    In gs:// the bucket compares the checksum before the object exists.

    Args:
        uri: The new object.
        stream: Seekable, at its start; read once from start to end, and again from where a retry begins.
        num_bytes: Its length.
    """
    return local.publish_stream(uri, stream) if is_local(uri) else gcs.publish_stream(uri, stream, num_bytes)


def replace(uri: str, content: bytes) -> None:
    """Write an object whether or not it exists: for copies and hints, never for a commit."""
    if is_local(uri):
        local.replace(uri, content)
    else:
        gcs.replace(uri, content)


def delete(uri: str) -> None:
    """Delete one object; nothing happens when it is not there."""
    if is_local(uri):
        local_path(uri).unlink(missing_ok=True)
    else:
        gcs.delete(uri)


def delete_tree(uri: str, *, manifest_name: str) -> None:
    """Delete a folder, manifests first, so that an interrupted deletion leaves no output that looks finished."""
    if is_local(uri):
        local.delete_tree(uri, manifest_name)
    else:
        gcs.delete_tree(uri, manifest_name)


def crc32c(content: bytes | memoryview) -> str:
    """Return the crc32c of `content` as eight hex digits."""
    return f"{google_crc32c.value(bytes(content)):08x}"


def crc32c_of(uri: str, *, read: bool = False, on_piece: Callable[[], object] = lambda: None) -> str:
    """Return the crc32c of the object at `uri`: from the metadata in gs://, else read in pieces.

    Args:
        uri: An object.
        read: Read the bytes in gs:// too, instead of using the metadata.
        on_piece: Called after each piece that is read.
    """
    if not read and (found := info(uri).crc32c) is not None:
        return found
    with open_read(uri) as stream:
        return crc32c_of_stream(stream, on_piece)
