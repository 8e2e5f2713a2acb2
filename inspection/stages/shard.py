"""The data card: what the shards hold, what was left out, and what is worth a second look."""

from __future__ import annotations

from collections.abc import Iterator

from contracts.artifacts import ShardManifest, SplitEntry
from contracts.config import SPLITS
from inspection.stages.markdown import cell, code, section, table
from inspection.stages.told import Told, several
from pages.quantities import size

# Rows of a long list; the manifest has all.
MAX_CLASSES, MAX_FILES = 30, 10


def tell(shards: ShardManifest) -> Told:
    """Return what the manifest of a set of shards says."""
    samples = sum(split.samples for split in shards.splits.values())
    numbers: dict[str, float] = {
        "shard_samples": samples,
        **{f"shard_{name}_samples": split.samples for name, split in _ordered(shards)},
        "shard_files": len(shards.shards),
        "shard_bytes": sum(entry.bytes for entry in shards.shards),
        "shard_source_bytes": sum(split.source_bytes for split in shards.splits.values()),
        "shard_classes": len(shards.classes),
        "shard_rejected": len(shards.rejected),
        "shard_ignored": len(shards.ignored),
        "shard_generation": shards.generation,
    }
    if shards.duplicates is not None:
        numbers["shard_copies"] = shards.duplicates.copies
        numbers["shard_leaking_groups"] = shards.duplicates.leaking_groups
    words = (
        f"{several(samples, 'sample')} of {several(len(shards.classes), 'class', 'classes')} in "
        f"{several(len(shards.shards), 'file')} of {shards.format}, {size(numbers['shard_bytes'])}."
    )
    lines = [
        words,
        *section("Splits", list(_splits(shards))),
        *section("Classes", list(_classes(shards))),
        *section("Images", list(_images(shards))),
        *section("Left out", list(_left_out(shards))),
        *section("Copies", list(_copies(shards))),
    ]
    return Told(numbers, lines)


def _ordered(shards: ShardManifest) -> list[tuple[str, SplitEntry]]:
    """Return the splits in the order in which they are used."""
    return sorted(
        shards.splits.items(), key=lambda split: SPLITS.index(split[0]) if split[0] in SPLITS else len(SPLITS)
    )


def _splits(shards: ShardManifest) -> Iterator[str]:
    rows = (
        (
            cell(name),
            f"{split.samples:,}",
            str(sum(entry.split == name for entry in shards.shards)),
            size(split.source_bytes),
        )
        for name, split in _ordered(shards)
    )
    yield from table(["split", "samples", "shards", "source files"], rows)


def _classes(shards: ShardManifest) -> Iterator[str]:
    if shards.multi_label:
        yield "An image may have several labels: they are not counted by class."
        return
    counts = {
        name: [split.samples_by_class[place] for _, split in _ordered(shards)]
        for place, name in enumerate(shards.classes)
    }
    shown = order = list(counts)
    if len(order) > MAX_CLASSES:
        # The largest and the smallest: the extremes are what a reader looks for.
        order.sort(key=lambda name: -sum(counts[name]))
        shown = [*order[: MAX_CLASSES // 2], *order[-(MAX_CLASSES // 2) :]]
    rows = ([cell(name), *(f"{count:,}" for count in counts[name])] for name in shown)
    yield from table(["class", *(cell(name) for name, _ in _ordered(shards))], rows)
    if len(shown) < len(order):
        yield ""
        yield f"The {MAX_CLASSES // 2} largest and smallest of {len(order):,}; the manifest has all."


def _images(shards: ShardManifest) -> Iterator[str]:
    if (images := shards.images) is not None:
        yield "- formats: " + (", ".join(f"{cell(name)} {count:,}" for name, count in images.formats.items()) or "none")
        if images.modes:
            yield "- modes: " + ", ".join(f"{cell(name)} {count:,}" for name, count in images.modes.items())
        if images.width and images.height:
            (low, high), (short, tall) = images.width, images.height
            yield f"- width {low} to {high} px, height {short} to {tall} px"
    if shards.mean is not None and shards.std is not None:
        shown = (" ".join(f"{value:.4f}" for value in values) for values in (shards.mean, shards.std))
        yield "- mean {}, deviation {}".format(*shown)
    if shards.prepared is not None:
        changed = ", ".join(f"{cell(name)} {count:,}" for name, count in shards.prepared.changed.items())
        yield f"- changed while sharding: {changed or 'none'}"
    yield f"- verified: {shards.verify}"


def _left_out(shards: ShardManifest) -> Iterator[str]:
    if not shards.rejected and not shards.ignored:
        yield "Nothing."
        return
    yield (
        f"{several(len(shards.rejected), 'file')} rejected by content, {several(len(shards.ignored), 'file')} "
        "ignored by name."
    )
    if shards.rejected:
        yield ""
        yield from table(
            ["file", "reason"], ((code(e.path), cell(e.reason)) for e in shards.rejected[:MAX_FILES]), words=2
        )
        if len(shards.rejected) > MAX_FILES:
            yield ""
            yield f"The first {MAX_FILES}; the manifest has all."


def _copies(shards: ShardManifest) -> Iterator[str]:
    if (found := shards.duplicates) is None:
        return
    state = "left out" if found.dropped else "in the shards"
    copies = several(found.copies, "image")
    yield f"{copies} with the bytes of another, {state}; {several(found.leaking_groups, 'group')} across splits."
