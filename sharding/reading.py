"""Read the files of a shard in order, in the listed versions and ahead of the writer.

Local files are read one by one (threads would be slower), and announced to the page cache one batch ahead. Objects of a
bucket are read in batches of many concurrent requests, one batch ahead of the writer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import google_crc32c
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from contracts import storage
from contracts.errors import DataError, TryAgain
from records.decode import image_format
from sharding.fields import Fields
from sharding.job import SourceChanged
from sharding.names import encode_path
from sharding.reference import Reference, SourceFile, absolute_path, remote_uri

# Listed bytes of the two batches in memory; a larger file is a batch of its own.
BYTES_IN_FLIGHT = 64 << 20
# Concurrent requests to a bucket: enough to hide its latency.
REQUESTS = 64
# Files per batch: a multiple of REQUESTS, since each batch ends with its slowest request.
BATCH_FILES = 512

# A larger file is read only if it starts like an image: a video would fill the memory.
LARGE_BYTES = 64 << 20
HEAD_BYTES = 64

# Transient errors of disks and network mounts.
READ_ATTEMPTS = 3


def read_samples(
    source_uri: str, references: Sequence[Reference], fields: Fields, *, by_content: bool
) -> Generator[tuple[Reference, list[tuple[str, bytes]]]]:
    """Yield each reference with its files as (field, content).

    Args:
        source_uri: URI of the listing.
        references: The samples.
        fields: The fields of the samples.
        by_content: The version of a local file is its crc32c (sharding.compare=content).

    Raises:
        DataError: No permission for a file.
        StorageError: No permission for the bucket.
        TryAgain: A file vanished or changed since it was listed, or cannot be read for another reason.
    """
    files = [fields.files_of(reference) for reference in references]
    reader = FileReader(source_uri, by_content)
    with contextlib.closing(reader.read_ahead([file for group in files for _, file in group])) as contents:
        for reference, group in zip(references, files, strict=True):
            yield reference, [(name, next(contents)) for name, _ in group]


class FileReader:
    """Reads listed files, local ones and objects of a bucket.

    Args:
        source_uri: URI of the listing.
        by_content: The version of a local file is its crc32c.
    """

    def __init__(self, source_uri: str, by_content: bool = False) -> None:
        self._source_uri, self._by_content = source_uri, by_content

    def read_ahead(self, files: Sequence[SourceFile]) -> Generator[bytes]:
        """Yield the contents of files, in order, in batches if any is in a bucket; raises as `read_samples`."""
        if not any(self.uri_of(file) for file in files):
            batch: list[SourceFile] = []
            for following in (*_cut(files), []):
                for file in following:
                    announce_file(absolute_path(self._source_uri, file.path))
                yield from map(self.read, batch)
                batch = following
            return
        with ThreadPoolExecutor(1, thread_name_prefix="read a batch") as pool:
            waiting: Future[list[bytes]] | None = None
            for batch in _cut(files):
                coming = pool.submit(self._read_batch, batch)
                if waiting is not None:
                    yield from waiting.result()
                waiting = coming
            if waiting is not None:
                yield from waiting.result()

    def _read_batch(self, batch: Sequence[SourceFile]) -> list[bytes]:
        # A large file is a batch of its own, and its first bytes are checked first.
        uris = [None if item.size > LARGE_BYTES else remote_uri(self._source_uri, item.path) for item in batch]
        requests = [
            storage.ReadRequest(uri, file.version or None)
            for file, uri in zip(batch, uris, strict=True)
            if uri is not None
        ]
        objects = iter(storage.read_many(requests, requests=REQUESTS))
        contents = []
        for file, uri in zip(batch, uris, strict=True):
            content = self.read(file) if uri is None else next(objects)
            if isinstance(content, FileNotFoundError):
                raise _replaced(uri or "", file)
            contents.append(content)
        return contents

    def read(self, file: SourceFile) -> bytes:
        """Return the content of a listed file in its listed version.

        For a large file that is no image only the first bytes are returned; the check rejects them.

        Raises:
            DataError: No permission.
            TryAgain: It vanished, changed, or cannot be read for another reason.
        """
        try:
            return _read_once(self, file)
        except OSError:
            # Only after an error: a Retrying costs more than reading a file.
            retrying = Retrying(
                stop=stop_after_attempt(READ_ATTEMPTS - 1),
                wait=wait_exponential(0.1),
                retry=retry_if_exception_type(OSError),
            )
        try:
            return retrying(_read_once, self, file)
        except RetryError as error:
            reason = error.last_attempt.exception()
            raise TryAgain(f"{self._show(file)} cannot be read: {reason}; the next attempt may") from None

    def read_object(self, uri: str, file: SourceFile) -> bytes:
        """Read the listed generation of an object; storage retries and verifies checksums."""
        generation = file.version or None
        try:
            if file.size > LARGE_BYTES:
                head = storage.read_range(uri, 0, HEAD_BYTES, generation)
                if file.is_image and image_format(head) is None:
                    return head
            return storage.read_bytes(uri, generation)
        except FileNotFoundError:
            raise _replaced(uri, file) from None

    def read_local(self, file: SourceFile) -> bytes:
        """Read a file of this machine."""
        try:
            with open(absolute_path(self._source_uri, file.path), "rb", 0) as stream:
                status = os.fstat(stream.fileno())
                if file.size > LARGE_BYTES:
                    head = stream.read(HEAD_BYTES)
                    if file.is_image and image_format(head) is None:
                        return head
                    stream.seek(0)
                content = stream.readall()
        except (FileNotFoundError, NotADirectoryError):
            raise SourceChanged(
                f"{self._show(file)} vanished while the stage ran; run it again to list the source anew"
            ) from None
        except PermissionError:
            raise DataError(
                f"{self._show(file)} cannot be read: permission denied",
                allowed="files that this user may read",
                todo="correct its permissions, or run as another user",
            ) from None
        version = google_crc32c.value(content) if self._by_content else status.st_mtime_ns
        if (len(content), status.st_size, version) != (file.size, file.size, file.version):
            raise SourceChanged(
                f"{self._show(file)} changed while the stage ran; run it again when nothing writes there"
            )
        return content

    def uri_of(self, file: SourceFile) -> str | None:
        """Return the URI of an object, None for a local file."""
        return remote_uri(self._source_uri, file.path)

    def _show(self, file: SourceFile) -> str:
        return f"{encode_path(file.path)} in {storage.display(self._source_uri)}"


def _read_once(reader: FileReader, file: SourceFile) -> bytes:
    uri = reader.uri_of(file)
    return reader.read_local(file) if uri is None else reader.read_object(uri, file)


def _cut(files: Iterable[SourceFile]) -> Iterator[list[SourceFile]]:
    """Yield batches of files of up to half of `BYTES_IN_FLIGHT`; a larger file is a batch of its own."""
    batch: list[SourceFile] = []
    size = 0
    for file in files:
        if batch and (size + file.size > BYTES_IN_FLIGHT // 2 or len(batch) == BATCH_FILES):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch


def announce_file(path: bytes) -> None:
    """Announce a file to the page cache; errors are ignored."""
    if not hasattr(os, "posix_fadvise"):
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)


def _replaced(uri: str, file: SourceFile) -> SourceChanged:
    return SourceChanged(
        f"{uri} vanished or was replaced while the stage ran (generation {file.version} was listed); "
        "run it again to list the source anew"
    )
