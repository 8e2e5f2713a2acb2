"""What is in a run's shards, from their manifest alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

from contracts.artifacts import FieldEntry, ShardManifest, SplitEntry
from contracts.artifacts.shard_table import shard_numbers
from contracts.config import CLASS_KINDS, SPLITS
from inspection.run.view import ColumnView, DataView, ShardView, SplitView

# Of long lists, what a page can show; counts are always of all.
MOST_CLASSES = 2000
MOST_REJECTED = 200
MOST_REASONS = 30
MOST_SIZES = 2000
MOST_COLUMNS = 500
MOST_WARNINGS = 50
_NAME, _WARNING = 200, 2000
# No field has 2**64 bytes.
_MOST_BITS, _MOST_FIELDS = 64, 64

T = TypeVar("T")


def describe_data(uri: str, manifest: ShardManifest, *, searched: bool = True) -> DataView:
    """Return what shards hold.

    Args:
        uri: Their folder.
        manifest: Their manifest.
        searched: Whether the configuration asks for copies to be found (sharding.duplicates); shards that others wrote
            were never searched.
    """
    places = _largest(manifest)
    images, copies = manifest.images, manifest.duplicates
    columns = list_columns(manifest)
    return DataView(
        uri=uri,
        format=manifest.format,
        generation=manifest.generation,
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
        duplicate_groups=copies.groups if copies else None,
        duplicate_copies=copies.copies if copies else None,
        leaking_groups=copies.leaking_groups if copies else None,
        duplicates_searched=copies is not None or (searched and "listing" in manifest.made_from),
        mean=manifest.mean,
        std=manifest.std,
        warnings=[warning[:_WARNING] for warning in manifest.warnings[:MOST_WARNINGS]],
        lengths={
            name: entry.lengths[:_MOST_BITS]
            for name, entry in list(manifest.sample_fields.items())[:_MOST_FIELDS]
            if entry.kind == "text" and entry.lengths
        },
        columns=columns[:MOST_COLUMNS],
        num_columns=len(columns),
        has_images=manifest.image_field is not None,
    )


def list_columns(manifest: ShardManifest) -> list[ColumnView]:
    """Return the columns of samples with named fields, in the order of the fields; of other samples none.

    Args:
        manifest: Of their shards.
    """
    fields = manifest.sample_fields.items() if manifest.fields else ()
    return [column for name, entry in fields for column in _columns(name[:_NAME], entry)]


def _columns(name: str, entry: FieldEntry) -> Iterator[ColumnView]:
    """Yield a field's columns: of numbers one for each, of other kinds one."""
    for own in entry.statistics:
        yield ColumnView(
            name=own.name[:_NAME],
            field=name,
            kind=entry.kind,
            mean=own.mean,
            std=own.std,
            least=own.least,
            most=own.most,
            missing=own.missing,
        )
    if not entry.statistics:
        counted = {"category": len(entry.vocabulary)} | dict.fromkeys(CLASS_KINDS, len(entry.classes))
        yield ColumnView(
            name=(entry.columns[0] if len(entry.columns) == 1 else name)[:_NAME],
            field=name,
            kind=entry.kind,
            missing=entry.missing.get("train"),
            categories=counted.get(entry.kind),
            unseen={split: entry.unseen[split] for split in SPLITS if split in entry.unseen},
        )


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
    own = [shard for shard in shard_numbers(manifest.shards) if shard.split == split]
    return ShardView(
        split=split,
        shards=len(own),
        samples=sum(shard.samples for shard in own),
        bytes=sum(shard.bytes for shard in own),
        sizes=evenly([shard.bytes for shard in own], MOST_SIZES),
    )
