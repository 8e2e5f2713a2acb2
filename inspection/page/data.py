"""The shards: samples by split and class, sizes of shards, what was left out, and images."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from inspection.page.links import make_link
from inspection.page.subject import Limits, Subject, left_out
from inspection.run.view import DataView, PictureView, ShardView, shows_samples
from inspection.tasks.pictures import file_uri
from pages.chart import bars
from pages.markup import Html, shorten
from pages.parts import (
    Cell,
    Figure,
    Fold,
    Link,
    Pairs,
    Part,
    Piece,
    Pieces,
    Sheet,
    Strips,
    Table,
    Text,
    Tile,
    Tiles,
    Title,
    Words,
    absent,
    note,
    section,
)
from pages.quantities import count, number, percent, several, size
from pages.run.picture import Picture, make_picture

TITLE = "Data"
_MOST_OF_CELL = 600
MOST_SPLITS = 6
"""There are three; a document from elsewhere may have any number."""


def data(subject: Subject) -> Html:
    """Return the section on the data."""
    found = subject.view.data
    if found is None:
        return section("data", TITLE, absent("data", subject.why_absent("shard", "The data")))
    return section("data", TITLE, *_parts(subject, found))


def _parts(subject: Subject, found: DataView) -> Iterator[Part | None]:
    yield _tiles(found)
    if found.compared:
        yield Text(found.compared, "calm")
    yield Title("Samples by class")
    yield from _classes(subject, found)
    yield from _samples(subject)
    if strips := [_strip(subject, each) for each in found.shards[:MOST_SPLITS] if each.shards]:
        yield Title("Sizes of shards")
        yield Strips(strips, "shard-sizes")
    if found.num_rejected:
        yield Title("Rejected files")
        yield from _rejected(subject, found)
    if about := _images(found):
        yield Title("Images")
        yield Pairs(about)


def _tiles(found: DataView) -> Tiles:
    splits = " · ".join(f"{split.name} {count(split.samples)}" for split in found.splits[:MOST_SPLITS])
    samples, bytes_ = sum(split.samples for split in found.splits), sum(each.bytes for each in found.shards)
    increments = ", an increment" if found.is_increment else ""
    none = "none found" if found.duplicates_searched else "not searched"
    unread = "that could not be read as images" if found.has_images else "by their content"
    same = "with the same bytes as another" if found.has_images else "with the content of another, whatever the label"

    def tile(title: str, name: str, value: int | None, about: str = "", missing: str = "", style: str = "") -> Tile:
        return Tile(title, Figure(f"data.{name}", value, "count", missing), about, style)

    return Tiles(
        [
            tile("Samples", "samples", samples, splits),
            *([tile("Classes", "classes", found.num_classes)] if found.num_classes else []),
            tile(
                "Shards",
                "shards",
                sum(each.shards for each in found.shards),
                f"{found.format}, {size(bytes_)}{increments}",
            ),
            tile(
                "Rejected files",
                "rejected",
                found.num_rejected,
                f"and {count(found.num_ignored)} ignored by their names" if found.num_ignored else unread,
            ),
            tile(
                f"Copies of {'images' if found.has_images else 'samples'}",
                "copies",
                found.duplicate_copies,
                same,
                none,
            ),
            tile(
                "Leaks",
                "leaks",
                found.leaking_groups,
                "groups of copies in several splits",
                none,
                "alarm" if found.leaking_groups else "",
            ),
        ]
    )


def _samples(subject: Subject) -> Iterator[Part | None]:
    """Yield sample images, and the first training samples as the network got them."""
    view, limits = subject.view, subject.limits
    if view.config and not shows_samples(view.config):
        yield Text("Samples are hidden (inspect.samples).", "note", "data.hidden")
    elif view.pictures:
        listed = view.pictures[: limits.pictures]
        splits = {each.split for each in listed}
        several_splits, where = len(splits) > 1, f" of the {shorten(listed[0].split, 20)} split"
        sheet = [
            (picture(each), shorten(each.label, 40), shorten(each.split, 20) if several_splits else "")
            for each in listed
        ]
        more = left_out(len(listed), len(view.pictures), "pictures")
        yield Title("Sample images")
        yield Sheet(sheet, "sheet")
        yield Text(f"From the shards{'' if several_splits else where}, made small. {more}", "note")
    # A page that is too large goes without.
    if limits.pictures < Limits().pictures:
        return
    if (slot := view.first_slot) is not None:
        words = "First training samples as the network gets them"
        drawn = make_picture(slot.jpeg, (slot.width, slot.height), label="", title=words, width=slot.width)
        yield Title("As the network sees them")
        yield Sheet([(replace(drawn, alt=words), "", "")], "first-slot")
        yield Text(
            "The first training samples of step 1: decoded, augmented, mixed and normalised as configured, drawn with "
            "the normalisation taken back; under each its label.",
            "note",
        )


def _images(found: DataView) -> list[tuple[str, Cell]]:
    formats = ", ".join(f"{shorten(name, 20)} {count(images)}" for name, images in list(found.formats.items())[:12])
    about: list[tuple[str, Cell]] = [("Formats", formats)] if formats else []
    for name, span in (("Width", found.width), ("Height", found.height)):
        about += [(name, f"{count(span[0])} to {count(span[-1])} pixels")] if span else []
    for name, values in (("Mean", found.mean), ("Standard deviation", found.std)):
        shown = " · ".join(map(number, values or ()))
        about += [(name, f"{shown} (red, green, blue, of 1)")] if values else []
    return about


def _classes(subject: Subject, found: DataView) -> Iterator[Part | None]:
    if not found.num_classes:
        yield Text("No field of the samples is of classes.", "block")
        return
    if not found.classes:
        yield Text("The classes could not be read.", "missing block")
        return
    splits = found.splits[:MOST_SPLITS]
    totals = [sum(at(split.by_class, place) for split in found.splits) for place in range(len(found.classes))]
    most = max(totals, default=0) or 1
    places, note_ = list(range(len(found.classes))), ""
    limit = subject.limits.classes
    if len(places) > limit:
        places.sort(key=lambda place: (-totals[place], place))
        ends = max(1, limit // 2)
        places = places[:ends] + places[-ends:]
        note_ = f"Of {found.num_classes:,} classes the {ends} with most samples and the {ends} with fewest are shown."
        if found.num_classes > len(found.classes):
            note_ = (
                f"Of {found.num_classes:,} classes the {len(found.classes):,} with most samples are known here; of "
                f"them the {ends} first and the {ends} last are shown."
            )

    def row(place: int) -> tuple[Cell, ...]:
        counts = [at(split.by_class, place) for split in splits]
        pieces = [Piece("", f"p{order % 4}", value / most, "") for order, value in enumerate(counts)]
        return (
            subject.name(found.classes[place]),
            *(
                Figure(f"data.{split.name}.{place}", value, "count")
                for split, value in zip(splits, counts, strict=True)
            ),
            Figure(f"data.class.{place}", totals[place], "count"),
            Pieces(pieces),
        )

    whole = sum(split.samples for split in found.splits)
    last = [Figure(f"data.{split.name}", split.samples, "count") for split in splits]
    heads: list[Cell] = [Words(split.name, swatch=f"p{order % 4}") for order, split in enumerate(splits)]
    yield Table(
        "classes",
        "Samples of each class, by split",
        ("Class", *heads, "all splits", "to scale"),
        [*map(row, places), (Words("all", style="strong"), *last, Figure("data.all", whole, "count"), "")],
    )
    yield note(note_)


def at(values: list[int], place: int) -> int:
    """Return a class's count; a split of another manifest may have fewer classes."""
    return values[place] if place < len(values) else 0


def picture(found: PictureView, width: int = 72) -> Picture:
    """Return an image of a run."""
    title = f"{found.label}, {found.split}, {found.key}"
    return make_picture(found.jpeg, (found.width, found.height), label=found.label, title=title, width=width)


def file_link(subject: Subject, path: str) -> Link | None:
    """Return a link to a file of the source, by its path there; None: the path is not known."""
    if not path:
        return None
    uri = file_uri(subject.view.config, path)
    return make_link(subject.href, uri, shorten(path, 200)) if uri else Link(shorten(path, 200))


def _strip(subject: Subject, shards: ShardView) -> tuple[str, str, str]:
    sizes, limit = shards.sizes, subject.limits.shards
    stretch = -(-len(sizes) // limit) if sizes else 1
    heights = [max(sizes[start : start + stretch]) for start in range(0, len(sizes), stretch)]
    words = f"{several(shards.shards, 'shard')}, {size(shards.bytes)}"
    if len(sizes) > 1:
        words += f"; smallest {size(min(sizes))}, median {size(median(sizes))}, largest {size(max(sizes))}"
    if stretch > 1 or len(sizes) < shards.shards:
        stand = f"{count(len(heights))} bars stand for {count(shards.shards)} shards"
        words += f". {stand}, the largest of each stretch."
    return shards.split, words, bars(heights)


def _rejected(subject: Subject, found: DataView) -> Iterator[Part]:
    kinds: Counter[str] = Counter()
    for reason, files in found.rejected_by_reason.items():
        kinds[kind_of(reason)] += files
    limit = subject.limits.rows
    listed = kinds.most_common(limit)
    other = found.num_rejected - sum(kinds.values())
    rarer = f"{other:,} files were rejected for reasons that are rarer still." if other > 0 else ""
    reasons: list[tuple[Cell, ...]] = [
        (subject.name(kind), Figure(f"data.rejected.{place}", files, "count"), percent(files / found.num_rejected))
        for place, (kind, files) in enumerate(listed)
    ]
    yield Table(
        "rejected-reasons",
        "Files that were left out of the shards, by reason",
        ("Reason", "Files", "Share"),
        reasons,
        note=" ".join(words for words in (left_out(len(listed), len(kinds), "reasons"), rarer) if words),
    )
    first = found.rejected[:limit]
    paths = [(Words(subject.name(each.path), style="code"), subject.name(each.reason)) for each in first]
    table = Table(
        "rejected",
        "Files that were rejected, by their path in the source",
        ("File", "Reason"),
        paths,
        2,
        left_out(len(first), found.num_rejected, "files"),
    )
    yield Fold(f"The first {count(len(first))} of them", [table], "rejected-files")


def kind_of(reason: str) -> str:
    """Return a reason without what differs from file to file: numbers, and what is quoted."""
    return re.sub(r"'[^']*'|\"[^\"]*\"", "…", re.sub(r"\d+", "N", reason[:500]))
