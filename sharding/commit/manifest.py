"""The end of the stage: from the summaries of all groups of shards to the manifest, or to a refusal.

The manifest is the commit. It is published last and create-only, and holds no time, host or path of the output, so that
it is the same wherever and however often it is made.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    Duplicates,
    FieldEntry,
    FileEntry,
    ImageStatistics,
    IndexPart,
    Prepared,
    Rejected,
    ShardEntry,
    ShardManifest,
    SplitEntry,
)
from contracts.artifacts.shard_table import MOST_LISTED, pack_table
from contracts.config import SPLITS
from contracts.errors import ShardlineError, TryAgain
from pages.quantities import several
from records.convert import Changes, library_versions
from records.source import write_source
from records.statistics import ChannelSums, Tally, channel_statistics
from sharding.commit.duplicates import Findings, check_duplicates, describe_duplicates
from sharding.commit.kept import Kept
from sharding.commit.records import MAX_REJECTED, Summary, drop_record, drop_summary, load_summaries
from sharding.commit.tokenizer import add_tokenizer
from sharding.job import OpenJob, PlannedJob, made_with
from sharding.limits import check_rejected, check_training_classes, check_training_samples, encode_path, name_some
from sharding.write.check import DEEP, NARROW, REPAIRED


@dataclass(frozen=True)
class Commit:
    """What the manifest must keep to: limits of the configuration that are in no fingerprint."""

    max_rejected_fraction: float
    duplicates: str
    """As `sharding.duplicates`."""
    appends: bool = False
    """Whether shards of an earlier manifest are reused."""
    has_rows: bool = False
    """Whether samples are rows without files, whose content the listing knows by its hash."""

    @property
    def looks_in_source(self) -> bool:
        """Whether copies are looked for in the source: what an increment writes may be a copy of what it reuses."""
        return self.duplicates != "off" and (self.appends or self.has_rows)

    @property
    def looks_in_shards(self) -> bool:
        """Whether copies are looked for in the shards: reading the source twice would take longer."""
        return self.duplicates != "off" and not self.looks_in_source


def commit_shards(opened: OpenJob, commit: Commit, found: Findings | None) -> None:
    """Publish the manifest, as the last act.

    Args:
        opened: The job; all its groups are summarised.
        commit: The limits.
        found: Images with the same bytes.

    Raises:
        DataError: Too many files were rejected, a class lost its last training image, or there are copies and
            `sharding.duplicates` is fail; no manifest is published.
        TryAgain: A shard is not there any more.
    """
    kept = Kept(opened) if opened.planned.append is not None else None
    collected = _collect(load_summaries(opened), opened, kept)
    planned, output_uri = opened.planned, opened.job.output_uri
    # Nobody else counts what became of the listing.
    assert collected.num_files == planned.num_files, f"{collected.num_files} of {planned.num_files} files are known"
    shown = f"sharding.source {storage.display(planned.source_uri)}"
    rejected = [Rejected(path=encode_path(path), reason=reason) for path, reason in collected.rejected]
    check_rejected(
        rejected, collected.num_samples, commit.max_rejected_fraction, shown, num_rejected=collected.num_rejected
    )
    splits = collected.describe_splits()
    check_training_classes(*_required(opened, splits[SPLITS[0]].samples_by_class), shown)
    if not opened.job.classes:
        check_training_samples(splits[SPLITS[0]].samples, shown)
    duplicates = found.report() if found is not None and found.groups else None
    if commit.duplicates == "fail":
        check_duplicates(duplicates, shown, planned.sharding)
    _check_files(opened, collected.shards)
    table = None
    if len(collected.shards) > MOST_LISTED:
        content = pack_table(collected.shards)
        name = f"shards-{opened.job.key}.bin"
        storage.publish(storage.join(output_uri, name), content)
        table = FileEntry(name=name, bytes=len(content), crc32c=storage.crc32c(content))
    mean, std = _measure(collected.channel_sums, kept)
    changes = opened.job.checks.changes
    has_images = opened.job.fields is None or opened.job.fields.image is not None
    manifest = ShardManifest(
        format_version=ShardManifest.FORMAT_VERSION,
        fingerprint=planned.fingerprint,
        made_from=planned.made_from,
        format=planned.sharding.shard_format,
        seed=planned.seed,
        classes=planned.classes,
        multi_label=planned.multi_label,
        fields=_describe_fields(opened),
        splits=splits,
        shards=[] if table else collected.shards,
        shard_table=table,
        index_parts=collected.parts,
        rejected=rejected,
        num_rejected=collected.num_rejected if collected.num_rejected > len(rejected) else None,
        ignored=planned.ignored,
        num_ignored=planned.num_ignored if planned.num_ignored > len(planned.ignored) else None,
        warnings=[*planned.warnings, *_warn(opened, collected, duplicates)],
        mean=mean,
        std=std,
        verify=planned.sharding.verify,
        images=describe_images(collected.tally) if has_images else None,
        prepared=_describe_changes(planned, changes, collected.tally) if has_images else None,
        duplicates=duplicates,
        parent=kept.append.parent if kept is not None else None,
        code_version=importlib.metadata.version("shardline"),
        key=opened.job.key,
        made_with=made_with(),
    )
    manifest = add_tokenizer(opened, manifest, kept)
    if manifest.prepared is not None and any(manifest.prepared.changed.values()):
        write_source(output_uri, planned.source_uri)
    storage.publish(storage.join(output_uri, MANIFEST_NAME), manifest.to_json())
    # Whoever still works on it, in another run, finds that it is finished.
    with contextlib.suppress(OSError, ShardlineError):
        storage.delete_tree(opened.job.work_uri, manifest_name=MANIFEST_NAME)


class _Collected:
    """What the summaries of all groups add up to."""

    def __init__(self, num_classes: int) -> None:
        self.samples_by_class = np.zeros((len(SPLITS), num_classes), np.int64)
        self.samples = [0] * len(SPLITS)
        self.source_bytes = [0] * len(SPLITS)
        self.num_samples = self.num_rejected = self.num_files = 0
        self.shards: list[ShardEntry] = []
        self.parts: list[IndexPart] = []
        self.rejected: list[tuple[bytes, str]] = []
        self.channel_sums = ChannelSums()
        self.tally = Tally()

    def add(self, summary: Summary) -> None:
        """Take in a group; groups come in the order of their shards."""
        first = self.num_samples
        for shard in summary.shards:
            self.shards.append(
                ShardEntry(
                    name=shard.name,
                    bytes=shard.bytes,
                    crc32c=shard.crc32c,
                    split=SPLITS[summary.split],
                    first=self.num_samples,
                    samples=shard.samples,
                    rows_crc32c=shard.rows_crc32c,
                )
            )
            self.num_samples += shard.samples
        if summary.part is not None:
            name, num_bytes, crc32c = summary.part
            samples = self.num_samples - first
            self.parts.append(IndexPart(name=name, bytes=num_bytes, crc32c=crc32c, first=first, samples=samples))
        self.samples[summary.split] += self.num_samples - first
        self.samples_by_class[summary.split] += np.array(summary.samples_by_class, np.int64)
        self.source_bytes[summary.split] += summary.source_bytes
        self.rejected += summary.rejected
        self.num_rejected += summary.num_rejected
        self.num_files += summary.num_files
        self.channel_sums += summary.channel_sums
        self.tally += summary.tally

    def take_over(self, split: int, kept: Kept) -> None:
        """Take in what a split of an increment's parent keeps."""
        shards, parts = kept.of_split(split, self.num_samples)
        self.shards += shards
        self.parts += parts
        samples = sum(entry.samples for entry in shards)
        self.num_samples += samples
        self.samples[split] += samples
        self.samples_by_class[split] += np.array(kept.append.samples_by_class[split], np.int64)
        self.source_bytes[split] += kept.append.source_bytes[split]

    def describe_splits(self) -> dict[str, SplitEntry]:
        """Return the splits, each a contiguous range of the index."""
        splits = {}
        first = 0
        for split, name in enumerate(SPLITS):
            splits[name] = SplitEntry(
                first=first,
                samples=self.samples[split],
                source_bytes=self.source_bytes[split],
                samples_by_class=self.samples_by_class[split].tolist(),
            )
            first += self.samples[split]
        return splits


def _collect(summaries: Iterable[Summary], opened: OpenJob, kept: Kept | None) -> _Collected:
    collected = _Collected(len(opened.job.classes))
    by_split = {split: list(group) for split, group in itertools.groupby(summaries, key=lambda one: one.split)}
    for split in range(len(SPLITS)):
        # What a split takes over comes before what was written: it stays a contiguous range of the index.
        if kept is not None:
            collected.take_over(split, kept)
        for summary in by_split.get(split, ()):
            collected.add(summary)
    if kept is not None:
        collected.tally += read_tally(kept.manifest)
    # Those of each group are in order; all together are not.
    collected.rejected = sorted(collected.rejected)[:MAX_REJECTED]
    return collected


def _describe_fields(opened: OpenJob) -> dict[str, FieldEntry]:
    """Return the named fields; none where samples are an image and a label."""
    fields = opened.job.fields
    if fields is None:
        return {}
    classes = {name: list(names) for name, names in opened.job.vocabularies.items()}
    if fields.label is not None:
        classes[fields.label] = opened.planned.classes
    section = opened.planned.sharding.fields
    return {
        name: FieldEntry(kind=kind, place=place, classes=classes.get(name, []), column=section[name].column)
        for place, (name, kind) in enumerate(fields.kinds.items())
    }


def _required(opened: OpenJob, training_samples: list[int]) -> tuple[tuple[bytes, ...], list[int]]:
    """Return names and numbers of training images of the classes that need some: all that the source still has."""
    vanished = set(opened.planned.append.vanished) if opened.planned.append is not None else set()
    labels = [label for label in range(len(training_samples)) if label not in vanished]
    return tuple(opened.job.classes[label] for label in labels), [training_samples[label] for label in labels]


def _measure(sums: ChannelSums, kept: Kept | None) -> tuple[list[float] | None, list[float] | None]:
    """Return mean and deviation of the channels. A chain keeps those of its first manifest.

    Weights that were trained on one of its manifests so keep their meaning on the next.
    """
    if kept is not None:
        return kept.manifest.mean, kept.manifest.std
    return channel_statistics(sums) if sums.pixels else (None, None)


def _check_files(opened: OpenJob, shards: Iterable[ShardEntry]) -> None:
    """See to it that no shard was deleted since it was written: one paged listing.

    Raises:
        TryAgain: One is gone; its record is deleted, so that it is written again.
    """
    output_uri = opened.job.output_uri
    shards = list(shards)
    sizes = {}
    for folder in {entry.folder for entry in shards}:
        uri = storage.join(output_uri.rpartition("/")[0], folder) if folder else output_uri
        sizes.update({(folder, info.name): info.size for info in storage.list_objects(uri, recursive=False)})
    missing = [entry for entry in shards if sizes.get((entry.folder, entry.name)) != entry.bytes]
    if lost := [entry.relative_path for entry in missing if entry.folder]:
        raise TryAgain(f"{name_some(lost)}, which the increment is built on, was deleted or cut short; run again")
    gone = [entry.name for entry in missing]
    if not gone:
        return
    numbers = {f"{opened.stem_of(shard)}": shard for shard in range(opened.plan.total_shards)}
    for name in gone:
        shard = numbers[name.rpartition(".")[0]]
        drop_record(shard, opened)
        drop_summary(opened.group_of(shard), opened)
        if ("", name) in sizes:
            storage.delete(storage.join(output_uri, name))
    raise TryAgain(f"{name_some(gone)} in {storage.display(output_uri)} was deleted or cut short while sharding")


def _warn(opened: OpenJob, collected: _Collected, duplicates: Duplicates | None) -> list[str]:
    """Return what was remarked while writing."""
    found = []
    if transparent := collected.tally.changes.get("transparent", 0):
        background = opened.planned.sharding.background
        images = several(transparent, "transparent image was", "transparent images were")
        found.append(f"{images} laid on {background} (sharding.background)")
    if repaired := collected.tally.changes.get(REPAIRED, 0):
        odd = "odd scan parameters, stray bytes or no end marker"
        files = several(repaired, "JPEG file has", "JPEG files have")
        found.append(f"{files} {odd}; what is stored is sound, with the same pixels")
    remarks = collected.tally.remarks
    deep, narrow = remarks.get(DEEP, 0), remarks.get(NARROW, 0)
    if narrow and 2 * narrow >= deep:
        found.append(
            f"{narrow} of {deep} images with 16 bits per channel use less than a quarter of their range, as 12-bit "
            "data does: as 8 bits a few values are left; scale them to the range of 16 bits beforehand"
        )
    if duplicates is not None:
        found.append(describe_duplicates(duplicates, opened.planned.sharding))
    return found


def describe_images(tally: Tally) -> ImageStatistics:
    """Return counts and sizes of images as the manifest has them."""
    return ImageStatistics(
        formats=dict(tally.formats),
        modes=dict(tally.modes),
        width=list(tally.widths) if tally.widths else None,
        height=list(tally.heights) if tally.heights else None,
    )


def read_tally(manifest: ShardManifest) -> Tally:
    """Return what was counted when the shards of a manifest were written."""
    images = manifest.images
    if images is None:
        return Tally()
    width, height = ((one[0], one[1]) if one else None for one in (images.width, images.height))
    changed = manifest.prepared.changed if manifest.prepared is not None else {}
    return Tally(images.formats, images.modes, changed, width, height)


def _describe_changes(planned: PlannedJob, changes: Changes, tally: Tally) -> Prepared:
    return Prepared(
        background=planned.sharding.background if planned.sharding.verify == "decode" else None,
        convert=[name for name in ("cmyk", "depth", "orientation") if getattr(changes, name)],
        resize=changes.shorter_side,
        jpeg_quality=changes.jpeg_quality,
        max_pixels=planned.sharding.max_pixels,
        changed=dict(tally.changes),
        made_with=library_versions() if any(dict(tally.changes).values()) else {},
    )
