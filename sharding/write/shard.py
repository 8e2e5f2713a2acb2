"""Writing one shard: read its files, check that each decodes, frame them, publish the file; return a small record.

Everything about a shard happens in one call of `write_shard`, in one process. Called again with the same references, it
writes the same bytes, and publishing what is already there is success: a retried or duplicated call changes nothing.
Only whether a file ends its process, or takes too long, is no function of its bytes: such verdicts (pool.py) are
published before the shard, and every later attempt keeps to the first that was.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, MutableSequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import google_crc32c
import numpy as np

from contracts import storage
from records import tar, tfrecord
from records.decode import UndecodableImage
from records.index import NO_LABEL
from records.index_parts import ROW
from records.sample import ChecksumStream, Place, ShardWriter
from records.statistics import ChannelSums, Counter, is_summed
from sharding.job import Job, ShardRecord, scratch_file
from sharding.limits import encode_path, space_needed
from sharding.plan import make_key, make_place_hash
from sharding.sources import Reference
from sharding.write.reading import read_samples
from sharding.write.sample import Accepted, accept, make_sample
from sharding.write.stream import WriteBehind

WRITERS: dict[str, Callable[[ChecksumStream], ShardWriter]] = {
    "webdataset": tar.TarWriter,
    "tfrecord": tfrecord.TFRecordWriter,
}
SUFFIXES = {"webdataset": tar.SUFFIX, "tfrecord": tfrecord.SUFFIX}

Verdicts = Mapping[bytes, str]
_NO_VERDICTS: Verdicts = MappingProxyType({})


class OtherVerdicts(Exception):
    """Another attempt has published which files of the shard are rejected; the shard is to be written by that."""

    def __init__(self, verdicts: dict[bytes, str]) -> None:
        super().__init__(verdicts)
        self.verdicts = verdicts


class Looking:
    """Says in shared memory which file is being looked at, where it can be read when this process has died.

    Args:
        slot: Two numbers: 1 + the place of the file, 0 between two files; and when it began (time.monotonic_ns).
    """

    def __init__(self, slot: MutableSequence[int]) -> None:
        self._slot = slot

    def begin(self, number: int) -> None:
        """Say that a file is looked at from now on."""
        # The time first: whoever sees the number sees its time, or a later one.
        self._slot[1] = time.monotonic_ns()
        self._slot[0] = number + 1

    def end(self) -> None:
        """Say that nothing is looked at."""
        self._slot[0] = 0


class Task(NamedTuple):
    """What the process of a pool is asked to do (pool.py)."""

    references: list[tuple[Any, ...]]
    """Fields of each Reference: tuples travel in a third of the time."""
    split: int
    job: Job
    shard: int = -1
    """Its number; -1: only look at the one reference, and write nothing."""
    name_stem: str = ""
    verdicts: dict[bytes, str] = {}  # noqa: RUF012  # a NamedTuple's default, which nobody changes
    scratch: Path | None = None

    def do(self, look: Looking) -> ShardRecord | None:
        """Do it; return the record of a shard that was written, and raise what `write_shard` raises."""
        references = [Reference(*fields) for fields in self.references]
        if self.shard >= 0:
            return write_shard(
                self.name_stem, self.shard, self.split, references, self.job, self.verdicts, look, self.scratch
            )
        (reference,) = references
        ((_, contents),) = read_samples(self.job.source_uri, [reference], self.job.fields, threads=0)
        with_pixels = is_counted(make_key(reference.path), self.split, self.job)
        look.begin(0)
        try:
            accept(reference, contents, self.job.fields, self.job.checks, with_pixels=with_pixels)
        except UndecodableImage:
            pass  # the shard says so in its turn
        finally:
            look.end()
        return None


def write_shard(
    name_stem: str,
    shard: int,
    split: int,
    references: Iterable[Reference],
    job: Job,
    verdicts: Verdicts = _NO_VERDICTS,
    look: Looking | None = None,
    scratch: Path | None = None,
) -> ShardRecord:
    """Write and publish one shard below `job.output_uri`.

    Args:
        name_stem: Its file name without the suffix.
        shard: Its number in the plan.
        split: Place in contracts.config.SPLITS; only its training images are summed up.
        references: Its files, in any order.
        job: What all shards have in common.
        verdicts: Reason of each path that was rejected beforehand; it is not opened.
        look: Is told which file is looked at: its place in `order_references`.
        scratch: Path of the temporary file; None: a new one.

    Raises:
        DataError: A file may not be read.
        StorageError: No permission for a bucket, or no room on the disk.
        TryAgain: A file vanished or changed since it was listed, or reading it failed repeatedly.
        OtherVerdicts: Another attempt rejected other files than `verdicts`.
        AlreadyPublished: Other bytes have the name of the shard.
    """
    temporary = scratch or scratch_file(job.output_uri)
    rejected = list(verdicts.items())
    samples = _Samples(job)
    channel_sums = ChannelSums()
    looks = look if job.checks.verify != "none" else None
    try:
        with (
            space_needed(job.output_uri),
            temporary.open("wb", buffering=0) as file,
            contextlib.closing(
                read_samples(
                    job.source_uri,
                    order_references(references, job.seed, verdicts),
                    job.fields,
                    threads=job.read_threads,
                )
            ) as found,
        ):
            behind = WriteBehind(file)
            stream = ChecksumStream(behind)
            writer = WRITERS[job.shard_format](stream)
            for number, (reference, contents) in enumerate(found):
                # A hash of the path, whatever the seed: the place's own hash orders the shards.
                key = make_key(reference.path)
                with_pixels = is_counted(key, split, job)
                if looks:
                    looks.begin(number)
                try:
                    accepted = accept(reference, contents, job.fields, job.checks, with_pixels=with_pixels)
                except UndecodableImage as reason:
                    rejected.append((reference.path, str(reason)))
                    continue
                finally:
                    if looks:
                        looks.end()
                sample = make_sample(reference, key, accepted, job)
                samples.add(reference, accepted, key, writer.write(sample))
                image = accepted.image
                if with_pixels and image is not None and image.pixels is not None:
                    channel_sums += ChannelSums.of(image.pixels)
            writer.close()
            behind.close()
        _publish_verdicts(name_stem, job, verdicts)
        name = name_stem + SUFFIXES[job.shard_format]
        if samples.places:
            storage.publish_file(temporary, storage.join(job.output_uri, name))
    finally:
        temporary.unlink(missing_ok=True)
    rows, labels, sources, contents_seen = samples.columns()
    return ShardRecord(
        shard=shard,
        name=name,
        shard_bytes=stream.position,
        crc32c=stream.crc32c,
        rows=rows,
        labels=labels,
        sources=sources,
        contents=contents_seen,
        source_bytes=samples.source_bytes,
        # By path: which ones were known beforehand must not show.
        rejected=tuple(sorted(rejected)),
        channel_sums=channel_sums,
        tally=samples.counter.total(),
        label_counts=tuple(samples.label_counts),
    )


def order_references(references: Iterable[Reference], seed: int, verdicts: Verdicts = _NO_VERDICTS) -> list[Reference]:
    """Return the files of a shard that are opened, in the order of its samples."""
    wanted = (one for one in references if one.path not in verdicts)
    return [one for _, one in sorted((make_place_hash(seed, one.path), one) for one in wanted)]


def is_counted(key: bytes, split: int, job: Job) -> bool:
    """Whether the pixels of an image are summed up, by the key of its sample."""
    return split == 0 and job.checks.verify != "none" and is_summed(key, job.summed_share)


class _Samples:
    """What the record says about the samples of a shard, collected one by one."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.places: list[tuple[int, int, int, bytes]] = []
        self._labels: list[int] = []
        self._sources: list[bytes] = []
        self._contents: list[int] = []
        self.source_bytes = 0
        self.counter = Counter()
        self.label_counts = [0] * len(job.classes) if job.multi_label else []

    def add(self, reference: Reference, accepted: Accepted, key: bytes, place: Place) -> None:
        """Add a sample that was written."""
        self.places.append((*place, key))
        self._labels.append(reference.label if self._job.has_labels else NO_LABEL)
        self._sources.append(reference.identity(self._job.classes))
        self._contents.append(google_crc32c.value(accepted.content) << 32 | len(accepted.content))
        self.source_bytes += reference.source_bytes
        if (image := accepted.image) is not None:
            self.counter.add(
                image.source_format, image.source_mode, image.changes, image.width, image.height, image.remarks
            )
        if self._job.multi_label:
            for label in reference.labels:
                self.label_counts[label] += 1

    def columns(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Return rows, labels, sources and contents of the record."""
        return (
            np.array(self.places, ROW).tobytes(),
            np.array(self._labels, "<i4").tobytes(),
            b"".join(self._sources),
            np.array(self._contents, "<u8").tobytes(),
        )


def _publish_verdicts(name_stem: str, job: Job, verdicts: Verdicts) -> None:
    """Publish which files were rejected beforehand, also that none was; the first attempt's verdict is that of all."""
    if job.checks.verify == "none":
        return  # nothing is decoded, so nothing can be poisoned
    uri = storage.join(job.work_uri, job.key, f"verdict-{name_stem}")
    named = {encode_path(path): reason for path, reason in sorted(verdicts.items())}
    try:
        storage.publish(uri, json.dumps(named).encode())
    except storage.AlreadyPublished:
        found: dict[str, str] = json.loads(storage.read_bytes(uri))
        raise OtherVerdicts({unquote_to_bytes(path): reason for path, reason in found.items()}) from None
