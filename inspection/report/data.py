"""Section on the shards: samples by split and class, rejected files, and copies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from contracts.artifacts import ShardManifest
from contracts.config import SPLITS
from inspection.pages.parts import Cell, Figure, Notice, Part, Table, Text, Tiles, note, section
from inspection.pages.quantities import count, percent, several, size
from inspection.pages.rendering import Html
from inspection.report.context import Context, omitted


def data(context: Context) -> Html:
    """Return the section."""
    shards = context.view.shards
    if shards is None:
        return section("data", "Data", context.why_absent("data", "shard", "The data"))
    return section("data", "Data", *_parts(context, shards))


def _parts(context: Context, shards: ShardManifest) -> Iterator[Part | None]:
    yield _tiles(shards)
    yield note(context.message(context.view.data_change))
    if shards.classes:
        yield _classes(context, shards)
    else:
        yield note("No field of the samples is a class.")
    if shards.rejected:
        yield from _rejected(context, shards)


def _tiles(shards: ShardManifest) -> Tiles:
    splits, copies = shards.splits, shards.duplicates
    has_images = shards.image_field is not None
    sizes = shards.shards.bytes
    by_split = ", ".join(f"{name} {count(splits[name].samples)}" for name in SPLITS)
    packed = f"{shards.format}, {size(sum(sizes))}{', an increment' if shards.parent else ''}"
    ignored = f"{count(shards.count_ignored)} more ignored by their names" if shards.count_ignored else ""
    leaking = f"{several(copies.leaking_groups, 'group')} in several splits" if copies else ""
    figures: list[tuple[str, str, int | None, str]] = [
        ("Samples", "samples", sum(split.samples for split in splits.values()), by_split),
        *([("Classes", "classes", len(shards.classes), "")] if shards.classes else []),
        ("Shards", "shards", len(sizes), packed),
        ("Rejected files", "rejected", shards.count_rejected, ignored),
        (f"Copies of {'images' if has_images else 'samples'}", "copies", copies.copies if copies else None, leaking),
    ]
    return Tiles(
        [
            (title, Figure(f"data.{name}", value, "count", "not searched"), remark)
            for title, name, value, remark in figures
        ]
    )


def _classes(context: Context, shards: ShardManifest) -> Table:
    splits, limit = [(name, shards.splits[name]) for name in SPLITS], context.limits.rows
    # A split may list fewer classes than the manifest.
    columns = [[*split.samples_by_class, *[0] * len(shards.classes)] for _, split in splits]
    totals = [sum(column[place] for column in columns) for place in range(len(shards.classes))]
    most, places, remark = max(totals, default=0) or 1, list(range(len(totals))), ""
    if len(places) > limit:
        places.sort(key=lambda place: (-totals[place], place))
        ends = max(1, limit // 2)
        places = places[:ends] + places[-ends:]
        remark = f"Of {len(totals):,} classes the {ends} with most samples and the {ends} with fewest are shown."
    rows: list[tuple[Cell, ...]] = [
        (
            context.name(shards.classes[place]),
            *(
                Figure(f"data.{name}.{place}", column[place], "count")
                for (name, _), column in zip(splits, columns, strict=True)
            ),
            Figure(f"data.class.{place}", totals[place], "count", bar=totals[place] / most),
        )
        for place in places
    ]
    head = ("Class", *(name for name, _ in splits), "all splits")
    return Table("classes", "Samples of each class, by split", head, rows, note=remark)


def _rejected(context: Context, shards: ShardManifest) -> Iterator[Part]:
    limit = context.limits.rows
    kinds = Counter(reason_kind(each.reason) for each in shards.rejected)
    listed = kinds.most_common(limit)
    rows: list[tuple[Cell, ...]] = [
        (context.name(kind), Figure(f"data.rejected.{place}", files, "count"), percent(files / len(shards.rejected)))
        for place, (kind, files) in enumerate(listed)
    ]
    # The manifest lists 10,000 files at most.
    more = [omitted(len(listed), len(kinds), "reasons"), omitted(len(shards.rejected), shards.count_rejected, "files")]
    yield Text("Rejected files", "title")
    yield Table("reasons", "Files by reason", ("Reason", "Files", "Share"), rows, note=" ".join(filter(None, more)))
    paths = [(Text(context.name(each.path), "code"), context.name(each.reason)) for each in shards.rejected[:limit]]
    remark = omitted(len(paths), shards.count_rejected, "files")
    table = Table("rejected", "By their path in the source", ("File", "Reason"), paths, 2, remark)
    yield Notice("fold", f"The first {count(len(paths))} of them", [table], "rejected-fold")


def reason_kind(reason: str) -> str:
    """Return a reason with numbers and quoted text replaced, to group files."""
    return re.sub(r"'[^']*'|\"[^\"]*\"", "…", re.sub(r"\d+", "N", reason[:500]))
