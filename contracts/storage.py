"""One door to bytes at a URI: `file://` and `gs://`.

A plain path is a `file://` URI. What commits a result uses `publish` (create-only: the second writer loses); what is
only a copy or a hint uses `replace`. A reader sees all of a write or nothing. The work is done in contracts.stores,
one module a scheme; google-cloud-storage is imported when the first gs:// URI is used.

Every function may raise StorageError (the bucket does not exist, no permission: exit code 2) and, where storage is
remote, TryAgain (no answer after retries: 75).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import google_crc32c

from contracts.errors import StorageError, TryAgain
from contracts.stores import AlreadyPublished, ObjectInfo, Store, Wanted, gcs, gcs_listing, gcs_reads, local
from contracts.stores.gcs_client import bill
from contracts.stores.local import TEMPORARY_PREFIX

__all__ = [
    "SCHEMES",
    "TEMPORARY_PREFIX",
    "AlreadyPublished",
    "ObjectInfo",
    "Wanted",
    "bill",
    "check_scheme",
    "copy_range",
    "crc32c",
    "crc32c_of",
    "delete",
    "delete_tree",
    "display",
    "exists",
    "info",
    "is_local",
    "join",
    "list_folders",
    "list_names",
    "list_objects",
    "list_page",
    "local_path",
    "normalise",
    "open_read",
    "publish",
    "publish_file",
    "publish_stream",
    "read_bytes",
    "read_many",
    "read_range",
    "replace",
    "size",
]

_STORES: dict[str, Store] = {"file": local, "gs": gcs}
# Of a content that is only looked at: what a stream of gs:// asks for at a time.
_PIECE_BYTES = gcs.CHUNK_BYTES
SCHEMES = tuple(f"{scheme}://" for scheme in _STORES)


def normalise(path_or_uri: str | os.PathLike[str]) -> str:
    """Return the absolute URI of a path or URI, without a trailing slash; only file:// is percent-encoded.

    Raises:
        StorageError: The scheme is not one of `SCHEMES`, or a gs:// URI names no bucket.
    """
    text = os.fspath(path_or_uri)
    if "://" in text:
        check_scheme(text)
        if text.startswith("gs://"):
            gcs.split(text)
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
        allowed="a local path, file:// or gs://",
        todo="copy the data to a local directory or a bucket of Cloud Storage and give its path",
    )


def is_local(uri: str) -> bool:
    """Whether `uri` names a file of this machine."""
    return uri.startswith("file://")


def local_path(uri: str) -> Path:
    """Return the path behind a `file://` URI."""
    check_scheme(uri)
    if not is_local(uri):
        raise StorageError(f"{uri} is not a local file", allowed="file://", todo="copy it to a local directory first")
    return local.path_of(uri)


def display(uri: str) -> str:
    """Return `uri` as a user would type it: a local file's path, relative where it is below the current folder."""
    if not is_local(uri):
        return uri
    path = local_path(uri)
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def join(uri: str, *parts: str) -> str:
    """Append path segments, percent-encoding each where the scheme does so."""
    return "/".join([uri.rstrip("/"), *(quote(part) if is_local(uri) else part for part in parts)])


def exists(uri: str) -> bool:
    """Whether an object or a folder is there."""
    return _store(uri).exists(uri)


def size(uri: str) -> int:
    """Return the number of bytes at `uri`; FileNotFoundError when nothing is there."""
    return info(uri).size


def info(uri: str) -> ObjectInfo:
    """Return what the storage keeps about the object at `uri`; FileNotFoundError when nothing is there."""
    return _store(uri).info(uri)


def read_bytes(uri: str, generation: int | None = None) -> bytes:
    """Return the whole content; FileNotFoundError when nothing is there.

    Args:
        uri: What to read.
        generation: In gs://: only this version of the object, as a listing named it; others ignore it.
    """
    return _store(uri).read_bytes(uri, generation)


def read_range(uri: str, start: int, length: int, generation: int | None = None) -> bytes:
    """Return up to `length` bytes from `start`: fewer at the end, none behind it; `generation` as in `read_bytes`."""
    return _store(uri).read_range(uri, start, length, generation)


def copy_range(uri: str, start: int, length: int, sink: Callable[[bytes], object]) -> int:
    """Hand the bytes [start, start + length) to `sink` in pieces, as they come; return their number.

    Fewer come where the object ends before. In gs:// a broken answer is continued where it broke, in the same
    generation of the object.

    Raises:
        FileNotFoundError: Nothing is there.
    """
    if uri.startswith("gs://"):
        return gcs_reads.copy_range(uri, start, length, sink)
    done = 0
    while done < length and (piece := read_range(uri, start + done, min(_PIECE_BYTES, length - done))):
        sink(piece)
        done += len(piece)
    return done


def read_many(wanted: Sequence[Wanted], *, requests: int = 64) -> list[bytes | FileNotFoundError]:
    """Return the contents of many small objects, in order; for one that is not there (any more) the error itself.

    All are held in memory: the caller bounds their number. In gs:// the requests run side by side in this process, and
    each content is compared with the crc32c that the bucket keeps.

    Args:
        wanted: What to read.
        requests: Number of requests under way at a time; 64 hide a bucket's latency of 30 ms behind objects of 100 KB.

    Raises:
        TryAgain: A content has another crc32c than the one that was given, also when it is read again.
    """
    if wanted and all(item.uri.startswith("gs://") for item in wanted):
        return gcs_reads.read_many(wanted, requests)
    contents: list[bytes | FileNotFoundError] = []
    for item in wanted:
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
    """Open for reading, seekable, in bounded memory; `generation` as in `read_bytes`.

    A gs:// object is read in one version to the end; errors while reading are those of the client, retried by it.
    """
    return _store(uri).open_read(uri, generation)


def list_names(uri: str) -> list[str]:
    """Return the names directly below a folder, sorted; none when the folder is not there."""
    return _store(uri).list_names(uri)


def list_objects(uri: str, *, recursive: bool = True) -> Iterator[ObjectInfo]:
    """Yield all objects below a folder by name, lazily: a listing of any length takes little memory.

    Names are relative to `uri`; sorted as text, so equal trees list equally in every scheme. Temporary files of writes
    under way are left out.

    Args:
        uri: The folder.
        recursive: Also what lies in folders below it.
    """
    return _store(uri).list_objects(uri, recursive)


def list_page(
    uri: str, *, start: str = "", end: str = "", token: str = "", limit: int = 0
) -> tuple[list[ObjectInfo], str]:
    """Return a page of the objects below a folder of gs://, and the token of the next page, empty after the last.

    Args:
        uri: The folder.
        start: Only names, relative to it, from this one on.
        end: Only names before this one; empty: to the last.
        token: What the page before gave.
        limit: Most objects of a page; 0: as many as the service gives.
    """
    return gcs_listing.list_page(uri, start=start, end=end, token=token, limit=limit)


def list_folders(uri: str) -> list[str]:
    """Return the names of the folders directly below a folder of gs://, in the order of its objects."""
    return gcs_listing.list_folders(uri)


def publish(uri: str, content: bytes) -> None:
    """Create an object that must not exist yet: the commit of a result.

    The same content a second time is success (a retry after a lost answer).

    Raises:
        AlreadyPublished: Another content is there.
    """
    _store(uri).publish(uri, content)


def publish_file(path: Path, uri: str) -> None:
    """Move a finished local file to `uri`, create-only; `path` is gone afterwards.

    Raises:
        AlreadyPublished: A file with another crc32c is there.
    """
    _store(uri).publish_file(path, uri)


def publish_stream(uri: str, stream: BinaryIO, num_bytes: int) -> str:
    """Create an object from a stream, create-only and in bounded memory; return the crc32c of what was read from it.

    In gs:// the bucket compares the checksum before the object exists.

    Args:
        uri: The new object.
        stream: Seekable, at its start; read once from start to end, and again from where a retry begins.
        num_bytes: Its length.

    Raises:
        AlreadyPublished: Another content is there.
    """
    return _store(uri).publish_stream(uri, stream, num_bytes)


def replace(uri: str, content: bytes) -> None:
    """Write an object whether or not it exists: for copies and hints, never for a commit."""
    _store(uri).replace(uri, content)


def delete(uri: str) -> None:
    """Delete one object; nothing happens when it is not there."""
    _store(uri).delete(uri)


def delete_tree(uri: str, *, manifest_name: str) -> None:
    """Delete a folder, its manifests first, so that a kill on the way leaves nothing that looks finished."""
    _store(uri).delete_tree(uri, manifest_name)


def crc32c(content: bytes | memoryview) -> str:
    """Return the crc32c of `content` as eight hex digits."""
    return f"{google_crc32c.value(bytes(content)):08x}"


def crc32c_of(uri: str, *, read: bool = False, on_piece: Callable[[], object] = lambda: None) -> str:
    """Return the crc32c of the object at `uri`: from the metadata in gs://, else read in pieces.

    Args:
        uri: An object.
        read: In gs:// too, read the bytes, in bounded memory, and take nobody's word for them.
        on_piece: Called after each piece that is read.
    """
    if not read and not is_local(uri):
        found = info(uri).crc32c
        assert found is not None, "Cloud Storage keeps a crc32c for every object"
        return found
    total = 0
    with open_read(uri) as stream:
        while piece := stream.read(_PIECE_BYTES):
            total = google_crc32c.extend(total, piece)
            on_piece()
    return f"{total:08x}"


def _store(uri: str) -> Store:
    check_scheme(uri)
    return _STORES[uri.partition("://")[0]]
