"""What is in a run's shards, from their manifest alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

from contracts.artifacts import ShardManifest, SplitEntry
from contracts.config import SPLITS
from inspection.attempts import Events
from inspection.run.view import DataView, ShardView, SplitView

# Of long lists, what a page can show; counts are always of all.
MOST_CLASSES = 2000
MOST_REJECTED = 200
MOST_REASONS = 30
MOST_SIZES = 2000
MOST_WARNINGS = 50
_NAME, _WARNING = 200, 2000

T = TypeVar("T")


def describe_data(uri: str, manifest: ShardManifest) -> DataView:
    """Return what shards hold.

    Args:
        uri: Their folder.
        manifest: Their manifest.
    """
    places = _largest(manifest)
    images, copies = manifest.images, manifest.duplicates
    return DataView(
        uri=uri,
        format=manifest.format,
        is_increment=manifest.parent is not None,
        classes=[manifest.classes[place][:_NAME] for place in places],
        num_classes=len(manifest.classes),
        splits=[
            SplitView(
                name=name,
                samples=split.samples,
                source_bytes=split.source_bytes,
                by_class=[split.samples_by_class[p] if p < len(split.samples_by_class) else 0 for p in places],
            )
            for name, split in _in_order(manifest)
        ],
        shards=[_shards(manifest, name) for name, _ in _in_order(manifest)],
        num_rejected=manifest.count_rejected,
        rejected=[
            entry.model_copy(update={"path": entry.path[: 2 * _NAME], "reason": entry.reason[: 2 * _NAME]})
            for entry in manifest.rejected[:MOST_REJECTED]
        ],
        rejected_by_reason=dict(Counter(entry.reason[:_NAME] for entry in manifest.rejected).most_common(MOST_REASONS)),
        num_ignored=manifest.count_ignored,
        formats=images.formats if images else {},
        width=images.width if images else None,
        height=images.height if images else None,
        duplicate_groups=copies.groups if copies and copies.groups else None,
        duplicate_copies=copies.copies if copies and copies.groups else None,
        leaking_groups=copies.leaking_groups if copies and copies.groups else None,
        duplicates_searched=copies is not None,
        mean=manifest.mean,
        std=manifest.std,
        warnings=[warning[:_WARNING] for warning in manifest.warnings[:MOST_WARNINGS]],
        has_images=manifest.image_field is not None,
    )


def with_comparison(data: DataView, attempts: Mapping[str, Events]) -> DataView:
    """Return what shards hold with the comparison that the run's shard stage has made with the run before.

    Args:
        data: Of the shards.
        attempts: Events of the stage, by attempt.
    """
    found = [event for events in attempts.values() for event in events if event["event"] == "compared"]
    if not found:
        return data
    last = max(found, key=lambda event: float(event["time"]))
    warnings = last.get("warnings")
    more = [str(warning)[:_WARNING] for warning in warnings] if isinstance(warnings, list) else []
    summary = str(last.get("summary", ""))[:_WARNING]
    return data.model_copy(update={"compared": summary, "warnings": [*data.warnings, *more]})


def _in_order(manifest: ShardManifest) -> list[tuple[str, SplitEntry]]:
    """Return the splits as everybody names them: a document has them sorted by name."""
    return [(name, manifest.splits[name]) for name in SPLITS]


def evenly(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` items, evenly chosen, the first and the last among them."""
    if len(items) <= most or most < 2:
        return list(items[:most])
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def _largest(manifest: ShardManifest) -> list[int]:
    """Return the places of the classes to list, in their order: of very many those with most samples."""
    places = list(range(len(manifest.classes)))
    if len(places) <= MOST_CLASSES:
        return places
    totals = [0] * len(places)
    for split in manifest.splits.values():
        for place, samples in enumerate(split.samples_by_class[: len(places)]):
            totals[place] += samples
    return sorted(sorted(places, key=lambda place: -totals[place])[:MOST_CLASSES])


def _shards(manifest: ShardManifest, split: str) -> ShardView:
    shards = manifest.shards
    own = shards.numbers_of(split)
    sizes = [shards.bytes[number] for number in own]
    return ShardView(
        split=split,
        shards=len(own),
        samples=sum(shards.samples[number] for number in own),
        bytes=sum(sizes),
        sizes=evenly(sizes, MOST_SIZES),
    )
