"""Reading the files of a shard, in order and each as the listing saw it, ahead of the writer.

Local files are read where they are needed, a few system calls each, which threads would only slow down; the system is
told about them beforehand, and fetches those that it does not hold. From a bucket they are read in batches, one batch
ahead of the writer, with many requests under way.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
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

# Bytes of the batch that is being taken and of the one that is being read, by the listing; a larger file is alone.
BYTES_IN_FLIGHT = 64 << 20
# Requests to a bucket that are under way at a time: enough to hide its latency.
REQUESTS = 64
# Files in a batch: a few times the calls under way, since each batch ends with waiting for its slowest.
BATCH_FILES = 512

# How far ahead the system is told what will be read.
ANNOUNCED_BYTES = 16 << 20
ANNOUNCED_FILES = 64

# A file above this size is read only if its first bytes are those of an image: a video would fill the memory.
LARGE_BYTES = 64 << 20
HEAD_BYTES = 64

# A disk or a network mount may fail once; three times in two seconds is for the next attempt of the stage.
READ_ATTEMPTS = 3


def read_samples(
    source_uri: str, references: Sequence[Reference], fields: Fields | None, *, by_content: bool
) -> Generator[tuple[Reference, list[tuple[str, bytes]]]]:
    """Yield references, each with the content of its files by field, in order; without named fields of the one file.

    Args:
        source_uri: Of the listing.
        references: The samples.
        fields: The named fields; None: each sample is one image.
        by_content: The version of a local file is its crc32c (sharding.compare=content).

    Raises:
        DataError: A file may not be read.
        StorageError: No permission for the bucket.
        TryAgain: A file vanished or changed since it was listed, or cannot be read for another reason.
    """
    files: list[list[tuple[str, SourceFile]]] = [
        [("", _only_file(reference))] if fields is None else fields.files_of(reference) for reference in references
    ]
    reader = FileReader(source_uri, by_content)
    with contextlib.closing(reader.read_ahead([file for own in files for _, file in own])) as contents:
        for reference, own in zip(references, files, strict=True):
            yield reference, [(name, next(contents)) for name, _ in own]


def _only_file(reference: Reference) -> SourceFile:
    return SourceFile(reference.path, reference.size, reference.version, reference.content_hash)


class FileReader:
    """Reads listed files of this machine or of a bucket: a manifest may name both.

    Args:
        source_uri: Of the listing.
        by_content: The version of a local file is its crc32c.
    """

    def __init__(self, source_uri: str, by_content: bool = False) -> None:
        self._source_uri, self._by_content = source_uri, by_content

    def read_ahead(self, files: Sequence[SourceFile]) -> Generator[bytes]:
        """Yield the contents of files, in order; errors are those of `read_samples`.

        Where any of them is in a bucket, they are read in batches, with many requests under way.
        """
        if not any(self.uri_of(file) for file in files):
            yield from map(self.read, self._announced(files))
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
        # A large one is looked at first, and is alone in its batch anyway.
        uris = [None if one.size > LARGE_BYTES else remote_uri(self._source_uri, one.path) for one in batch]
        wanted = [
            storage.Wanted(uri, file.version or None) for file, uri in zip(batch, uris, strict=True) if uri is not None
        ]
        objects = iter(storage.read_many(wanted, requests=REQUESTS))
        contents = []
        for file, uri in zip(batch, uris, strict=True):
            content = self.read(file) if uri is None else next(objects)
            if isinstance(content, FileNotFoundError):
                raise _replaced(uri or "", file)
            contents.append(content)
        return contents

    def _announced(self, files: Iterable[SourceFile]) -> Iterator[SourceFile]:
        """Yield files, each some time after the system was told that it will be read."""
        waiting: deque[SourceFile] = deque()
        size = 0
        for file in files:
            if remote_uri(self._source_uri, file.path) is None:
                announce_file(absolute_path(self._source_uri, file.path))
            waiting.append(file)
            size += file.size
            while len(waiting) > ANNOUNCED_FILES or size > ANNOUNCED_BYTES:
                size -= waiting[0].size
                yield waiting.popleft()
        yield from waiting

    def read(self, file: SourceFile) -> bytes:
        """Return the content of a listed file, which must be what the listing saw.

        Of a large file that is no image only the head is returned: it is rejected for that.

        Raises:
            DataError: It may not be read.
            TryAgain: It vanished, changed, or cannot be read for another reason.
        """
        try:
            return _read_once(self, file)
        except OSError:
            # The way without errors is the hot one: what repeats a call costs more than reading a file.
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
        """Read the version of an object that the listing saw; storage itself retries and compares checksums."""
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
        """Return the URI of a file that is in a bucket, None for a local one."""
        return remote_uri(self._source_uri, file.path)

    def _show(self, file: SourceFile) -> str:
        return f"{encode_path(file.path)} in {storage.display(self._source_uri)}"


def _read_once(reader: FileReader, file: SourceFile) -> bytes:
    uri = reader.uri_of(file)
    return reader.read_local(file) if uri is None else reader.read_object(uri, file)


def _cut(files: Iterable[SourceFile]) -> Iterator[list[SourceFile]]:
    """Yield files in batches of half of `BYTES_IN_FLIGHT`; what is larger than that comes alone."""
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
    """Have the system fetch a file that will be read soon; a hint: nothing goes wrong here."""
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
