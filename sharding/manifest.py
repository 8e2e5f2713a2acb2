"""The end of the stage: from the records of all shards to index.bin and the manifest, or to a refusal.

The manifest is the commit. It is published last and create-only, and holds no time, host or path of the output, so that
it is the same wherever and however often it is made. A refusal says why there is no manifest: it carries the error from
wherever the graph runs to the command that started it.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict

from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    Duplicates,
    FileEntry,
    ImageStatistics,
    Prepared,
    Rejected,
    ShardEntry,
    ShardManifest,
    SplitEntry,
)
from contracts.config import SPLITS
from contracts.errors import DataError, ShardlineError, TryAgain, UserError
from records.convert import Changes, library_versions
from records.index import INDEX_NAME, RECORD, Index, open_index, write_index
from records.statistics import ChannelSums, Tally, channel_statistics
from sharding.attempt import is_current
from sharding.duplicates import check_duplicates, find_duplicates, leave_findings
from sharding.limits import check_rejected, check_training_classes, encode_name, encode_path
from sharding.shard import Job, ShardRecord, neighbour_name, scratch_file
from sharding.wids import publish_wids

REFUSAL_NAME = "refusal.json"


@dataclass(frozen=True)
class Commit:
    """What the manifest holds besides the shards, and the limit that they must keep."""

    job: Job
    fingerprint: str
    made_from: dict[str, str]
    max_rejected_fraction: float
    ignored: tuple[bytes, ...] = ()
    """Paths that are no images by their name."""
    duplicates: str = "warn"
    """As `sharding.duplicates`."""
    dropped: Duplicates | None = None
    """What the first pass found, in the second one, which left it out."""


def commit_shards(records: Iterable[ShardRecord], commit: Commit) -> None:
    """Publish the index and, as the last act, the manifest; or leave what a second pass is to drop.

    Args:
        records: One for each planned shard, in their order; read once.
        commit: The rest of the manifest.

    Raises:
        DataError: Too many files were rejected, a class lost its last training image, or there are copies and
            `sharding.duplicates` is fail; no manifest is published.
    """
    job = commit.job
    collected = _Collected(job)
    scratch = scratch_file(job.output_uri)
    try:
        num_samples = write_index(scratch, collected.add_all(records))
        shown = f"sharding.source {storage.display(job.source_uri)}"
        entries = [Rejected(path=encode_path(path), reason=reason) for path, reason in sorted(collected.rejected)]
        check_rejected(entries, num_samples, commit.max_rejected_fraction, shown)
        splits = collected.describe_splits()
        check_training_classes(job.classes, splits[SPLITS[0]].samples_by_class, shown)
        duplicates = commit.dropped
        shards = collected.shards
        looked = find_duplicates(job.output_uri, shards, open_index(scratch)) if duplicates is None else None
        if looked is not None:
            duplicates = looked.report
            if commit.duplicates == "drop":
                leave_findings(job.output_uri, looked)
                return
            if commit.duplicates == "fail":
                check_duplicates(duplicates, shown)
        storage.publish_file(scratch, storage.join(job.output_uri, INDEX_NAME))
    finally:
        scratch.unlink(missing_ok=True)
    sums = collected.channel_sums
    mean, std = channel_statistics(sums) if sums.pixels else (None, None)
    neighbours = collected.neighbours
    if job.shard_format == "webdataset":
        neighbours += publish_wids(job.output_uri, collected.shards)
    manifest = ShardManifest(
        fingerprint=commit.fingerprint,
        made_from=commit.made_from,
        format=job.shard_format,  # type: ignore[arg-type]  # validated by the model
        seed=job.plan.seed,
        classes=[encode_name(name) for name in job.classes],
        multi_label=job.multi_label,
        splits=splits,
        shards=collected.shards,
        index=FileEntry.of(job.output_uri, INDEX_NAME),
        rejected=entries,
        ignored=[encode_path(path) for path in commit.ignored],
        mean=mean,
        std=std,
        verify=job.checks.verify,  # type: ignore[arg-type]  # validated by the model
        images=_describe_images(collected.tally),
        prepared=_describe_changes(job.checks.changes, collected.tally) if job.checks.changes else None,
        duplicates=duplicates,
        neighbours=neighbours,
        code_version=importlib.metadata.version("shardline"),
    )
    # Looking for copies takes long: a successor may have cleared the folder meanwhile.
    if is_current(job):
        storage.publish(storage.join(job.output_uri, MANIFEST_NAME), manifest.to_json())


def refuse(output_uri: str, error: UserError | TryAgain) -> None:
    """Leave an error for the command that started the graph."""
    storage.replace(storage.join(output_uri, REFUSAL_NAME), _Refusal.of(error).model_dump_json().encode())


def find_refusal(output_uri: str) -> ShardlineError | None:
    """Return the error that a worker left, if one did."""
    uri = storage.join(output_uri, REFUSAL_NAME)
    return _Refusal.model_validate_json(storage.read_bytes(uri)).to_error() if storage.exists(uri) else None


class _Refusal(BaseModel):
    """An error that crosses from a worker to the command: one of ours, in the parts it is made of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    again: bool
    """Whether another attempt may succeed."""
    message: str
    allowed: str = ""
    todo: str = ""

    @classmethod
    def of(cls, error: UserError | TryAgain) -> _Refusal:
        if isinstance(error, UserError):
            return cls(again=False, message=error.given, allowed=error.allowed, todo=error.todo)
        return cls(again=True, message=str(error))

    def to_error(self) -> ShardlineError:
        return TryAgain(self.message) if self.again else DataError(self.message, allowed=self.allowed, todo=self.todo)


class _Collected:
    """What the records of all shards add up to, without holding the records."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._samples_by_class = np.zeros((len(SPLITS), len(job.classes)), np.int64)
        self._samples = [0] * len(SPLITS)
        self._source_bytes = [0] * len(SPLITS)
        self._num_samples = 0
        self.rejected: list[tuple[bytes, str]] = []
        self.shards: list[ShardEntry] = []
        self.neighbours: list[FileEntry] = []
        self.channel_sums = ChannelSums()
        self.tally = Tally()

    def add_all(self, records: Iterable[ShardRecord]) -> Iterator[Index]:
        """Take the records, in the order of their shards; yield the part of each in the index."""
        for expected, record in enumerate(records):
            assert record.shard == expected, "a shard is missing or double"
            self.rejected += record.rejected
            # A planned shard may have lost all its images: places in the manifest are counted without it.
            if record.rows:
                yield self._add(record)

    def _add(self, record: ShardRecord) -> Index:
        part = np.frombuffer(record.rows, RECORD).copy()
        part["shard"] = len(self.shards)
        split = self._job.plan.split_of(record.shard)
        self.shards.append(
            ShardEntry(
                name=record.name,
                bytes=record.shard_bytes,
                crc32c=record.crc32c,
                split=SPLITS[split],
                first=self._num_samples,
                samples=len(part),
            )
        )
        self._num_samples += len(part)
        if self._job.multi_label:
            self._samples_by_class[split] += record.label_counts
        else:
            self._samples_by_class[split] += np.bincount(part["label"], minlength=len(self._job.classes))
        self._samples[split] += len(part)
        self._source_bytes[split] += record.source_bytes
        self.neighbours.append(
            FileEntry(name=neighbour_name(record.name), bytes=record.neighbour_bytes, crc32c=record.neighbour_crc32c)
        )
        self.channel_sums += record.channel_sums
        self.tally += record.tally
        return part

    def describe_splits(self) -> dict[str, SplitEntry]:
        """Return the splits, each a contiguous range of the index."""
        splits = {}
        first = 0
        for split, name in enumerate(SPLITS):
            splits[name] = SplitEntry(
                first=first,
                samples=self._samples[split],
                source_bytes=self._source_bytes[split],
                samples_by_class=self._samples_by_class[split].tolist(),
            )
            first += self._samples[split]
        return splits


def _describe_images(tally: Tally) -> ImageStatistics:
    return ImageStatistics(
        formats=dict(tally.formats),
        modes=dict(tally.modes),
        width=list(tally.widths) if tally.widths else None,
        height=list(tally.heights) if tally.heights else None,
    )


def _describe_changes(changes: Changes, tally: Tally) -> Prepared:
    return Prepared(
        convert=[name for name in ("cmyk", "depth", "orientation") if getattr(changes, name)],
        resize=changes.shorter_side,
        jpeg_quality=changes.jpeg_quality,
        changed=dict(tally.changes),
        made_with=library_versions() if any(dict(tally.changes).values()) else {},
    )
