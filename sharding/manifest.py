"""The end of the stage: from the records of all shards to index.bin and the manifest, or to a refusal.

The manifest is the commit. It is published last and create-only, and holds no time, host or path of the output, so that
it is the same wherever and however often it is made. A refusal says why there is no manifest: it carries the error from
wherever the graph runs to the command that started it.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, FileEntry, Rejected, ShardEntry, ShardManifest, SplitEntry
from contracts.config import SPLITS
from contracts.errors import DataError, ShardlineError, TryAgain, UserError
from records.index import INDEX_NAME, RECORD, Index, write_index
from sharding.limits import check_rejected, check_training_classes, encode_path
from sharding.shard import ChannelSums, Job, ShardRecord

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


def commit_shards(records: Iterable[ShardRecord], commit: Commit) -> None:
    """Publish the index and, as the last act, the manifest.

    Args:
        records: One for each planned shard, in any order.
        commit: The rest of the manifest.

    Raises:
        DataError: Too many files were rejected, or a class lost its last training image; nothing is published.
    """
    job = commit.job
    ordered = sorted(records, key=lambda record: record.shard)
    assert [record.shard for record in ordered] == list(range(job.plan.total_shards)), "a shard is missing or double"
    rejected = sorted(pair for record in ordered for pair in record.rejected)
    written = [record for record in ordered if record.rows]
    parts = [np.frombuffer(record.rows, RECORD).copy() for record in written]
    for place, part in enumerate(parts):
        # A planned shard may have lost all its images: places in the manifest are counted without it.
        part["shard"] = place
    index = np.concatenate(parts) if parts else np.empty(0, RECORD)

    shown = f"sharding.source {storage.display(job.source_uri)}"
    entries = [Rejected(path=encode_path(path), reason=reason) for path, reason in rejected]
    check_rejected(entries, len(index), commit.max_rejected_fraction, shown)
    splits = _describe_splits(written, parts, job)
    check_training_classes(job.classes, splits[SPLITS[0]].samples_by_class, shown)

    temporary = storage.local_path(job.output_uri) / f"{storage.TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    write_index(temporary, index)
    storage.publish_file(temporary, storage.join(job.output_uri, INDEX_NAME))
    mean, std = channel_statistics(sum((record.channel_sums for record in written), ChannelSums()))
    manifest = ShardManifest(
        fingerprint=commit.fingerprint,
        made_from=commit.made_from,
        format=job.shard_format,  # type: ignore[arg-type]  # validated by the model
        seed=job.plan.seed,
        classes=[encode_path(name) for name in job.classes],
        multi_label=job.multi_label,
        splits=splits,
        shards=_describe_shards(written, parts, job),
        index=FileEntry.of(job.output_uri, INDEX_NAME),
        rejected=entries,
        ignored=[encode_path(path) for path in commit.ignored],
        mean=mean,
        std=std,
    )
    storage.publish(storage.join(job.output_uri, MANIFEST_NAME), manifest.to_json())


def channel_statistics(total: ChannelSums) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of the channels, in [0, 1], from integer sums over uint8 pixels."""
    count = total.pixels
    mean = [value / (count * 255) for value in total.sums]
    # Exact up to the last division: count**2 * variance is an integer.
    scaled = [count * square - value * value for value, square in zip(total.sums, total.squares, strict=True)]
    std = [math.sqrt(value / (count * count)) / 255 for value in scaled]
    return mean, std


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


def _describe_splits(written: list[ShardRecord], parts: list[Index], job: Job) -> dict[str, SplitEntry]:
    splits = {}
    first = 0
    for split, name in enumerate(SPLITS):
        of_split = [place for place, record in enumerate(written) if job.plan.split_of(record.shard) == split]
        labels = np.concatenate([parts[place]["label"] for place in of_split] or [np.empty(0, np.int32)])
        if job.multi_label:
            counts = np.zeros(len(job.classes), np.int64)
            for place in of_split:
                counts += written[place].label_counts
        else:
            counts = np.bincount(labels, minlength=len(job.classes))
        splits[name] = SplitEntry(
            first=first,
            samples=len(labels),
            source_bytes=sum(written[place].source_bytes for place in of_split),
            samples_by_class=counts.tolist(),
        )
        first += len(labels)
    return splits


def _describe_shards(written: list[ShardRecord], parts: list[Index], job: Job) -> list[ShardEntry]:
    entries = []
    first = 0
    for record, part in zip(written, parts, strict=True):
        entries.append(
            ShardEntry(
                name=record.name,
                bytes=record.shard_bytes,
                crc32c=record.crc32c,
                split=SPLITS[job.plan.split_of(record.shard)],
                first=first,
                samples=len(part),
            )
        )
        first += len(part)
    return entries
