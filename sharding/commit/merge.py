"""Combining the records of a group of shards: a part of the index, and a summary for the manifest."""

from __future__ import annotations

import numpy as np

from contracts import storage
from records.index_parts import ROW, checksum_rows, write_part
from records.statistics import ChannelSums, Tally
from sharding.commit.records import ShardSummary, Summary, has_summary, load_records, save_summary
from sharding.job import OpenJob, scratch_file

# Files that the manifest names; beyond them it has a count.
MAX_REJECTED = 10_000


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
        num_files += record.num_samples + len(record.rejected) + record.left_out
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
        else:
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
