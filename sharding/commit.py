"""Commit of the stage: builds and publishes the manifest from the merged results of all shards.

The manifest is published last and create-only. It holds no time, host or output path: a rerun gives the same bytes.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence

from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    Duplicates,
    FieldEntry,
    Prepared,
    Rejected,
    ShardEntry,
    ShardManifest,
    Shards,
    SplitEntry,
)
from contracts.config import SPLITS
from contracts.errors import TryAgain
from records.decode import library_versions
from records.source import write_source
from records.statistics import Tally, channel_statistics
from sharding.duplicates import add_parent_copies, describe_duplicates
from sharding.images import DEEP, NARROW, REPAIRED
from sharding.increments import add_parent, read_parent
from sharding.job import Job, ShardResult, made_with
from sharding.limits import Limits, check_training_classes, check_training_samples
from sharding.planning import clean_work
from sharding.tokenizer import add_tokenizer


def commit_shards(job: Job, result: ShardResult, copies: Duplicates, limits: Limits) -> None:
    """Check the results of all shards and publish the manifest.

    Args:
        job: The planned job; all its shards are finished.
        result: Merged results of all shards.
        copies: Samples with the same content.
        limits: Limits of the configuration.

    Raises:
        DataError: Too many files were rejected, a class lost its last training image, or there are copies and
            `sharding.duplicates` is fail; no manifest is published.
        TryAgain: A shard is missing.
    """
    planned = job.planned
    parent = read_parent(job) if planned.increment is not None else None
    if parent is not None:
        result = add_parent(job, parent, result)
    expected = planned.num_files + (planned.increment.num_kept if planned.increment else 0)
    num_samples = sum(shard.samples for shard in result.shards) + result.num_rejected
    if num_samples != expected:
        raise TryAgain(f"{expected - num_samples} samples are in no finished shard; run again to go on")
    shards = _sort_shards(result.shards)
    splits = _describe_splits(result, shards, len(planned.classes))
    rejected = [Rejected(path=path, reason=reason) for path, reason in result.rejected]
    if planned.increment is not None:
        copies = add_parent_copies(copies, planned.increment.copies)
    duplicates = copies if limits.duplicates != "off" else None
    if parent is not None:
        # Weights that were trained on a manifest of a chain keep their meaning on the next.
        mean, std = parent.mean, parent.std
    else:
        mean, std = channel_statistics(result.channel_sums) if result.channel_sums.pixels else (None, None)
    has_images = job.fields.image is not None
    manifest = ShardManifest(
        format_version=ShardManifest.FORMAT_VERSION,
        fingerprint=planned.fingerprint,
        made_from=planned.made_from,
        format=planned.sharding.shard_format,
        seed=planned.plan.seed,
        classes=planned.classes,
        multi_label=planned.multi_label,
        fields=_describe_fields(job),
        splits=splits,
        shards=Shards.of(shards),
        rejected=rejected,
        num_rejected=result.num_rejected if result.num_rejected > len(rejected) else None,
        ignored=planned.ignored,
        num_ignored=planned.num_ignored if planned.num_ignored > len(planned.ignored) else None,
        warnings=[*planned.warnings, *_warn(job, result.tally, duplicates)],
        mean=mean,
        std=std,
        verify=planned.sharding.verify,
        images=result.tally.describe() if has_images else None,
        prepared=_describe_changes(job, result.tally) if has_images else None,
        duplicates=duplicates,
        parent=planned.increment.parent if planned.increment is not None else None,
        code_version=importlib.metadata.version("shardline"),
        key=job.key,
        made_with=made_with(),
    )
    limits.check(manifest, job.shown_source)
    vanished = planned.increment.vanished if planned.increment is not None else []
    check_training_classes(job.classes, splits["train"].samples_by_class, job.shown_source, vanished)
    if not job.classes:
        check_training_samples(splits["train"].samples, job.shown_source)
    if damage := job.find_damage(shards):
        raise TryAgain(f"{damage}, since it was written; run again to write it again")
    manifest = add_tokenizer(job, manifest, parent)
    if manifest.prepared is not None and any(manifest.prepared.changed.values()):
        write_source(job.output_uri, planned.source_uri)
    storage.publish(storage.join(job.output_uri, MANIFEST_NAME), manifest.to_json())
    clean_work(job.output_uri)


def _sort_shards(shards: Sequence[ShardEntry]) -> list[ShardEntry]:
    """Sort shards by split, those of a parent first, then by name (whose number may exceed five digits)."""
    order = {name: place for place, name in enumerate(SPLITS)}
    return sorted(
        shards, key=lambda entry: (order[entry.split], not entry.folder, entry.first, len(entry.name), entry.name)
    )


def _describe_splits(result: ShardResult, shards: Sequence[ShardEntry], num_classes: int) -> dict[str, SplitEntry]:
    splits = {}
    first = 0
    for name in SPLITS:
        samples = sum(shard.samples for shard in shards if shard.split == name)
        by_class = result.samples_by_class.get(name, {})
        splits[name] = SplitEntry(
            first=first,
            samples=samples,
            source_bytes=result.source_bytes.get(name, 0),
            samples_by_class=[by_class.get(label, 0) for label in range(num_classes)],
        )
        first += samples
    return splits


def _describe_fields(job: Job) -> dict[str, FieldEntry]:
    if not job.fields.are_named:
        return {}
    classes = dict(job.planned.vocabularies)
    if job.fields.label is not None:
        classes[job.fields.label] = job.planned.classes
    return {
        name: FieldEntry(kind=kind, place=place, classes=classes.get(name, []), column=job.fields.columns[name])
        for place, (name, kind) in enumerate(job.fields.kinds.items())
    }


def _warn(job: Job, tally: Tally, duplicates: Duplicates | None) -> list[str]:
    warnings = []
    if transparent := tally.changes.get("transparent", 0):
        colour = job.planned.sharding.background
        images = "1 transparent image was" if transparent == 1 else f"{transparent} transparent images were"
        warnings.append(f"{images} laid on {colour} (sharding.background)")
    if repaired := tally.changes.get(REPAIRED, 0):
        odd = "odd scan parameters, stray bytes or no end marker"
        files = "1 JPEG file has" if repaired == 1 else f"{repaired} JPEG files have"
        warnings.append(f"{files} {odd}; what is stored is sound, with the same pixels")
    deep, narrow = tally.remarks.get(DEEP, 0), tally.remarks.get(NARROW, 0)
    if narrow and 2 * narrow >= deep:
        warnings.append(
            f"{narrow} of {deep} images with 16 bits per channel use less than a quarter of their range, as 12-bit "
            "data does: as 8 bits a few values are left; scale them to the range of 16 bits beforehand"
        )
    if duplicates is not None and duplicates.groups:
        warnings.append(describe_duplicates(duplicates))
    return warnings


def _describe_changes(job: Job, tally: Tally) -> Prepared:
    section, changes = job.planned.sharding, job.checks.changes
    return Prepared(
        background=section.background if section.verify == "decode" else None,
        convert=list(section.convert),
        resize=changes.shorter_side,
        jpeg_quality=changes.jpeg_quality,
        max_pixels=section.max_pixels,
        changed=dict(tally.changes),
        made_with=library_versions() if any(dict(tally.changes).values()) else {},
    )
