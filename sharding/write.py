"""Writing one shard: its files are read, checked, framed and published with their index; the result is a small record.

`write_shard` does all of it in one call. Called again with the same references it writes the same bytes, and publishing
what is already there is success: a retried or duplicated call changes nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
# Bytes that are collected before the system is given them: a row of a table is some hundred.
_BUFFER_BYTES = 1 << 16
# Bytes that the system is told to put on the disk meanwhile, so that the flush at the end waits for little.
_BEHIND_BYTES = 8 << 20
_SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)


@contextlib.contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """End this process by SIGALRM when the block takes longer; 0: no limit.

    The kernel does it: a decoder that never returns may hold the interpreter's lock. The parent finds out which file it
    was (sharding/workers.py).
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
    """The file of a shard under way: counts and checksums what is written, and has it go to the disk meanwhile."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.size = self.crc32c = self._begun = 0

    def write(self, content: bytes) -> None:
        """Append bytes."""
        self._stream.write(content)
        self.size += len(content)
        self.crc32c = google_crc32c.extend(self.crc32c, content)
        if self.size - self._begun >= _BEHIND_BYTES and _sync_file_range is not None:
            # A hint: the answer does not matter.
            begun, length = ctypes.c_int64(self._begun), ctypes.c_int64(self.size - self._begun)
            _sync_file_range(self._stream.fileno(), begun, length, _SYNC_FILE_RANGE_WRITE)
            self._begun = self.size

    def close(self) -> None:
        """Flush everything to the disk."""
        self._stream.flush()
        os.fsync(self._stream.fileno())


@dataclass
class _Written:
    """What is known of the samples of a shard."""

    rows: list[tuple[int, int, int, int, bytes, int, int]] = field(default_factory=list)
    by_class: Counter[int] = field(default_factory=Counter)
    source_bytes: int = 0
    rejected: list[tuple[str, str]] = field(default_factory=list)
    channel_sums: ChannelSums = field(default_factory=ChannelSums)
    images: Tally = field(default_factory=Tally)


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
        shard: Its number in the plan.
        references: Its samples, in any order.
        rejected: Reason of each path that cannot be checked, since its decoder crashes or hangs; it is not opened.
        time_limit_s: Of the check of each sample; 0: none.
        scratch: Path of the temporary file; unset: a new one.

    Raises:
        DataError: A file may not be read.
        StorageError: No permission for a bucket, or no room on the disk.
        TryAgain: A file vanished or changed since it was listed, or reading it failed repeatedly.
        AlreadyPublished: Other bytes have the name of the shard.
    """
    rejected = rejected or {}
    plan, split = job.planned.plan, SPLITS[job.planned.plan.split_of(shard)]
    ordered = order_references((one for one in references if one.path not in rejected), plan.seed)
    written = _Written(rejected=[(encode_path(path), reason) for path, reason in rejected.items()])
    name = shard_name(job, shard)
    temporary = scratch or scratch_file(job.output_uri)
    try:
        with space_needed(job.output_uri):
            with temporary.open("wb", buffering=_BUFFER_BYTES) as stream:
                file = _ShardFile(stream)
                _write_samples(job, split, ordered, file, written, time_limit_s)
                file.close()
            shards = _publish(job, split, temporary, name, file, written) if written.rows else []
    finally:
        temporary.unlink(missing_ok=True)
    return ShardResult(
        shards=shards,
        samples_by_class={split: dict(sorted(written.by_class.items()))},
        source_bytes={split: written.source_bytes},
        rejected=sorted(written.rejected)[:MAX_REJECTED],
        num_rejected=len(written.rejected),
        channel_sums=written.channel_sums,
        tally=written.images,
    )


def _write_samples(
    job: Job, split: str, ordered: Sequence[Reference], file: _ShardFile, written: _Written, time_limit_s: float
) -> None:
    planned = job.planned
    frames = FORMATS[planned.sharding.shard_format]
    samples = read_samples(
        planned.source_uri,
        ordered,
        job.fields,
        by_content=planned.sharding.compare == "content",
    )
    with contextlib.closing(samples):
        for reference, contents in samples:
            try:
                with time_limit(time_limit_s):
                    accepted = accept(reference, contents, job.fields, job.checks)
            except UndecodableImage as reason:
                written.rejected.append((encode_path(reference.path), str(reason)))
                continue
            framed = frames.frame(make_sample(reference, accepted, job))
            file.write(framed.head)
            offset = file.size
            file.write(framed.body)
            file.write(framed.tail)
            written.rows.append(
                (
                    offset,
                    len(framed.body),
                    google_crc32c.value(framed.body),
                    reference.labels[0] if job.has_labels and reference.labels else NO_LABEL,
                    reference.key,
                    reference.source,
                    hash_content(accepted.content),
                )
            )
            written.by_class.update(reference.labels)
            written.source_bytes += reference.source_bytes
            is_drawn = split == SPLITS[0] and is_summed(reference.key, planned.summed_share)
            _count_image(accepted, written, is_drawn=is_drawn)
    file.write(frames.END)


def _count_image(accepted: Accepted, written: _Written, *, is_drawn: bool) -> None:
    image = accepted.image
    if image is None:
        return
    written.images.add(image.source_format, image.source_mode, image.changes, image.width, image.height, image.remarks)
    if is_drawn and image.pixels is not None:
        written.channel_sums += ChannelSums.of(image.pixels)


def _publish(job: Job, split: str, temporary: Path, name: str, file: _ShardFile, written: _Written) -> list[ShardEntry]:
    index = pack_index(np.array(written.rows, ROW))
    entry = FileEntry(name=index_name(name), bytes=len(index), crc32c=storage.crc32c(index))
    storage.publish_file(temporary, storage.join(job.output_uri, name))
    storage.publish(entry.uri(job.output_uri), index)
    crc32c = f"{file.crc32c:08x}"
    samples = len(written.rows)
    shard = ShardEntry(name=name, bytes=file.size, crc32c=crc32c, split=split, first=0, samples=samples, index=entry)
    return [shard]


def shard_name(job: Job, shard: int) -> str:
    """Return the file name of a shard."""
    return f"{job.stem_of(shard)}{FORMATS[job.planned.sharding.shard_format].SUFFIX}"


def order_references(references: Iterable[Reference], seed: int) -> list[Reference]:
    """Return the samples of a shard in their order."""
    return [one for _, one in sorted((make_place_hash(seed, one.path), one) for one in references)]


def hash_content(content: bytes) -> int:
    """Return a hash of 64 bits: crc32c and crc32 together, which take 0.3 ns per byte."""
    return int(google_crc32c.value(content)) << 32 | zlib.crc32(content)


def check_sample(job: Job, reference: Reference, time_limit_s: float) -> None:
    """Read and check one sample, and write nothing: it ends this process where its decoder crashes or hangs."""
    ((_, contents),) = read_samples(
        job.planned.source_uri,
        [reference],
        job.fields,
        by_content=job.planned.sharding.compare == "content",
    )
    with time_limit(time_limit_s), contextlib.suppress(UndecodableImage):
        accept(reference, contents, job.fields, job.checks)
