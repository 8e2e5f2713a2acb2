"""Writing one shard: read its files, check that each decodes, frame them, publish the file; return a small record.

Everything about a shard happens in one call of `write_shard`, on one worker. Called again with the same references, it
writes the same bytes, and publishing what is already there is success: a retried or duplicated call changes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import marshal
import os
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c
import numpy as np
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from contracts import storage
from contracts.errors import DataError, TryAgain
from records import tar, tfrecord
from records.decode import Pixels, UndecodableImage, decode, image_format
from records.index import MAX_IMAGE_BYTES, RECORD
from records.sample import ChecksumStream, Sample, ShardWriter
from sharding.attempt import WORK_NAME
from sharding.limits import encode_path, space_needed
from sharding.plan import Plan, make_key, make_place_hash
from sharding.sources import Reference, absolute_path
from sharding.stream import WriteBehind, read_ahead

WRITERS: dict[str, Callable[[ChecksumStream], ShardWriter]] = {
    "webdataset": tar.TarWriter,
    "tfrecord": tfrecord.TFRecordWriter,
}
SUFFIXES = {"webdataset": tar.SUFFIX, "tfrecord": tfrecord.SUFFIX}

# A disk or a network mount may fail once; three times in two seconds is for the next attempt of the stage.
READ_ATTEMPTS = 3
# Values of a row of pixels, and rows, that are squared and summed at once: a multiple of 3, and few enough to be exact.
_ROW_VALUES = 3 * 256
_BLOCK_ROWS = 256


@dataclass(frozen=True)
class Job:
    """What every worker needs to know, and all that decides the bytes of a shard besides its files."""

    source_uri: str
    output_uri: str
    classes: tuple[bytes, ...]
    shard_format: str
    plan: Plan
    verify: str = "decode"
    """As `sharding.verify`."""
    read_threads: int = 0
    """Files that are read at a time; 0: each when it is needed."""
    attempt: str = ""
    """Id of the attempt that runs it (sharding/attempt.py); empty: nobody asks."""
    beats: bool = False
    """Whether workers show signs of life (sharding/heartbeat.py)."""

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
        flat = pixels.reshape(-1)
        sums = np.zeros(_ROW_VALUES, np.int64)
        squares = np.zeros(_ROW_VALUES, np.int64)
        for start in range(0, len(flat), _BLOCK_ROWS * _ROW_VALUES):
            block = flat[start : start + _BLOCK_ROWS * _ROW_VALUES]
            if rest := len(block) % _ROW_VALUES:
                block = np.concatenate([block, np.zeros(_ROW_VALUES - rest, np.uint8)])
            # float32 holds these integers exactly (255**2 * 256 < 2**24) and is the fastest way to square bytes.
            values = block.reshape(-1, _ROW_VALUES).astype(np.float32)
            sums += values.sum(axis=0).astype(np.int64)
            squares += np.einsum("ij,ij->j", values, values).astype(np.int64)
        return cls(
            len(flat) // 3,
            tuple(sums.reshape(-1, 3).sum(axis=0).tolist()),
            tuple(squares.reshape(-1, 3).sum(axis=0).tolist()),
        )


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
    """Over the pixels of its sampled images (Plan.is_sampled); only of the training split."""

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
    hashed = sorted((make_place_hash(job.plan.seed, one.path), one) for one in references)
    sampled = {one.path for place_hash, one in hashed if is_training and job.plan.is_sampled(place_hash)}
    ordered = [one for _, one in hashed]
    try:
        with (
            space_needed(job.output_uri),
            temporary.open("wb") as file,
            contextlib.closing(
                read_ahead(ordered, functools.partial(read_file, job.source_uri), threads=job.read_threads)
            ) as contents,
        ):
            behind = WriteBehind(file)
            stream = ChecksumStream(behind)
            writer = WRITERS[job.shard_format](stream)
            for reference, content in contents:
                try:
                    image = _check(content, job.verify)
                except UndecodableImage as reason:
                    rejected.append((reference.path, str(reason)))
                    continue
                sample = _make_sample(reference, content, image, job)
                at = writer.write(sample)
                crc = google_crc32c.value(content)
                rows.append((shard, reference.label, at.offset, at.size, crc, sample.key))
                source_bytes += at.size
                if image.pixels is not None and reference.path in sampled:
                    channel_sums += ChannelSums.of(image.pixels)
            writer.close()
            behind.close()
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


def _read_once(source_uri: str, reference: Reference) -> bytes:
    try:
        with open(absolute_path(source_uri, reference.path), "rb", 0) as stream:
            status = os.fstat(stream.fileno())
            content = stream.readall()
    except (FileNotFoundError, NotADirectoryError):
        raise TryAgain(
            f"{_show(source_uri, reference)} vanished while the stage ran; run it again to list the source anew"
        ) from None
    except PermissionError:
        raise DataError(
            f"{_show(source_uri, reference)} cannot be read: permission denied",
            allowed="files that this user may read",
            todo="correct its permissions, or run as another user",
        ) from None
    if (len(content), status.st_size, status.st_mtime_ns) != (reference.size, reference.size, reference.generation):
        raise TryAgain(
            f"{_show(source_uri, reference)} changed while the stage ran; "
            "run it again when nothing writes to the source"
        )
    return content


def _show(source_uri: str, reference: Reference) -> str:
    return f"{encode_path(reference.path)} in {storage.display(source_uri)}"


class _Checked(NamedTuple):
    """What is known about an image after its check; how much depends on `sharding.verify`."""

    image_format: str
    width: int = 0
    height: int = 0
    mode: str = ""
    pixels: Pixels | None = None


def _check(content: bytes, verify: str) -> _Checked:
    if len(content) > MAX_IMAGE_BYTES:
        raise UndecodableImage(f"{len(content)} bytes are more than the limit of {MAX_IMAGE_BYTES}")
    if verify == "decode":
        pixels, found, mode = decode(content)
        return _Checked(found, pixels.shape[1], pixels.shape[0], mode, pixels)
    found_format = image_format(content)
    if found_format is None:
        raise UndecodableImage("not an image of a known format" if content else "the file is empty")
    return _Checked(found_format)


def _make_sample(reference: Reference, content: bytes, image: _Checked, job: Job) -> Sample:
    return Sample(
        key=make_key(reference.path),
        content=content,
        image_format=image.image_format,
        label=reference.label,
        class_name=encode_path(job.classes[reference.label]),
        path=encode_path(reference.path),
        width=image.width,
        height=image.height,
        mode=image.mode,
    )
