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
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import google_crc32c
import numpy as np
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from contracts import storage
from contracts.errors import DataError, TryAgain
from records import tar, tfrecord
from records.decode import UndecodableImage, image_format
from records.index import NO_LABEL, RECORD
from records.sample import ChecksumStream, Sample, ShardWriter
from records.statistics import ChannelSums, Counter, Tally, is_summed
from sharding.attempt import WORK_NAME
from sharding.limits import encode_name, encode_path, space_needed
from sharding.plan import Plan, make_key, make_place_hash
from sharding.sources import Reference, absolute_path, remote_uri
from sharding.write.check import Checked, Checks, check
from sharding.write.objects import SNIFFED_BYTES, read_objects
from sharding.write.stream import WriteBehind, announce_file, read_ahead

WRITERS: dict[str, Callable[[ChecksumStream], ShardWriter]] = {
    "webdataset": tar.TarWriter,
    "tfrecord": tfrecord.TFRecordWriter,
}
# As DALI's own tools name their indices: that of the shard, with another extension.
NEIGHBOUR_SUFFIX = ".idx"
SUFFIXES = {"webdataset": tar.SUFFIX, "tfrecord": tfrecord.SUFFIX}

# A disk or a network mount may fail once; three times in two seconds is for the next attempt of the stage.
READ_ATTEMPTS = 3
SNIFF_BYTES = 64


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
    """Whether workers show signs of life (sharding/runners/heartbeat.py)."""
    multi_label: bool = False
    """Whether the labels of an image are a list."""
    checks: Checks = field(default_factory=Checks)
    """What is looked at in every image, and what is done to it."""
    summed_share: float = 1.0
    """Share of the training images whose pixels are summed up (records/statistics.py)."""
    read_threads: int = 0
    """Files, or requests to a bucket, that are under way at a time; 0: each when it is needed."""

    @property
    def work_uri(self) -> str:
        """Folder of what this attempt alone uses."""
        return storage.join(self.output_uri, WORK_NAME, self.attempt or "one")


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
    """Over the pixels of its images, or of some of them; only of the training split."""
    tally: Tally = field(default_factory=Tally)
    """Its images, counted."""
    neighbour_bytes: int = 0
    """Size of the index that other libraries read."""
    neighbour_crc32c: str = ""
    label_counts: tuple[int, ...] = ()
    """Number of its images of each class; only where an image may have several (the index holds one label)."""
    sources: bytes = b""
    """What each of its samples was made of (Reference.identity), in the order of its rows."""

    @property
    def num_samples(self) -> int:
        """Number of its samples."""
        return len(self.rows) // RECORD.itemsize


def neighbour_name(shard_name: str) -> str:
    """Return the name of a shard's index that other libraries read."""
    return shard_name.rpartition(".")[0] + NEIGHBOUR_SUFFIX


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
    temporary = scratch_file(job.output_uri)
    is_training = job.plan.split_of(shard) == 0
    rows = []
    rejected = []
    sources = []
    source_bytes = 0
    channel_sums = ChannelSums()
    ordered = [one for _, one in sorted((make_place_hash(job.plan.seed, one.path), one) for one in references)]
    counter = Counter()
    label_counts = [0] * len(job.classes) if job.multi_label else []
    try:
        with (
            space_needed(job.output_uri),
            temporary.open("wb", buffering=0) as file,
            contextlib.closing(_read(ordered, job)) as contents,
        ):
            behind = WriteBehind(file)
            stream = ChecksumStream(behind)
            writer = WRITERS[job.shard_format](stream)
            for reference, content in contents:
                # A hash of the path, whatever the seed: the place's own hash orders the shards.
                key = make_key(reference.path)
                is_counted = is_training and job.checks.verify != "none" and is_summed(key, job.summed_share)
                try:
                    image = check(content, job.checks, with_pixels=is_counted)
                except UndecodableImage as reason:
                    rejected.append((reference.path, str(reason)))
                    continue
                sample = _make_sample(reference, key, image, job)
                at = writer.write(sample)
                crc = google_crc32c.value(image.content)
                rows.append(
                    (shard, NO_LABEL if job.multi_label else reference.label, at.offset, at.size, crc, sample.key)
                )
                sources.append(reference.identity(job.classes))
                source_bytes += reference.size
                counter.add(image.source_format, image.source_mode, image.changes, image.width, image.height)
                for one in reference.labels if job.multi_label else ():
                    label_counts[one] += 1
                if is_counted and image.pixels is not None:
                    channel_sums += ChannelSums.of(image.pixels)
            writer.close()
            behind.close()
        neighbour = writer.neighbour_index()
        if rows:
            storage.publish_file(temporary, storage.join(job.output_uri, name))
            storage.publish(storage.join(job.output_uri, neighbour_name(name)), neighbour)
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
        tally=counter.total(),
        neighbour_bytes=len(neighbour),
        neighbour_crc32c=storage.crc32c(neighbour),
        label_counts=tuple(label_counts),
        sources=b"".join(sources),
    )


def save_record(record: ShardRecord, job: Job) -> None:
    """Leave a record for the commit; the same record a second time is success."""
    fields = dataclasses.asdict(record)
    storage.publish(_record_uri(record.shard, job), marshal.dumps(fields))


def load_record(shard: int, job: Job) -> ShardRecord:
    """Return the record of a shard that was written."""
    fields = marshal.loads(storage.read_bytes(_record_uri(shard, job)))
    fields["channel_sums"] = ChannelSums(**fields["channel_sums"])
    fields["tally"] = Tally(**fields["tally"])
    return ShardRecord(**fields)


def _record_uri(shard: int, job: Job) -> str:
    return storage.join(job.work_uri, f"record-{shard:05d}")


def scratch_file(output_uri: str) -> Path:
    """Return the path of a new temporary file: beside the output, where publishing is a link; for a bucket, here."""
    if storage.is_local(output_uri):
        folder = storage.local_path(output_uri)
        folder.mkdir(parents=True, exist_ok=True)
    else:
        folder = Path(tempfile.gettempdir())
    return folder / f"{storage.TEMPORARY_PREFIX}{uuid.uuid4().hex}"


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


def _read(references: Sequence[Reference], job: Job) -> Generator[tuple[Reference, bytes]]:
    read = functools.partial(read_file, job.source_uri)
    if job.read_threads and any(remote_uri(job.source_uri, one.path) for one in references):
        return read_objects(job.source_uri, references, read, requests=job.read_threads)
    announce = functools.partial(_announce, job.source_uri)
    return read_ahead(references, read, threads=job.read_threads, announce=announce)


def _announce(source_uri: str, reference: Reference) -> None:
    if remote_uri(source_uri, reference.path) is None:
        announce_file(absolute_path(source_uri, reference.path))


def _read_once(source_uri: str, reference: Reference) -> bytes:
    uri = remote_uri(source_uri, reference.path)
    return _read_file(source_uri, reference) if uri is None else _read_object(uri, reference)


def _read_object(uri: str, reference: Reference) -> bytes:
    """Read the version of an object that the listing saw; storage itself retries and compares checksums."""
    generation = reference.generation or None
    try:
        if reference.size > SNIFFED_BYTES:
            head = storage.read_range(uri, 0, SNIFF_BYTES, generation)
            if image_format(head) is None:
                return head
        return storage.read_bytes(uri, generation)
    except FileNotFoundError:
        raise TryAgain(
            f"{uri} vanished or was replaced while the stage ran; run it again to list the source anew"
        ) from None


def _read_file(source_uri: str, reference: Reference) -> bytes:
    try:
        with open(absolute_path(source_uri, reference.path), "rb", 0) as stream:
            status = os.fstat(stream.fileno())
            if status.st_size > SNIFFED_BYTES:
                # A film among the images is known by its first bytes; reading it whole would fill the memory.
                head = stream.read(SNIFF_BYTES)
                if image_format(head) is None:
                    return head
                stream.seek(0)
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
            f"{_show(source_uri, reference)} changed while the stage ran; run it again when nothing writes there"
        )
    return content


def _show(source_uri: str, reference: Reference) -> str:
    return f"{encode_path(reference.path)} in {storage.display(source_uri)}"


def _make_sample(reference: Reference, key: bytes, image: Checked, job: Job) -> Sample:
    return Sample(
        key=key,
        content=image.content,
        image_format=image.image_format,
        label=reference.label,
        class_name=encode_name(job.classes[reference.label]),
        path=encode_path(reference.path),
        width=image.width,
        height=image.height,
        mode=image.mode,
        labels=reference.labels if job.multi_label else None,
        class_names=tuple(encode_name(job.classes[label]) for label in reference.labels) if job.multi_label else (),
    )
