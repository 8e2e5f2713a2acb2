"""The data card: what the shards hold, what was left out, and what is worth a second look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from contracts.artifacts import ShardManifest, SplitEntry
from contracts.artifacts.shard_table import shard_numbers
from contracts.config import SPLITS
from inspection.stages.told import Told, known
from pages.markdown import code, whole
from pages.quantities import count as show_count
from pages.quantities import several, size
from pages.rendering import write
from pages.stage import Block, Summary, first, listed

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
    }
    if shards.duplicates is not None:
        numbers["shard_copies"] = shards.duplicates.copies
        numbers["shard_leaking_groups"] = shards.duplicates.leaking_groups
    return known(numbers)


def tell(shards: ShardManifest) -> Told:
    """Return what the manifest of a set of shards says."""
    return Told(count(shards), lambda: write(_card(shards)))


def _card(shards: ShardManifest) -> Summary:
    numbers = list(shard_numbers(shards.shards))
    files = Counter(shard.split for shard in numbers)
    samples = sum(split.samples for split in shards.splits.values())
    of_classes = f" of {several(len(shards.classes), 'class', 'classes')}" if shards.classes else ""
    held = f"{several(len(numbers), 'file')} of {shards.format}, {size(sum(shard.bytes for shard in numbers))}"
    splits = [
        (name, show_count(split.samples), show_count(files[name]), size(split.source_bytes))
        for name, split in _ordered(shards)
    ]
    blocks = [
        Block(text=[f"{several(samples, 'sample')}{of_classes} in {held}."]),
        *listed("Warnings", shards.warnings),
        Block("Splits", head=("split", "samples", "shards", "source files"), rows=first(splits)),
        _classes(shards),
        *(_images(shards) if shards.image_field is not None else []),
        _left_out(shards),
    ]
    if (found := shards.duplicates) is not None:
        what = (
            several(found.copies, "sample") + " with the content of another, whatever the label"
            if shards.image_field is None
            else several(found.copies, "image") + " with the bytes of another"
        )
        leaking = several(found.leaking_groups, "group of copies is", "groups of copies are")
        blocks.append(Block("Copies", [f"{what}; {leaking} in several splits."]))
    return Summary(blocks)


def _ordered(shards: ShardManifest) -> list[tuple[str, SplitEntry]]:
    """Return the splits in the order in which they are used."""
    return sorted(
        shards.splits.items(), key=lambda split: SPLITS.index(split[0]) if split[0] in SPLITS else len(SPLITS)
    )


def _classes(shards: ShardManifest) -> Block:
    said = ["A sample may have several labels, and counts for each."] if shards.multi_label else []
    if not shards.classes:
        return Block("Classes", [*said, "No field of the samples is of classes."])
    splits = _ordered(shards)[:MAX_SPLITS]

    def counts(place: int) -> list[int | None]:
        found = [split.samples_by_class for _, split in splits]
        return [each[place] if place < len(each) else None for each in found]

    order, notes = list(range(len(shards.classes))), []
    if len(order) > MAX_CLASSES:
        # The largest and the smallest: the extremes are what a reader looks for.
        ends = MAX_CLASSES // 2
        order.sort(key=lambda place: -sum(filter(None, counts(place))))
        order = [*order[:ends], *order[-ends:]]
        notes.append(f"The {ends} largest and smallest of {show_count(len(shards.classes))}; the manifest has all.")
    if len(shards.splits) > MAX_SPLITS:
        notes.append(f"The first {MAX_SPLITS} of {len(shards.splits):,}; the manifest has all.")
    # A list that is too short is damaged.
    if damaged := [name for name, split in splits if len(split.samples_by_class) != len(shards.classes)]:
        notes.append(f"Not every class has a count, or a count has no class, in: {', '.join(damaged)}.")
    rows = [
        (shards.classes[place], *("not counted" if value is None else show_count(value) for value in counts(place)))
        for place in order
    ]
    return Block("Classes", said, ("class", *(name for name, _ in splits)), rows=first(rows), notes=notes)


def _images(shards: ShardManifest) -> list[Block]:
    images, changed = shards.images, shards.prepared.changed if shards.prepared is not None else None
    lines = []
    if images is not None:
        lines += [f"formats: {_counts(images.formats)}"] if images.formats else []
        lines += [f"modes: {_counts(images.modes)}"] if images.modes else []
        if (width := images.width) and (height := images.height):
            lines.append(f"width {width[0]} to {width[1]} px, height {height[0]} to {height[1]} px")
    if shards.mean is not None and shards.std is not None:
        mean, std = (" ".join(f"{value:.4f}" for value in values) for values in (shards.mean, shards.std))
        lines.append(f"mean {mean}, deviation {std}")
    if changed is not None:
        lines.append(f"changed while sharding: {_counts(changed)}")
    return listed("Images", [*map(whole, lines), f"verified: {shards.verify}"])


def _left_out(shards: ShardManifest) -> Block:
    rejected, ignored = shards.count_rejected, shards.count_ignored
    if not rejected and not ignored:
        return Block("Left out", ["Nothing."])
    said = f"{several(rejected, 'file')} rejected by content, {several(ignored, 'file')} ignored by name."
    rows = [(code(entry.path), entry.reason) for entry in shards.rejected[:MAX_FILES]]
    known = len(shards.rejected) if shards.num_rejected is not None else rejected
    has = f"{show_count(known)} of them" if known < rejected else "all"
    notes = [f"The first {len(rows)}; the manifest has {has}."] if rejected > len(rows) > 0 else []
    return Block("Left out", [said], ("file", "reason") if rows else (), 2, first(rows), notes)


def _counts(found: Mapping[str, int]) -> str:
    """Return numbers of images by what they are, the most frequent first where not all are shown."""
    entries = list(found.items())
    if len(entries) > MAX_INLINE:
        entries.sort(key=lambda entry: -entry[1])
    words = ", ".join(f"{name} {show_count(images)}" for name, images in entries[:MAX_INLINE]) or "none"
    more = len(entries) - MAX_INLINE
    return f"{words}, and {show_count(more)} more" if more > 0 else words
