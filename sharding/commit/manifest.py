"""The end of the stage: from the records of all shards to index.bin and the manifest, or to a refusal.

The manifest is the commit. It is published last and create-only, and holds no time, host or path of the output, so that
it is the same wherever and however often it is made. A refusal says why there is no manifest: it carries the error from
wherever the graph runs to the command that started it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    Duplicates,
    FileEntry,
    Prepared,
    Rejected,
    ShardManifest,
)
from contracts.config import SPLITS
from records.convert import Changes, library_versions
from records.index import INDEX_NAME, open_index, write_index
from records.statistics import ChannelSums, Tally, channel_statistics
from sharding.attempt import is_current
from sharding.commit.collected import Collected, describe_images
from sharding.commit.duplicates import check_duplicates, find_duplicates, leave_findings
from sharding.commit.wids import publish_wids
from sharding.increment.reuse import SOURCES_NAME, TOMBSTONES_NAME, Increment, ReusedShards, open_index_at
from sharding.limits import check_rejected, check_training_classes, encode_name, encode_path
from sharding.write.shard import Job, ShardRecord, scratch_file


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
    increment: Increment | None = None
    """What is taken over from a parent; None where all shards are written."""


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
    with contextlib.ExitStack() as stack:
        reused = stack.enter_context(_open_parent(commit.increment, job)) if commit.increment else None
        _commit(records, commit, reused)


@contextlib.contextmanager
def _open_parent(increment: Increment, job: Job) -> Iterator[ReusedShards]:
    manifest = ShardManifest.load(increment.parent_uri)
    with open_index_at(manifest.index.uri(increment.parent_uri)) as index:
        yield ReusedShards(increment, job.work_uri, index)


def _commit(records: Iterable[ShardRecord], commit: Commit, reused: ReusedShards | None) -> None:
    job = commit.job
    scratch, sources, tombstones = (scratch_file(job.output_uri) for _ in range(3))
    try:
        with sources.open("wb") as stream:
            collected = Collected(job, commit.increment, reused, stream)
            num_samples = write_index(scratch, collected.add_all(records))
            stream.flush()
            os.fsync(stream.fileno())
        shown = f"sharding.source {storage.display(job.source_uri)}"
        entries = [Rejected(path=encode_path(path), reason=reason) for path, reason in sorted(collected.rejected)]
        check_rejected(entries, num_samples, commit.max_rejected_fraction, shown)
        splits = collected.describe_splits()
        check_training_classes(*_required(commit, splits[SPLITS[0]].samples_by_class), shown)
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
        storage.publish_file(sources, storage.join(job.output_uri, SOURCES_NAME))
        if collected.buried:
            write_index(tombstones, collected.buried)
            storage.publish_file(tombstones, storage.join(job.output_uri, TOMBSTONES_NAME))
    finally:
        for path in (scratch, sources, tombstones):
            path.unlink(missing_ok=True)
    mean, std = _measure(collected.channel_sums, reused)
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
        images=describe_images(collected.tally),
        prepared=_describe_changes(job.checks.changes, collected.tally) if job.checks.changes else None,
        duplicates=duplicates,
        neighbours=neighbours,
        parent=reused.manifest.fingerprint if reused else None,
        generation=job.plan.generation,
        sources=FileEntry.of(job.output_uri, SOURCES_NAME),
        tombstones=FileEntry.of(job.output_uri, TOMBSTONES_NAME) if collected.buried else None,
        code_version=importlib.metadata.version("shardline"),
    )
    # Looking for copies takes long: a successor may have cleared the folder meanwhile.
    if is_current(job):
        storage.publish(storage.join(job.output_uri, MANIFEST_NAME), manifest.to_json())


def _required(commit: Commit, training_samples: list[int]) -> tuple[tuple[bytes, ...], list[int]]:
    """Return names and numbers of training images of the classes that need some: all that the source still has."""
    vanished = commit.increment.vanished if commit.increment else ()
    labels = [label for label in range(len(training_samples)) if label not in set(vanished)]
    return tuple(commit.job.classes[label] for label in labels), [training_samples[label] for label in labels]


def _measure(sums: ChannelSums, reused: ReusedShards | None) -> tuple[list[float] | None, list[float] | None]:
    """Return mean and deviation of the channels. A chain keeps those of its first manifest.

    Weights that were trained on one of its manifests so keep their meaning on the next.
    """
    if reused is not None:
        return reused.manifest.mean, reused.manifest.std
    return channel_statistics(sums) if sums.pixels else (None, None)


def _describe_changes(changes: Changes, tally: Tally) -> Prepared:
    return Prepared(
        convert=[name for name in ("cmyk", "depth", "orientation") if getattr(changes, name)],
        resize=changes.shorter_side,
        jpeg_quality=changes.jpeg_quality,
        changed=dict(tally.changes),
        made_with=library_versions() if any(dict(tally.changes).values()) else {},
    )
