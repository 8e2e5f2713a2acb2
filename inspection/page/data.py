"""The shards: samples by split and class, columns, sizes of shards, what was left out, images and lengths of texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median

from contracts.artifacts.data_report import FieldReport
from contracts.config import SPLITS
from inspection.page.links import make_link
from inspection.page.subject import NO_VALUE, Limits, Subject, left_out
from inspection.run.view import ColumnView, DataView, PictureView, ShardView, shows_samples
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
MOST_COMPARED = 4
# Of FieldReport: least, 5, 25, 50, 75, 95 % and most.
_QUANTILES = range(7)
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
    yield Title("Samples by class")
    yield from _classes(subject, found)
    yield from _changes(subject)
    if found.columns:
        yield Title("Columns")
        yield _columns(subject, found)
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
    for name, lengths in found.lengths.items():
        yield Title(f"Lengths of {name}")
        yield _lengths(name, lengths)


def _tiles(found: DataView) -> Tiles:
    splits = " · ".join(f"{split.name} {count(split.samples)}" for split in found.splits[:MOST_SPLITS])
    samples, bytes_ = sum(split.samples for split in found.splits), sum(each.bytes for each in found.shards)
    increments = f", {several(found.generation, 'increment')}" if found.generation else ""
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
                "groups of copies in more than one split",
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
    if (first := view.first_rows) is not None:
        head = [subject.name(column) for column in first.columns]
        rows = [tuple(shorten(cell, _MOST_OF_CELL) for cell in row) for row in first.rows]
        yield Title("As the network sees them")
        yield Table("first-rows", "First training samples as the network gets them", head, rows, len(head))
        yield Text("The first training samples of step 1, after the task's own preparation.", "note")


def _images(found: DataView) -> list[tuple[str, Cell]]:
    formats = ", ".join(f"{shorten(name, 20)} {count(images)}" for name, images in list(found.formats.items())[:12])
    about: list[tuple[str, Cell]] = [("Formats", formats)] if formats else []
    for name, span in (("Width", found.width), ("Height", found.height)):
        about += [(name, f"{count(span[0])} to {count(span[-1])} pixels")] if span else []
    for name, values in (("Mean", found.mean), ("Standard deviation", found.std)):
        shown = " · ".join(map(number, values or ()))
        about += [(name, f"{shown} (red, green, blue, of 1)")] if values else []
    return about


def _columns(subject: Subject, found: DataView) -> Table:
    """Return the columns of samples with named fields; figures that no column has are left out."""
    listed = found.columns[: subject.limits.rows]
    unseen = [split for split in SPLITS if any(split in one.unseen for one in listed)]
    figures: list[tuple[str, str, str, Callable[[ColumnView], float | None]]] = [
        ("Mean", "mean", "number", lambda one: one.mean),
        ("Deviation", "std", "number", lambda one: one.std),
        ("Minimum", "least", "number", lambda one: one.least),
        ("Maximum", "most", "number", lambda one: one.most),
        ("Missing", "missing", "count", lambda one: one.missing),
        ("Categories", "categories", "count", lambda one: one.categories),
        *(
            (f"Unseen in {split}", f"unseen.{split}", "count", lambda one, split=split: one.unseen.get(split))
            for split in unseen
            # A training split has no value that its vocabulary lacks, unless an increment has added it.
            if split != "train" or any(one.unseen.get(split) for one in listed)
        ),
    ]
    told = [each for each in figures if any(each[3](one) is not None for one in listed)]
    rows: list[tuple[Cell, ...]] = [
        (
            subject.name(one.name),
            subject.name(one.field),
            one.kind,
            *(Figure(f"data.columns.{place}.{key}", value(one), unit, NO_VALUE) for _, key, unit, value in told),
        )
        for place, one in enumerate(listed)
    ]
    return Table(
        "columns",
        "Columns of the source: values and categories of the training split, its samples that miss a value, and "
        "samples of the others whose category it lacks",
        ("Column", "Field", "Kind", *(title for title, *_ in told)),
        rows,
        3,
        left_out(len(listed), found.num_columns, "columns"),
    )


def _changes(subject: Subject) -> Iterator[Part]:
    """Yield the training data beside that of earlier runs."""
    report, limit = subject.view.data_report, subject.limits.rows
    for place, one in enumerate(report.comparisons[:MOST_COMPARED] if report is not None else ()):
        key, of = f"data.changes.{place}", subject.name(one.of)
        yield Title(f"Compared with {of}")
        if one.not_compared:
            yield Text(f"Not compared: {subject.reason(one.not_compared)}", "missing block", f"{key}.not")
            continue
        if one.same:
            yield Text("The same shards.", "block", f"{key}.same")
            continue
        for what, found in (("New", one.new_classes), ("Vanished", one.vanished_classes)):
            for name, names in list(found.items())[:limit]:
                field, listed = subject.name(name), subject.reason(", ".join(names))
                yield Text(f"{what} in {field}: {listed}", "block", f"{key}.{what.lower()}.{field}")
        if one.moved:
            words = f"{several(one.moved, 'sample')} in another split than before"
            yield Text(words, "block bad", data={"figure": f"{key}.moved"})
        yield Table(
            f"changes-{place}",
            f"Training samples, field by field, beside those of {of}: 5, 50 and 95 % of the values. Excess PSI above "
            "0.1 with p below 0.001 is a change (docs/retraining.md).",
            ("Field", "Verdict", "Before", "Now", "Missing", "Excess PSI", "p"),
            [_change(subject, f"{key}.{subject.name(field.name)}", field) for field in one.fields[:limit]],
            2,
            left_out(min(limit, len(one.fields)), len(one.fields), "fields"),
        )


def _change(subject: Subject, key: str, field: FieldReport) -> tuple[Cell, ...]:
    def spread(values: list[float] | None) -> str:
        known = values is not None and len(values) == len(_QUANTILES)
        return " · ".join(number(values[place]) for place in (1, 3, 5)) if known and values is not None else NO_VALUE

    styles = {"fail": "bad", "warn": "warning"}
    return (
        subject.name(field.name),
        Words(field.verdict, subject.reason("; ".join(field.said)), styles.get(field.verdict, "")),
        spread(field.earlier),
        spread(field.quantiles),
        percent(field.missing),
        Figure(f"{key}.excess", field.excess, "number", "not judged"),
        number(field.p) if field.p is not None else NO_VALUE,
    )


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


def _lengths(name: str, counts: list[int]) -> Table:
    """Return samples by the length of a text: each row holds lengths up to twice those of the one before."""
    most = max(counts, default=0) or 1
    first = next((bits for bits, samples in enumerate(counts) if samples), 0)
    rows: list[tuple[Cell, ...]] = []
    for bits in range(first, len(counts)):
        least, longest, key = 1 << bits >> 1, (1 << bits) - 1, f"data.lengths.{name}.{bits}"
        span = f"{count(least)} to {count(longest)}" if least < longest else count(least)
        rows.append((span, Figure(key, counts[bits], "count", bar=counts[bits] / most)))
    return Table(f"lengths-{name}", f"Samples of all splits by the length of {name}", ("Bytes", "Samples"), rows)
