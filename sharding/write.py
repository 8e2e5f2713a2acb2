"""Write one shard: read, check and frame its files, and publish them with their index.

`write_shard` is idempotent: the same references give the same bytes, and publishing equal bytes succeeds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import numpy as np

from contracts import storage
from contracts.artifacts import FileEntry, ShardEntry
from contracts.artifacts.shards import index_name
from contracts.config import SPLITS
from records import tar, tfrecord
from records.decode import UndecodableImage
from records.index import NO_LABEL, ROW, pack_index
from records.statistics import ChannelSums, Tally, is_summed
from sharding.job import MAX_REJECTED, Job, ShardResult, scratch_file
from sharding.limits import space_needed
from sharding.names import encode_path
from sharding.plan import make_place_hash
from sharding.reading import read_samples
from sharding.reference import Reference
from sharding.samples import Accepted, accept, make_sample

FORMATS = {"webdataset": tar, "tfrecord": tfrecord}
# Size of the write buffer: a row of a table is some hundred bytes.
_BUFFER_BYTES = 1 << 16
# Bytes after which writeback is started, so that the final flush is short.
_WRITEBACK_BYTES = 8 << 20
_SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)


@contextlib.contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """End this process by SIGALRM when the block takes longer; 0: no limit.

    The kernel ends it, since a decoder that hangs may hold the interpreter's lock. The parent determines the file
    (sharding/workers.py).
    """
    if not limit_s:
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class _ShardFile:
    """A shard file being written, with the index rows and statistics of its samples."""

    def __init__(self, job: Job, split: str, stream: BinaryIO) -> None:
        self._job, self._stream = job, stream
        self._is_training = split == SPLITS[0]
        self._frames = FORMATS[job.planned.sharding.shard_format]
        self.size = self.crc32c = self.source_bytes = self._synced = 0
        self.rows: list[tuple[int, int, int, int, bytes, int, int]] = []
        self.by_class: Counter[int] = Counter()
        self.channel_sums = ChannelSums()
        self.tally = Tally()

    def add(self, reference: Reference, accepted: Accepted) -> None:
        """Append an accepted sample."""
        framed = self._frames.frame(make_sample(reference, accepted, self._job))
        self._write(framed.head)
        label = reference.labels[0] if self._job.has_labels and reference.labels else NO_LABEL
        content = hash_content(accepted.content)
        crc32c = google_crc32c.value(framed.body)
        self.rows.append((self.size, len(framed.body), crc32c, label, reference.key, reference.source, content))
        self._write(framed.body)
        self._write(framed.tail)
        self.by_class.update(reference.labels)
        self.source_bytes += reference.source_bytes
        image = accepted.image
        if image is None:
            return
        self.tally.add(image.source_format, image.source_mode, image.changes, image.width, image.height, image.remarks)
        is_drawn = self._is_training and is_summed(reference.key, self._job.planned.summed_share)
        if is_drawn and image.pixels is not None:
            self.channel_sums += ChannelSums.of(image.pixels)

    def _write(self, content: bytes) -> None:
        self._stream.write(content)
        self.size += len(content)
        self.crc32c = google_crc32c.extend(self.crc32c, content)
        if self.size - self._synced >= _WRITEBACK_BYTES and _sync_file_range is not None:
            # A hint: its result is ignored.
            begun, length = ctypes.c_int64(self._synced), ctypes.c_int64(self.size - self._synced)
            _sync_file_range(self._stream.fileno(), begun, length, _SYNC_FILE_RANGE_WRITE)
            self._synced = self.size

    def close(self) -> None:
        """End the file and flush everything to the disk."""
        self._write(self._frames.END)
        self._stream.flush()
        os.fsync(self._stream.fileno())


def write_shard(
    job: Job,
    shard: int,
    references: Iterable[Reference],
    rejected: Mapping[bytes, str] | None = None,
    time_limit_s: float = 0,
    scratch: Path | None = None,
) -> ShardResult:
    """Write and publish one shard and its index.

    Args:
        job: The planned job.
        shard: Number of the shard in the plan.
        references: Its samples, in any order.
        rejected: Reason by path of files whose decoder crashes or hangs; they are not opened.
        time_limit_s: Time limit for the check of each sample; 0: none.
        scratch: Path of the temporary file; unset: a new one.

    Raises:
        DataError: A file may not be read.
        StorageError: No permission for a bucket, or no room on the disk.
        TryAgain: A file vanished or changed since it was listed, or reading it failed repeatedly.
        AlreadyPublished: A shard of this name has other bytes.
    """
    planned = job.planned
    rejections = [(encode_path(path), reason) for path, reason in (rejected or {}).items()]
    split = SPLITS[planned.plan.split_of(shard)]
    to_read = [reference for reference in references if reference.path not in (rejected or {})]
    ordered, by_content = order_references(to_read, planned.plan.seed), planned.sharding.compare == "content"
    temporary = scratch or scratch_file(job.output_uri)
    shards = []
    try:
        with space_needed(job.output_uri):
            with (
                temporary.open("wb", buffering=_BUFFER_BYTES) as stream,
                contextlib.closing(
                    read_samples(planned.source_uri, ordered, job.fields, by_content=by_content)
                ) as samples,
            ):
                file = _ShardFile(job, split, stream)
                for reference, contents in samples:
                    try:
                        with time_limit(time_limit_s):
                            accepted = accept(reference, contents, job.fields, job.checks)
                    except UndecodableImage as reason:
                        rejections.append((encode_path(reference.path), str(reason)))
                    else:
                        file.add(reference, accepted)
                file.close()
            if file.rows:
                shards.append(_publish(job, split, temporary, shard_name(job, shard), file))
    finally:
        temporary.unlink(missing_ok=True)
    return ShardResult(
        shards=shards,
        samples_by_class={split: dict(sorted(file.by_class.items()))},
        source_bytes={split: file.source_bytes},
        rejected=sorted(rejections)[:MAX_REJECTED],
        num_rejected=len(rejections),
        channel_sums=file.channel_sums,
        tally=file.tally,
    )


def _publish(job: Job, split: str, temporary: Path, name: str, file: _ShardFile) -> ShardEntry:
    content, samples = pack_index(np.array(file.rows, ROW)), len(file.rows)
    index = FileEntry(name=index_name(name), bytes=len(content), crc32c=storage.crc32c(content))
    storage.publish_file(temporary, storage.join(job.output_uri, name))
    storage.publish(index.uri(job.output_uri), content)
    crc32c = f"{file.crc32c:08x}"
    return ShardEntry(name=name, bytes=file.size, crc32c=crc32c, split=split, first=0, samples=samples, index=index)


def shard_name(job: Job, shard: int) -> str:
    """Return the file name of a shard."""
    return f"{job.stem_of(shard)}{FORMATS[job.planned.sharding.shard_format].SUFFIX}"


def order_references(references: Iterable[Reference], seed: int) -> list[Reference]:
    """Sort the samples of a shard by their placement hash."""
    return [sample for _, sample in sorted((make_place_hash(seed, sample.path), sample) for sample in references)]


def hash_content(content: bytes) -> int:
    """Return a 64-bit hash, crc32c and crc32 combined: 0.3 ns per byte."""
    return int(google_crc32c.value(content)) << 32 | zlib.crc32(content)


def check_sample(job: Job, reference: Reference, time_limit_s: float) -> None:
    """Read and check one sample; a decoder that crashes or hangs ends this process."""
    ((_, contents),) = read_samples(
        job.planned.source_uri,
        [reference],
        job.fields,
        by_content=job.planned.sharding.compare == "content",
    )
    with time_limit(time_limit_s), contextlib.suppress(UndecodableImage):
        accept(reference, contents, job.fields, job.checks)
