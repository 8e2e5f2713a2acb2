"""`gs://`: Google Cloud Storage through google-cloud-storage (extra `gcp`).

What commits is create-only by ifGenerationMatch=0; a lost answer is recognised by the object's checksum. Every call has
a timeout and the client's own retry. The client is made on first use, one a process (a forked child makes its own),
and only credentials of the environment are used; where STORAGE_EMULATOR_HOST is set, none.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, cast

from contracts.errors import StorageError, TryAgain
from contracts.stores import AlreadyPublished, ObjectInfo
from contracts.stores.gcs_client import call_options, client, explained, hex_digest
from contracts.stores.local import crc32c_of

# A chunk of a resumable upload and of a streamed read: the memory that one stream takes. A multiple of 256 KiB.
CHUNK_BYTES = 16 << 20
# Deletes are one small request each; their latency, not their bytes, is what threads hide.
_DELETE_THREADS = 16
# Bytes that change on their way are rare; twice in a row it is not the line.
_READ_ATTEMPTS = 3
_INFO_FIELDS = "name,size,generation,crc32c,md5Hash,updated"


def split(uri: str) -> tuple[str, str]:
    """Return bucket and object name of a URI; the name may be empty."""
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    if not bucket:
        raise StorageError(f"{uri} names no bucket", allowed="gs://BUCKET/PATH", todo="write the bucket's name")
    return bucket, name


def exists(uri: str) -> bool:
    """See contracts.storage, as for the other functions here."""
    bucket, name = split(uri)
    with explained(uri):
        if name and client().bucket(bucket).blob(name).exists(**call_options()):
            return True
        # Also says whether there is such a bucket: for an object "not found" means either.
        return any(_pages(bucket, name + "/" if name else "", max_results=1))


def info(uri: str) -> ObjectInfo:
    """Return size, version and checksums, from the metadata: no byte is read."""
    blob = _metadata(uri)
    return _describe(blob, blob.name.rpartition("/")[0] + "/")


def read_bytes(uri: str, generation: int | None) -> bytes:
    """Return the whole content, compared with its checksum."""
    import google_crc32c

    for _ in range(_READ_ATTEMPTS):
        with explained(uri, is_object=True):
            blob = _blob(uri, generation)
            # The client compares too, but not what it continued after a broken connection: so it is done here.
            # Raw: as stored, which is what size and checksum are about, whatever Content-Encoding says.
            content = cast(bytes, blob.download_as_bytes(raw_download=True, checksum=None, **call_options()))
        if hex_digest(blob.crc32c) == f"{google_crc32c.value(content):08x}":
            return content
    raise TryAgain(f"{uri}: {_READ_ATTEMPTS} times the bytes that came have another checksum than the object")


def read_range(uri: str, start: int, length: int, generation: int | None) -> bytes:
    """Return part of the content; a range has no checksum."""
    from google.api_core.exceptions import RequestRangeNotSatisfiable

    if length <= 0:
        return b""
    with explained(uri, is_object=True):
        try:
            blob = _blob(uri, generation)
            end = start + length - 1
            return cast(bytes, blob.download_as_bytes(start=start, end=end, raw_download=True, **call_options()))
        except RequestRangeNotSatisfiable:
            return b""


def open_read(uri: str, generation: int | None) -> BinaryIO:
    """Open for reading: a request a chunk, each with its own retry, all of one generation."""
    found = _metadata(uri, generation)
    # Pinned: else an overwrite between two chunks would give half of each.
    stream = _ObjectStream(uri, int(found.generation), int(found.size))
    return io.BufferedReader(stream, buffer_size=max(1, min(CHUNK_BYTES, stream.size)))


class _ObjectStream(io.RawIOBase):
    """One generation of an object as a file; every read is a request."""

    def __init__(self, uri: str, generation: int, size: int) -> None:
        self._uri = uri
        self._generation = generation
        self._position = 0
        self.size = size

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill as much of the buffer as the object has."""
        length = min(len(buffer), self.size - self._position)
        if length <= 0:
            return 0
        content = read_range(self._uri, self._position, length, self._generation)
        if len(content) != length:
            raise TryAgain(f"{self._uri}: {len(content)} of {length} bytes came at {self._position}")
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


def list_names(uri: str) -> list[str]:
    """Return the names directly below a folder."""
    bucket, name = split(uri)
    prefix = name + "/" if name else ""
    with explained(uri):
        listed = _pages(bucket, prefix, delimiter="/", fields="items(name),prefixes,nextPageToken")
        names = {blob.name.removeprefix(prefix) for blob in listed}
        names |= {folder.removeprefix(prefix).rstrip("/") for folder in listed.prefixes}
    return sorted(names - {""})


def list_objects(uri: str, recursive: bool) -> Iterator[ObjectInfo]:
    """Yield the objects below a folder, a page of 1,000 at a time."""
    bucket, name = split(uri)
    prefix = name + "/" if name else ""
    with explained(uri):
        delimiter = None if recursive else "/"
        for blob in _pages(bucket, prefix, delimiter=delimiter, fields=f"items({_INFO_FIELDS}),nextPageToken"):
            yield _describe(blob, prefix)


def publish(uri: str, content: bytes) -> None:
    """Create an object that must not exist yet."""
    import google_crc32c
    from google.api_core.exceptions import PreconditionFailed

    with explained(uri):
        try:
            _new_blob(uri).upload_from_string(
                content,
                content_type="application/octet-stream",
                if_generation_match=0,
                checksum="crc32c",
                **call_options(),
            )
        except PreconditionFailed:
            _same_or_raise(uri, len(content), f"{google_crc32c.value(content):08x}")


def publish_file(path: Path, uri: str) -> None:
    """Upload a file, create-only; the file is gone afterwards."""
    from google.api_core.exceptions import PreconditionFailed

    try:
        with explained(uri):
            try:
                _new_blob(uri).upload_from_filename(
                    str(path),
                    content_type="application/octet-stream",
                    if_generation_match=0,
                    checksum="crc32c",
                    **call_options(),
                )
            except PreconditionFailed:
                _same_or_raise(uri, path.stat().st_size, crc32c_of(path))
    finally:
        path.unlink()


def publish_stream(uri: str, stream: BinaryIO, num_bytes: int) -> str:
    """Upload a stream, create-only."""
    from google.api_core.exceptions import PreconditionFailed

    counted = _CountedStream(stream)
    with explained(uri):
        blob = _new_blob(uri)
        try:
            blob.upload_from_file(
                counted,
                size=num_bytes,
                content_type="application/octet-stream",
                if_generation_match=0,
                checksum="crc32c",
                **call_options(),
            )
        except PreconditionFailed:
            # A lost answer: the upload may have ended before all was read in this process.
            counted.read_to_end()
            _same_or_raise(uri, num_bytes, counted.crc32c)
        else:
            if hex_digest(blob.crc32c) != counted.crc32c:
                raise TryAgain(f"{uri}: the bucket holds other bytes than were sent")
    return counted.crc32c


class _CountedStream(io.RawIOBase):
    """A stream with the crc32c of what was read from it, each byte counted once although retries read some again."""

    def __init__(self, stream: BinaryIO) -> None:
        import google_crc32c

        self._extend = google_crc32c.extend
        self._stream = stream
        self._counted = 0
        self._crc32c = 0

    @property
    def crc32c(self) -> str:
        return f"{self._crc32c:08x}"

    def read(self, size: int | None = -1) -> bytes:
        start = self._stream.tell()
        content = self._stream.read(-1 if size is None else size)
        if start + len(content) > self._counted:
            self._crc32c = self._extend(self._crc32c, content[self._counted - start :])
            self._counted = start + len(content)
        return content

    def read_to_end(self) -> None:
        self.seek(self._counted)
        while self.read(CHUNK_BYTES):
            pass

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._stream.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)


def replace(uri: str, content: bytes) -> None:
    """Write an object whether or not it exists; a repeated request writes the same bytes again."""
    with explained(uri):
        _new_blob(uri).upload_from_string(
            content, content_type="application/octet-stream", checksum="crc32c", **call_options()
        )


def delete(uri: str) -> None:
    """Delete an object."""
    from google.api_core.exceptions import NotFound

    with explained(uri):
        try:
            _blob(uri, None).delete(**call_options())
        except NotFound:
            return


def delete_tree(uri: str, manifest_name: str) -> None:
    """Delete everything below a folder, its manifests first."""
    bucket, name = split(uri)
    prefix = name + "/" if name else ""
    with explained(uri):
        names = [blob.name for blob in _pages(bucket, prefix, fields="items(name),nextPageToken")]
        manifests = [name for name in names if name.rpartition("/")[2] == manifest_name]
        # Until the last manifest is gone nothing else may go.
        for group in (manifests, sorted(set(names) - set(manifests))):
            with ThreadPoolExecutor(_DELETE_THREADS) as threads:
                for _ in threads.map(lambda name: delete(f"gs://{bucket}/{name}"), group):
                    pass


def _describe(blob: Any, prefix: str) -> ObjectInfo:
    crc32c, md5 = hex_digest(blob.crc32c), hex_digest(blob.md5_hash)
    updated_s = blob.updated.timestamp()
    return ObjectInfo(blob.name.removeprefix(prefix), int(blob.size), int(blob.generation), crc32c, md5, updated_s)


def _pages(bucket: str, prefix: str, **options: Any) -> Any:
    return client().list_blobs(bucket, prefix=prefix, **options, **call_options())


def _blob(uri: str, generation: int | None) -> Any:
    bucket, name = split(uri)
    if not name:
        raise IsADirectoryError(uri)
    return client().bucket(bucket).blob(name, generation=generation)


def _new_blob(uri: str) -> Any:
    blob = _blob(uri, None)
    # Without it the client holds chunks of 100 MB in memory.
    blob.chunk_size = CHUNK_BYTES
    return blob


def _metadata(uri: str, generation: int | None = None) -> Any:
    with explained(uri, is_object=True):
        blob = _blob(uri, generation)
        blob.reload(**call_options())
        return blob


def _same_or_raise(uri: str, num_bytes: int, crc32c: str) -> None:
    """Tell a retry after a lost answer, which is success, from another writer's object."""
    found = _metadata(uri)
    if (int(found.size), hex_digest(found.crc32c)) != (num_bytes, crc32c):
        raise AlreadyPublished(uri)
