"""Writing one shard: read its files, check that each decodes, frame them, publish the file; return a small record.

Everything about a shard happens in one call of `write_shard`, on one worker. Called again with the same references, it
writes the same bytes, and publishing what is already there is success: a retried or duplicated call changes nothing.
"""

from __future__ import annotations

import dataclasses
import marshal
import os
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import google_crc32c
import numpy as np
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from contracts import storage
from contracts.errors import DataError, TryAgain
from records import tar, tfrecord
from records.decode import Decoded, Pixels, UndecodableImage, decode
from records.index import MAX_IMAGE_BYTES, NO_LABEL, RECORD
from records.sample import ChecksumStream, Sample, ShardWriter
from sharding.attempt import WORK_NAME
from sharding.limits import encode_path
from sharding.plan import Plan, make_key, make_place_hash
from sharding.sources import Reference, absolute_path

WRITERS: dict[str, Callable[[ChecksumStream], ShardWriter]] = {
    "webdataset": tar.TarWriter,
    "tfrecord": tfrecord.TFRecordWriter,
}
SUFFIXES = {"webdataset": tar.SUFFIX, "tfrecord": tfrecord.SUFFIX}

# A disk or a network mount may fail once; three times in two seconds is for the next attempt of the stage.
READ_ATTEMPTS = 3
# Pixels squared and summed at once: small enough for the cache.
_BLOCK_PIXELS = 1 << 15


@dataclass(frozen=True)
class Job:
    """What every worker needs to know, and all that decides the bytes of a shard besides its files."""

    source_uri: str
    output_uri: str
    classes: tuple[bytes, ...]
    shard_format: str
    plan: Plan
    attempt: str = ""
    """Id of the attempt that runs it (sharding/attempt.py); empty: nobody asks."""
    beats: bool = False
    """Whether workers show signs of life (sharding/heartbeat.py)."""
    multi_label: bool = False
    """Whether the labels of an image are a list."""

    @property
    def work_uri(self) -> str:
        """Folder of what this attempt alone uses."""
        return storage.join(self.output_uri, WORK_NAME, self.attempt or "one")


@dataclass(frozen=True)
class ChannelSums:
    """Integer sums over pixels: they do not depend on the order in which they are added."""

    pixels: int = 0
    sums: tuple[int, ...] = (0, 0, 0)
    squares: tuple[int, ...] = (0, 0, 0)

    def __add__(self, other: ChannelSums) -> ChannelSums:
        return ChannelSums(
            self.pixels + other.pixels,
            tuple(one + two for one, two in zip(self.sums, other.sums, strict=True)),
            tuple(one + two for one, two in zip(self.squares, other.squares, strict=True)),
        )

    @classmethod
    def of(cls, pixels: Pixels) -> ChannelSums:
        """Sum values and squares of an image [H, W, 3] uint8, exactly."""
        flat = pixels.reshape(-1, 3)
        sums = np.zeros(3, np.int64)
        squares = np.zeros(3, np.int64)
        for start in range(0, len(flat), _BLOCK_PIXELS):
            # float64 holds these integers exactly (255**2 * 2**15 < 2**53) and is the fastest way to square bytes.
            block = flat[start : start + _BLOCK_PIXELS].T.astype(np.float64, order="C")
            sums += block.sum(axis=1).astype(np.int64)
            squares += np.einsum("ij,ij->i", block, block).astype(np.int64)
        return cls(len(flat), tuple(sums.tolist()), tuple(squares.tolist()))


@dataclass(frozen=True)
class ShardRecord:
    """What is known about one planned shard after it was written."""

    shard: int
    """Number in the plan."""
    name: str
    """File name; no such file is there when every image was rejected."""
    shard_bytes: int
    """Size of the file."""
    crc32c: str
    rows: bytes
    """Its part of the index (records of records.index.RECORD, `shard` being the number in the plan)."""
    source_bytes: int
    rejected: tuple[tuple[bytes, str], ...]
    """Path and reason of each file that was left out."""
    channel_sums: ChannelSums
    """Over the pixels of all its images; only of the training split."""
    label_counts: tuple[int, ...] = ()
    """Number of its images of each class; only where an image may have several (the index holds one label)."""

    @property
    def num_samples(self) -> int:
        """Number of its samples."""
        return len(self.rows) // RECORD.itemsize


def write_shard(shard: int, references: Iterable[Reference], job: Job) -> ShardRecord:
    """Write and publish one shard below `job.output_uri`.

    Args:
        shard: Its number in the plan.
        references: Its files, in any order.
        job: What all shards have in common.

    Raises:
        DataError: A file may not be read.
        TryAgain: A file vanished or changed since it was listed, or reading it failed repeatedly.
    """
    name = job.plan.name_of(shard) + SUFFIXES[job.shard_format]
    folder = storage.local_path(job.output_uri)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{storage.TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    is_training = job.plan.split_of(shard) == 0
    rows = []
    rejected = []
    source_bytes = 0
    channel_sums = ChannelSums()
    label_counts = [0] * len(job.classes) if job.multi_label else []
    try:
        with temporary.open("wb") as file:
            stream = ChecksumStream(file)
            writer = WRITERS[job.shard_format](stream)
            for reference in sorted(references, key=lambda one: make_place_hash(job.plan.seed, one.path)):
                content = read_file(job.source_uri, reference)
                try:
                    image = _check(content)
                except UndecodableImage as reason:
                    rejected.append((reference.path, str(reason)))
                    continue
                sample = _make_sample(reference, content, image, job)
                at = writer.write(sample)
                crc = google_crc32c.value(content)
                rows.append(
                    (shard, NO_LABEL if job.multi_label else reference.label, at.offset, at.size, crc, sample.key)
                )
                source_bytes += at.size
                for one in reference.labels if job.multi_label else ():
                    label_counts[one] += 1
                if is_training:
                    channel_sums += ChannelSums.of(image.pixels)
            writer.close()
            file.flush()
            os.fsync(file.fileno())
        if rows:
            storage.publish_file(temporary, storage.join(job.output_uri, name))
    finally:
        temporary.unlink(missing_ok=True)
    return ShardRecord(
        shard=shard,
        name=name,
        shard_bytes=stream.position,
        crc32c=stream.crc32c,
        rows=np.array(rows, RECORD).tobytes(),
        source_bytes=source_bytes,
        rejected=tuple(rejected),
        channel_sums=channel_sums,
        label_counts=tuple(label_counts),
    )


def save_record(record: ShardRecord, job: Job) -> None:
    """Leave a record for the commit; the same record a second time is success."""
    fields = dataclasses.asdict(record)
    storage.publish(_record_uri(record.shard, job), marshal.dumps(fields))


def load_record(shard: int, job: Job) -> ShardRecord:
    """Return the record of a shard that was written."""
    fields = marshal.loads(storage.read_bytes(_record_uri(shard, job)))
    return ShardRecord(**{**fields, "channel_sums": ChannelSums(**fields["channel_sums"])})


def _record_uri(shard: int, job: Job) -> str:
    return storage.join(job.work_uri, f"record-{shard:05d}")


def read_file(source_uri: str, reference: Reference) -> bytes:
    """Return the content of a listed file, which must be what the listing saw.

    Raises:
        DataError: It may not be read.
        TryAgain: It vanished, changed, or cannot be read for another reason.
    """
    shown = f"{encode_path(reference.path)} in {storage.display(source_uri)}"
    retrying = Retrying(
        stop=stop_after_attempt(READ_ATTEMPTS), wait=wait_exponential(0.1), retry=retry_if_exception_type(OSError)
    )
    try:
        return retrying(_read_once, source_uri, reference, shown)
    except RetryError as error:
        raise TryAgain(f"{shown} cannot be read: {error.last_attempt.exception()}; the next attempt may") from None


def _read_once(source_uri: str, reference: Reference, shown: str) -> bytes:
    try:
        with open(absolute_path(source_uri, reference.path), "rb") as stream:
            content = stream.read()
            status = os.fstat(stream.fileno())
    except (FileNotFoundError, NotADirectoryError):
        raise TryAgain(f"{shown} vanished while the stage ran; run it again to list the source anew") from None
    except PermissionError:
        raise DataError(
            f"{shown} cannot be read: permission denied",
            allowed="files that this user may read",
            todo="correct its permissions, or run as another user",
        ) from None
    if (len(content), status.st_size, status.st_mtime_ns) != (reference.size, reference.size, reference.generation):
        raise TryAgain(f"{shown} changed while the stage ran; run it again when nothing writes to the source")
    return content


def _check(content: bytes) -> Decoded:
    if len(content) > MAX_IMAGE_BYTES:
        raise UndecodableImage(f"{len(content)} bytes are more than the limit of {MAX_IMAGE_BYTES}")
    return decode(content)


def _make_sample(reference: Reference, content: bytes, image: Decoded, job: Job) -> Sample:
    height, width, _ = image.pixels.shape
    return Sample(
        key=make_key(reference.path),
        content=content,
        image_format=image.image_format,
        label=reference.label,
        class_name=encode_path(job.classes[reference.label]),
        path=encode_path(reference.path),
        width=width,
        height=height,
        mode=image.mode,
        labels=reference.labels if job.multi_label else None,
        class_names=tuple(encode_path(job.classes[label]) for label in reference.labels) if job.multi_label else (),
    )
