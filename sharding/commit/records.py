"""The records of written shards, combined by groups into parts of the index and summaries for the manifest.

Records and summaries lie in the work folder. Both are Python's marshal format, version 2: equal values are equal bytes,
which create-only writing asks for (later versions mark objects that are referred to elsewhere). Launcher and workers
run the same Python, as Beam demands anyway.
"""

from __future__ import annotations

import dataclasses
import marshal
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from contracts import storage
from records.index_parts import ROW, checksum_rows, write_part
from records.statistics import ChannelSums, Tally
from sharding.job import Job, OpenJob, ShardRecord, scratch_file

_MARSHAL_VERSION = 2
# Files that the manifest names; beyond them it has a count.
MAX_REJECTED = 10_000
# Records that are read at a time: of a shard of 1,340 samples one is about 80 KB.
_READ_RECORDS = 64
# Samples whose contents are compared in one place.
BUCKET_SAMPLES = 1 << 20

CONTENT = np.dtype(
    [("content", "<u8"), ("offset", "<u8"), ("size", "<u4"), ("shard", "<u4"), ("label", "<i4"), ("key", "V16")]
)


class ShardSummary(NamedTuple):
    """What the manifest says about one shard."""

    name: str
    bytes: int
    crc32c: str
    samples: int
    rows_crc32c: str


@dataclasses.dataclass(frozen=True)
class Summary:
    """What the records of a group of shards add up to."""

    split: int
    shards: tuple[ShardSummary, ...]
    """Those that have a sample."""
    part: tuple[str, int, str] | None
    """Name, bytes and crc32c of the part of the index; None where no shard has a sample."""
    samples_by_class: tuple[int, ...]
    source_bytes: int
    num_files: int
    """Files that the group was to hold: its samples, and what was rejected or left out."""
    rejected: tuple[tuple[bytes, str], ...]
    """Path and reason, in the order of the paths, of the first that were left out."""
    num_rejected: int
    channel_sums: ChannelSums
    tally: Tally


def has_record(shard: int, opened: OpenJob) -> bool:
    """Whether a shard is written: its record is the last thing that is published."""
    return storage.exists(_record_uri(opened.job, shard))


def save_record(record: ShardRecord, opened: OpenJob) -> None:
    """Publish a record; the same record a second time is success."""
    content = marshal.dumps(dataclasses.asdict(record), _MARSHAL_VERSION)
    storage.publish(_record_uri(opened.job, record.shard), content)


def drop_record(shard: int, opened: OpenJob) -> None:
    """Delete the record of a shard whose file is gone: it is written again."""
    storage.delete(_record_uri(opened.job, shard))


def load_records(shards: Sequence[int], opened: OpenJob) -> Iterator[ShardRecord]:
    """Yield the records of shards that were written, in the order given.

    Raises:
        FileNotFoundError: One has none.
    """
    for start in range(0, len(shards), _READ_RECORDS):
        wanted = [storage.Wanted(_record_uri(opened.job, shard)) for shard in shards[start : start + _READ_RECORDS]]
        for content in storage.read_many(wanted):
            if isinstance(content, FileNotFoundError):
                raise content
            fields = marshal.loads(content)
            fields["channel_sums"] = ChannelSums(**fields["channel_sums"])
            fields["tally"] = Tally(**fields["tally"])
            yield ShardRecord(**fields)


def count_records(job: Job) -> int:
    """Return the number of shards that are written."""
    names = storage.list_names(storage.join(job.work_uri, job.key))
    return sum(name.startswith("record-") for name in names)


def has_summary(group: int, opened: OpenJob) -> bool:
    """Whether the records of a group are combined."""
    return storage.exists(_summary_uri(opened.job, group))


def save_summary(group: int, summary: Summary, opened: OpenJob) -> None:
    """Publish a summary; the same one a second time is success."""
    fields = {**dataclasses.asdict(summary), "shards": [tuple(one) for one in summary.shards]}
    storage.publish(_summary_uri(opened.job, group), marshal.dumps(fields, _MARSHAL_VERSION))


def load_summaries(opened: OpenJob) -> Iterator[Summary]:
    """Yield the summaries of all groups, in their order.

    Raises:
        FileNotFoundError: A group has none.
    """
    numbers = range(len(opened.groups))
    for start in range(0, len(numbers), _READ_RECORDS):
        wanted = [storage.Wanted(_summary_uri(opened.job, group)) for group in numbers[start : start + _READ_RECORDS]]
        for content in storage.read_many(wanted):
            if isinstance(content, FileNotFoundError):
                raise content
            fields = marshal.loads(content)
            fields["shards"] = tuple(ShardSummary(*one) for one in fields["shards"])
            fields["channel_sums"] = ChannelSums(**fields["channel_sums"])
            fields["tally"] = Tally(**fields["tally"])
            yield Summary(**fields)


def drop_summary(group: int, opened: OpenJob) -> None:
    """Delete the summary of a group."""
    storage.delete(_summary_uri(opened.job, group))


def merge_group(group: int, opened: OpenJob) -> None:
    """Write the part of the index, then the summary of a group of shards that are all written."""
    if has_summary(group, opened):
        return
    job = opened.job
    parts, labels, sources = [], [], []
    shards = []
    samples_by_class = np.zeros(len(job.classes), np.int64)
    source_bytes = num_rejected = num_files = 0
    rejected: list[tuple[bytes, str]] = []
    channel_sums, tally = ChannelSums(), Tally()
    for record in load_records(opened.groups[group], opened):
        rejected += record.rejected
        num_rejected += len(record.rejected)
        num_files += record.num_samples + len(record.rejected)
        if not record.num_samples:
            # A planned shard may have lost all its images: there is no such file.
            continue
        rows = np.frombuffer(record.rows, ROW)
        columns = {"label": np.frombuffer(record.labels, "<i4"), "source": np.frombuffer(record.sources, "<u8")}
        rows_crc32c = checksum_rows(rows, columns)
        shards.append(ShardSummary(record.name, record.shard_bytes, record.crc32c, len(rows), rows_crc32c))
        parts.append(rows)
        labels.append(columns["label"])
        sources.append(columns["source"])
        if job.multi_label:
            samples_by_class += np.array(record.label_counts, np.int64)
        elif job.has_labels:
            samples_by_class += np.bincount(columns["label"], minlength=len(job.classes))
        source_bytes += record.source_bytes
        channel_sums += record.channel_sums
        tally += record.tally
    part = None
    if parts:
        name = f"index-{job.key}-{group:05d}.bin"
        scratch = scratch_file(job.output_uri)
        try:
            write_part(
                scratch, np.concatenate(parts), {"label": np.concatenate(labels), "source": np.concatenate(sources)}
            )
            num_bytes, crc32c = scratch.stat().st_size, storage.crc32c_of(storage.normalise(scratch))
            storage.publish_file(scratch, storage.join(job.output_uri, name))
        finally:
            scratch.unlink(missing_ok=True)
        part = (name, num_bytes, crc32c)
    summary = Summary(
        opened.plan.split_of(opened.groups[group][0]),
        tuple(shards),
        part,
        tuple(samples_by_class.tolist()),
        source_bytes,
        num_files,
        tuple(sorted(rejected)[:MAX_REJECTED]),
        num_rejected,
        channel_sums,
        tally,
    )
    save_summary(group, summary, opened)


def read_contents(group: int, opened: OpenJob) -> Iterator[tuple[int, bytes]]:
    """Yield (bucket, packed contents) of a group of shards: equal images come into one bucket."""
    buckets = -(-opened.planned.num_files // BUCKET_SAMPLES)
    for record in load_records(opened.groups[group], opened):
        rows = np.frombuffer(record.rows, ROW)
        found = np.empty(len(rows), CONTENT)
        for name in ("offset", "size", "key"):
            found[name] = rows[name]
        found["content"] = np.frombuffer(record.contents, "<u8")
        found["label"] = np.frombuffer(record.labels, "<i4")
        found["shard"] = record.shard
        # The upper half is the crc32c.
        homes = (found["content"] >> np.uint64(32)) % np.uint64(buckets)
        for bucket in np.unique(homes).tolist():
            yield bucket, found[homes == bucket].tobytes()


def _record_uri(job: Job, shard: int) -> str:
    return storage.join(job.work_uri, job.key, f"record-{shard:06d}")


def _summary_uri(job: Job, group: int) -> str:
    return storage.join(job.work_uri, job.key, f"summary-{group:05d}")
