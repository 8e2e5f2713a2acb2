"""The data card: what the shards hold, what was left out, and what is worth a second look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from contracts.artifacts import ShardManifest, SplitEntry
from contracts.artifacts.shard_table import shard_numbers
from contracts.config import SPLITS
from inspection.run.data import list_columns
from inspection.stages.markdown import cell, code, first, inline, section, table
from inspection.stages.told import Told, finite, several
from pages.quantities import number, size

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
    return finite(numbers)


def tell(shards: ShardManifest) -> Told:
    """Return what the manifest of a set of shards says."""
    return Told(count(shards), lambda: _lines(shards))


def _lines(shards: ShardManifest) -> list[str]:
    samples = sum(split.samples for split in shards.splits.values())
    total = size(sum(shard.bytes for shard in shard_numbers(shards.shards)))
    classes = f" of {several(len(shards.classes), 'class', 'classes')}" if shards.classes else ""
    words = (
        f"{several(samples, 'sample')}{classes} in {several(len(shards.shards), 'file')} of {shards.format}, {total}."
    )
    return [
        words,
        *section("Warnings", list(_warnings(shards))),
        *section("Columns", list(_columns(shards))),
        *section("Splits", list(_splits(shards))),
        *section("Classes", list(_classes(shards))),
        *(section("Images", list(_images(shards))) if shards.image_field is not None else ()),
        *section("Left out", list(_left_out(shards))),
        *section("Copies", list(_copies(shards))),
    ]


def _warnings(shards: ShardManifest) -> Iterator[str]:
    shown, note = first(shards.warnings)
    yield from (f"- {cell(warning)}" for warning in shown)
    yield from note


def _ordered(shards: ShardManifest) -> list[tuple[str, SplitEntry]]:
    """Return the splits in the order in which they are used."""
    return sorted(
        shards.splits.items(), key=lambda split: SPLITS.index(split[0]) if split[0] in SPLITS else len(SPLITS)
    )


def _splits(shards: ShardManifest) -> Iterator[str]:
    shown, note = first(_ordered(shards))
    files = Counter(shard.split for shard in shard_numbers(shards.shards))
    rows = (
        (
            cell(name),
            f"{split.samples:,}",
            str(files[name]),
            size(split.source_bytes),
        )
        for name, split in shown
    )
    yield from table(["split", "samples", "shards", "source files"], rows)
    yield from note


def _columns(shards: ShardManifest) -> Iterator[str]:
    shown, note = first(list_columns(shards))
    if not shown:
        return
    rows = (
        (
            cell(one.name),
            cell(one.field),
            one.kind,
            *("" if value is None else number(value) for value in (one.mean, one.std, one.least, one.most)),
            *("" if value is None else f"{value:,}" for value in (one.missing, one.categories)),
            ", ".join(f"{split} {samples:,}" for split, samples in one.unseen.items() if samples or split != "train"),
        )
        for one in shown
    )
    head = ["column", "field", "kind", "mean", "std", "least", "most", "missing", "categories", "unseen"]
    yield "Values, missing ones and categories are those of the training split; unseen are samples of the others."
    yield ""
    yield from table(head, rows, words=3)
    yield from note


def _classes(shards: ShardManifest) -> Iterator[str]:
    if shards.multi_label:
        yield "A sample may have several labels, and counts for each."
        yield ""
    if not shards.classes:
        yield "No field of the samples is of classes."
        return
    splits, note = first(_ordered(shards), MAX_SPLITS)
    short = [name for name, split in splits if len(split.samples_by_class) != len(shards.classes)]

    def row(place: int) -> list[int | None]:
        # A list that is too short is damaged: its splits are said below.
        return [split.samples_by_class[place] if place < len(split.samples_by_class) else None for _, split in splits]

    shown = order = list(range(len(shards.classes)))
    if len(order) > MAX_CLASSES:
        # The largest and the smallest: the extremes are what a reader looks for.
        order.sort(key=lambda place: -sum(filter(None, row(place))))
        shown = [*order[: MAX_CLASSES // 2], *order[-(MAX_CLASSES // 2) :]]
    rows = (
        [cell(shards.classes[place]), *("not told" if found is None else f"{found:,}" for found in row(place))]
        for place in shown
    )
    yield from table(["class", *(cell(name) for name, _ in splits)], rows)
    if len(shown) < len(order):
        yield ""
        yield f"The {MAX_CLASSES // 2} largest and smallest of {len(order):,}; the manifest has all."
    yield from note
    if short:
        yield ""
        yield f"Not every class has a count, or a count has no class, in: {cell(', '.join(short))}."


def _images(shards: ShardManifest) -> Iterator[str]:
    if (images := shards.images) is not None:
        yield f"- formats: {_counts(images.formats)}"
        if images.modes:
            yield f"- modes: {_counts(images.modes)}"
        if images.width and images.height:
            (low, high), (short, tall) = images.width, images.height
            yield f"- width {low} to {high} px, height {short} to {tall} px"
    if shards.mean is not None and shards.std is not None:
        shown = (" ".join(f"{value:.4f}" for value in values) for values in (shards.mean, shards.std))
        yield "- mean {}, deviation {}".format(*shown)
    if shards.prepared is not None:
        yield f"- changed while sharding: {_counts(shards.prepared.changed)}"
    yield f"- verified: {shards.verify}"


def _counts(found: Mapping[str, int]) -> str:
    """Return numbers of images by what they are, the most frequent first where not all are shown."""
    entries = list(found.items())
    if len(entries) > MAX_INLINE:
        entries.sort(key=lambda entry: -entry[1])
    return inline([f"{cell(name)} {images:,}" for name, images in entries[: MAX_INLINE + 1]], MAX_INLINE, len(entries))


def _left_out(shards: ShardManifest) -> Iterator[str]:
    if not shards.count_rejected and not shards.count_ignored:
        yield "Nothing."
        return
    yield (
        f"{several(shards.count_rejected, 'file')} rejected by content, {several(shards.count_ignored, 'file')} "
        "ignored by name."
    )
    if shards.rejected:
        yield ""
        yield from table(
            ["file", "reason"], ((code(e.path), cell(e.reason)) for e in shards.rejected[:MAX_FILES]), words=2
        )
        if shards.count_rejected > MAX_FILES:
            yield ""
            whose = "all" if shards.num_rejected is None else f"{len(shards.rejected):,} of them"
            yield f"The first {MAX_FILES}; the manifest has {whose}."


def _copies(shards: ShardManifest) -> Iterator[str]:
    if (found := shards.duplicates) is None:
        return
    state = "left out" if found.dropped else "in the shards"
    if shards.image_field is not None:
        copies = f"{several(found.copies, 'image')} with the bytes of another"
    else:
        copies = f"{several(found.copies, 'sample')} with the content of another, whatever the label"
    yield f"{copies}, {state}; {several(found.leaking_groups, 'group')} across splits."
