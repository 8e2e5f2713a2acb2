"""The data card: what the shards hold, what was left out, and what is worth a second look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from contracts.artifacts import ShardManifest, SplitEntry
from contracts.artifacts.shard_table import shard_numbers
from contracts.config import SPLITS
from inspection.run.data import list_columns
from inspection.run.view import ColumnView
from inspection.stages.told import Told, known
from pages.rendering import write
from pages.stage import First, first
from pages.stage.shard import Classes, Column, DataCard, Images

# Rows of a long list; the manifest has all.
MAX_CLASSES, MAX_FILES = 30, 10
# Columns, and what stands in one line.
MAX_SPLITS, MAX_INLINE = 10, 20


def count(shards: ShardManifest) -> dict[str, float]:
    """Return the metrics of a set of shards."""
    samples = sum(split.samples for split in shards.splits.values())
    numbers: dict[str, float] = {
        "shard_samples": samples,
        **{f"shard_{name}_samples": split.samples for name, split in _ordered(shards)},
        "shard_files": len(shards.shards),
        "shard_bytes": sum(shard.bytes for shard in shard_numbers(shards.shards)),
        "shard_source_bytes": sum(split.source_bytes for split in shards.splits.values()),
        "shard_classes": len(shards.classes),
        "shard_rejected": shards.count_rejected,
        "shard_ignored": shards.count_ignored,
        "shard_generation": shards.generation,
    }
    if shards.duplicates is not None:
        numbers["shard_copies"] = shards.duplicates.copies
        numbers["shard_leaking_groups"] = shards.duplicates.leaking_groups
    return known(numbers)


def tell(shards: ShardManifest) -> Told:
    """Return what the manifest of a set of shards says."""
    return Told(count(shards), lambda: write(_card(shards)))


def _card(shards: ShardManifest) -> DataCard:
    numbers = list(shard_numbers(shards.shards))
    files = Counter(shard.split for shard in numbers)
    found = shards.duplicates
    return DataCard(
        samples=sum(split.samples for split in shards.splits.values()),
        num_classes=len(shards.classes),
        files=len(shards.shards),
        format=shards.format,
        bytes=sum(shard.bytes for shard in numbers),
        warnings=first(shards.warnings),
        columns=first([_column(one) for one in list_columns(shards)]),
        splits=first([(name, split.samples, files[name], split.source_bytes) for name, split in _ordered(shards)]),
        multi_label=shards.multi_label,
        classes=_classes(shards) if shards.classes else None,
        images=_images(shards) if shards.image_field is not None else None,
        rejected=shards.count_rejected,
        ignored=shards.count_ignored,
        rejected_files=first([(entry.path, entry.reason) for entry in shards.rejected], MAX_FILES),
        rejected_listed=len(shards.rejected) if shards.num_rejected is not None else shards.count_rejected,
        copies=None if found is None else (found.copies, found.leaking_groups, found.dropped),
        has_images=shards.image_field is not None,
    )


def _ordered(shards: ShardManifest) -> list[tuple[str, SplitEntry]]:
    """Return the splits in the order in which they are used."""
    return sorted(
        shards.splits.items(), key=lambda split: SPLITS.index(split[0]) if split[0] in SPLITS else len(SPLITS)
    )


def _column(one: ColumnView) -> Column:
    unseen = tuple((split, samples) for split, samples in one.unseen.items() if samples or split != "train")
    figures = (one.mean, one.std, one.least, one.most)
    return Column(one.name, one.field, one.kind, figures, one.missing, one.categories, unseen)


def _classes(shards: ShardManifest) -> Classes:
    splits = _ordered(shards)
    shown = [split for _, split in splits[:MAX_SPLITS]]
    # A list that is too short is damaged: its splits are said below.
    damaged = [name for name, split in splits[:MAX_SPLITS] if len(split.samples_by_class) != len(shards.classes)]

    def row(place: int) -> tuple[int | None, ...]:
        return tuple(split.samples_by_class[place] if place < len(split.samples_by_class) else None for split in shown)

    order = list(range(len(shards.classes)))
    if len(order) > MAX_CLASSES:
        # The largest and the smallest: the extremes are what a reader looks for.
        order.sort(key=lambda place: -sum(filter(None, row(place))))
        order = [*order[: MAX_CLASSES // 2], *order[-(MAX_CLASSES // 2) :]]
    return Classes(
        first([name for name, _ in splits], MAX_SPLITS),
        tuple((shards.classes[place], row(place)) for place in order),
        len(shards.classes),
        ", ".join(damaged),
    )


def _images(shards: ShardManifest) -> Images:
    images = shards.images
    sizes = (images.width, images.height) if images is not None else (None, None)
    has_mean = shards.mean is not None and shards.std is not None
    return Images(
        _counts(images.formats if images is not None else {}),
        _counts(images.modes if images is not None else {}),
        (sizes[0][0], sizes[0][1], sizes[1][0], sizes[1][1]) if sizes[0] and sizes[1] else None,
        tuple(shards.mean or ()) if has_mean else (),
        tuple(shards.std or ()) if has_mean else (),
        None if shards.prepared is None else _counts(shards.prepared.changed),
        shards.verify,
    )


def _counts(found: Mapping[str, int]) -> First[tuple[str, int]]:
    """Return numbers of images by what they are, the most frequent first where not all are shown."""
    entries = list(found.items())
    if len(entries) > MAX_INLINE:
        entries.sort(key=lambda entry: -entry[1])
    return first(entries, MAX_INLINE)
