"""Reading the files of a shard, in order and each as the listing saw it, ahead of the writer.

Local files are read where they are needed, a few system calls each, which threads would only slow down; the system is
told about them beforehand, and fetches those that it does not hold (docs/sharding.md). Where calls are slow, as on a
network mount or in a bucket, they are read in batches, one ahead of the writer, with many calls under way: of objects
by one event loop. Against rehearsal.gcs (2026-11-21; two cores, 2,000 objects of 25 KB, 25 ms to the first byte, median
of three) an object took 0.8 ms so, and 2.2 ms with 32 or 64 threads of google-cloud-storage, which are bound by Python.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from contracts import storage
from contracts.errors import DataError, TryAgain
from records.decode import image_format
from sharding.job import SourceChanged
from sharding.limits import encode_path
from sharding.sources import Reference, absolute_path, remote_uri
from sharding.sources.fields import Fields
from sharding.sources.reference import SourceFile

File = Reference | SourceFile

# Bytes of the batch that is being taken and of the one that is being read, by the listing; a larger file is alone.
BYTES_IN_FLIGHT = 64 << 20
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
    source_uri: str, references: Sequence[Reference], fields: Fields | None, *, threads: int
) -> Generator[tuple[Reference, list[tuple[str, bytes]]]]:
    """Yield references, each with the content of its files by field, in order; without named fields of the one file.

    Arguments and errors are those of `read_ahead`.
    """
    files: list[list[tuple[str, File]]] = [
        [("", reference)] if fields is None else list(fields.files_of(reference)) for reference in references
    ]
    flat = (file for own in files for _, file in own)
    with contextlib.closing(read_ahead(source_uri, flat, threads=threads)) as contents:
        for reference, own in zip(references, files, strict=True):
            yield reference, [(name, next(contents)[1]) for name, _ in own]


def read_ahead(
    source_uri: str, references: Iterable[File], *, threads: int, bytes_in_flight: int = BYTES_IN_FLIGHT
) -> Generator[tuple[File, bytes]]:
    """Yield files with their content, in order.

    Args:
        source_uri: Of the listing.
        references: What to read, on this machine or in a bucket: a manifest may name both.
        threads: Files, or requests to a bucket, that are under way at a time; 0: each is read when it is asked for.
        bytes_in_flight: Bound on the content that is held, by the sizes of the listing.

    Raises:
        DataError: A file may not be read.
        StorageError: No permission for the bucket.
        TryAgain: A file vanished or changed since it was listed, or cannot be read for another reason.
    """
    if threads == 0:
        for reference in _announced(source_uri, references):
            yield reference, read_file(source_uri, reference)
        return
    with (
        ThreadPoolExecutor(threads, thread_name_prefix="read") as files,
        ThreadPoolExecutor(1, thread_name_prefix="read a batch") as batches,
    ):
        waiting: tuple[list[File], Future[list[bytes]]] | None = None
        for batch in cut(references, most_bytes=bytes_in_flight // 2, most_files=BATCH_FILES):
            contents = batches.submit(_read_batch, source_uri, batch, files, threads)
            if waiting is not None:
                yield from zip(waiting[0], waiting[1].result(), strict=True)
            waiting = batch, contents
        if waiting is not None:
            yield from zip(waiting[0], waiting[1].result(), strict=True)


def cut(references: Iterable[File], *, most_bytes: int, most_files: int) -> Iterator[list[File]]:
    """Yield references in runs of so many bytes and files at most; what is larger than that comes alone."""
    run: list[File] = []
    size = 0
    for reference in references:
        if run and (size + reference.size > most_bytes or len(run) == most_files):
            yield run
            run, size = [], 0
        run.append(reference)
        size += reference.size
    if run:
        yield run


def _read_batch(source_uri: str, batch: Sequence[File], files: ThreadPoolExecutor, threads: int) -> list[bytes]:
    # A large one is looked at first, and is alone in its batch anyway.
    uris = [None if one.size > LARGE_BYTES else remote_uri(source_uri, one.path) for one in batch]
    single = [reference for reference, uri in zip(batch, uris, strict=True) if uri is None]
    # Some for each thread: a hand-over costs as much as reading a small file that the system holds.
    step = max(1, len(single) // (4 * threads))
    groups = [single[start : start + step] for start in range(0, len(single), step)]
    read = files.map(functools.partial(_read_files, source_uri), groups)
    wanted = [
        storage.Wanted(uri, reference.generation or None)
        for reference, uri in zip(batch, uris, strict=True)
        if uri is not None
    ]
    objects = iter(storage.read_many(wanted, requests=threads))
    local = (content for group in read for content in group)
    contents = []
    for reference, uri in zip(batch, uris, strict=True):
        content = next(local) if uri is None else next(objects)
        if isinstance(content, FileNotFoundError):
            raise _replaced(uri or "", reference)
        contents.append(content)
    return contents


def _read_files(source_uri: str, references: list[File]) -> list[bytes]:
    return [read_file(source_uri, reference) for reference in references]


def _announced(source_uri: str, references: Iterable[File]) -> Iterator[File]:
    """Yield references, each some time after it was announced."""
    waiting: deque[File] = deque()
    size = 0
    for reference in references:
        if remote_uri(source_uri, reference.path) is None:
            announce_file(absolute_path(source_uri, reference.path))
        waiting.append(reference)
        size += reference.size
        while len(waiting) > ANNOUNCED_FILES or size > ANNOUNCED_BYTES:
            size -= waiting[0].size
            yield waiting.popleft()
    yield from waiting


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


def read_file(source_uri: str, reference: File) -> bytes:
    """Return the content of a listed file, which must be what the listing saw.

    Of a large file that is no image only the head is returned: it is rejected for that.

    Raises:
        DataError: It may not be read.
        TryAgain: It vanished, changed, or cannot be read for another reason.
    """
    try:
        return _read_once(source_uri, reference)
    except OSError:
        # The way without errors is the hot one: what repeats a call costs more than reading a file.
        retrying = Retrying(
            stop=stop_after_attempt(READ_ATTEMPTS - 1),
            wait=wait_exponential(0.1),
            retry=retry_if_exception_type(OSError),
        )
    try:
        return retrying(_read_once, source_uri, reference)
    except RetryError as error:
        reason = error.last_attempt.exception()
        raise TryAgain(f"{_show(source_uri, reference)} cannot be read: {reason}; the next attempt may") from None


def _read_once(source_uri: str, reference: File) -> bytes:
    uri = remote_uri(source_uri, reference.path)
    return _read_local(source_uri, reference) if uri is None else _read_object(uri, reference)


def _read_object(uri: str, reference: File) -> bytes:
    """Read the version of an object that the listing saw; storage itself retries and compares checksums."""
    generation = reference.generation or None
    try:
        if reference.size > LARGE_BYTES:
            head = storage.read_range(uri, 0, HEAD_BYTES, generation)
            if reference.is_image and image_format(head) is None:
                return head
        return storage.read_bytes(uri, generation)
    except FileNotFoundError:
        raise _replaced(uri, reference) from None


def _read_local(source_uri: str, reference: File) -> bytes:
    try:
        with open(absolute_path(source_uri, reference.path), "rb", 0) as stream:
            status = os.fstat(stream.fileno())
            if status.st_size > LARGE_BYTES:
                head = stream.read(HEAD_BYTES)
                if reference.is_image and image_format(head) is None:
                    return head
                stream.seek(0)
            content = stream.readall()
    except (FileNotFoundError, NotADirectoryError):
        raise SourceChanged(
            f"{_show(source_uri, reference)} vanished while the stage ran; run it again to list the source anew"
        ) from None
    except PermissionError:
        raise DataError(
            f"{_show(source_uri, reference)} cannot be read: permission denied",
            allowed="files that this user may read",
            todo="correct its permissions, or run as another user",
        ) from None
    if (len(content), status.st_size, status.st_mtime_ns) != (reference.size, reference.size, reference.generation):
        raise SourceChanged(
            f"{_show(source_uri, reference)} changed while the stage ran; run it again when nothing writes there"
        )
    return content


def _replaced(uri: str, reference: File) -> SourceChanged:
    return SourceChanged(
        f"{uri} vanished or was replaced while the stage ran (generation {reference.generation} was listed); "
        "run it again to list the source anew"
    )


def _show(source_uri: str, reference: File) -> str:
    return f"{encode_path(reference.path)} in {storage.display(source_uri)}"
