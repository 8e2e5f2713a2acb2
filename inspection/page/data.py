"""The shards: samples by split and class, columns, sizes of shards, what was left out, images and lengths of texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from statistics import median

from contracts.config import SPLITS
from inspection.page.links import make_link
from inspection.page.subject import Limits, Subject, left_out
from inspection.run.view import ColumnView, DataView, PictureView, ShardView, shows_samples
from inspection.tasks.pictures import file_uri
from pages.chart import bars
from pages.links import Link
from pages.markup import Html, shorten
from pages.rendering import render
from pages.run import data as shown
from pages.run.absent import AbsentSection
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
        return render(AbsentSection("data", TITLE, subject.why_absent("shard", "The data")))
    is_hidden = bool(subject.view.config) and not shows_samples(subject.view.config)
    return render(
        shown.DataSection(
            title=TITLE,
            samples=sum(split.samples for split in found.splits),
            splits=tuple((split.name, split.samples) for split in found.splits[:MOST_SPLITS]),
            num_classes=found.num_classes,
            shards=sum(each.shards for each in found.shards),
            shard_format=found.format,
            shard_bytes=sum(each.bytes for each in found.shards),
            increments=found.generation,
            rejected=found.num_rejected,
            ignored=found.num_ignored,
            copies=found.duplicate_copies,
            leaks=found.leaking_groups,
            copies_searched=found.duplicates_searched,
            has_images=found.has_images,
            classes=_classes(subject, found) if found.num_classes else None,
            columns=_columns(subject, found) if found.columns else None,
            changes=_changes(subject),
            samples_hidden=is_hidden,
            sheet=_sheet(subject) if subject.view.pictures else None,
            first_slot=_first_slot(subject),
            first_rows=_first_rows(subject),
            strips=tuple(_strip(subject, each) for each in found.shards[:MOST_SPLITS] if each.shards),
            rejected_files=_rejected(subject, found) if found.num_rejected else None,
            formats=tuple((shorten(name, 20), images) for name, images in list(found.formats.items())[:12]),
            spans=tuple(
                (name, span[0], span[-1]) for name, span in (("Width", found.width), ("Height", found.height)) if span
            ),
            channels=tuple(
                (name, tuple(values))
                for name, values in (("Mean", found.mean), ("Standard deviation", found.std))
                if values
            ),
            lengths=tuple(_lengths(name, counts) for name, counts in found.lengths.items()),
        )
    )


def _columns(subject: Subject, found: DataView) -> shown.Columns:
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
    return shown.Columns(
        heads=tuple((title, key, unit) for title, key, unit, _ in told),
        rows=tuple(
            (subject.name(one.name), subject.name(one.field), one.kind, tuple(value(one) for *_, value in told))
            for one in listed
        ),
        left_out=left_out(len(listed), found.num_columns, "columns"),
    )


def _changes(subject: Subject) -> tuple[shown.Changes, ...]:
    report, limit = subject.view.data_report, subject.limits.rows

    def spread(values: list[float] | None) -> tuple[float, float, float] | None:
        return (values[1], values[3], values[5]) if values is not None and len(values) == len(_QUANTILES) else None

    def named(found: dict[str, list[str]]) -> tuple[tuple[str, str], ...]:
        listed = list(found.items())[:limit]
        return tuple((subject.name(name), subject.reason(", ".join(names))) for name, names in listed)

    return tuple(
        shown.Changes(
            subject.name(one.of),
            subject.reason(one.not_compared),
            one.same,
            tuple(
                shown.FieldChange(
                    subject.name(field.name),
                    field.verdict,
                    subject.reason("; ".join(field.said)),
                    field.missing,
                    spread(field.quantiles),
                    spread(field.earlier),
                    field.excess,
                    field.p,
                )
                for field in one.fields[:limit]
            ),
            named(one.new_classes),
            named(one.vanished_classes),
            one.moved,
            left_out(min(limit, len(one.fields)), len(one.fields), "fields"),
        )
        for one in (report.comparisons[:MOST_COMPARED] if report is not None else ())
    )


def _classes(subject: Subject, found: DataView) -> shown.Classes:
    splits = found.splits[:MOST_SPLITS]
    totals = [sum(at(split.by_class, place) for split in found.splits) for place in range(len(found.classes))]
    most = max(totals, default=0) or 1
    places, note = list(range(len(found.classes))), ""
    limit = subject.limits.classes
    if len(places) > limit:
        places.sort(key=lambda place: (-totals[place], place))
        ends = max(1, limit // 2)
        places = places[:ends] + places[-ends:]
        note = f"Of {found.num_classes:,} classes the {ends} with most samples and the {ends} with fewest are shown."
        if found.num_classes > len(found.classes):
            note = (
                f"Of {found.num_classes:,} classes the {len(found.classes):,} with most samples are known here; of "
                f"them the {ends} first and the {ends} last are shown."
            )

    def row(place: int) -> shown.ClassRow:
        counts = tuple(at(split.by_class, place) for split in splits)
        shares = tuple(count / most for count in counts)
        return shown.ClassRow(place, subject.name(found.classes[place]), counts, totals[place], shares)

    return shown.Classes(tuple(map(row, places)), note)


def at(values: list[int], place: int) -> int:
    """Return a class's count; a split of another manifest may have fewer classes."""
    return values[place] if place < len(values) else 0


def _sheet(subject: Subject) -> shown.Sheet:
    listed = subject.view.pictures[: subject.limits.pictures]
    splits = {each.split for each in listed}
    several = len(splits) > 1
    return shown.Sheet(
        tuple((picture(each), shorten(each.label, 40), shorten(each.split, 20) if several else "") for each in listed),
        "" if several else shorten(listed[0].split, 20),
        left_out(len(listed), len(subject.view.pictures), "pictures"),
    )


def _first_slot(subject: Subject) -> Picture | None:
    found = subject.view.first_slot
    # A page that is too large goes without.
    if found is None or subject.limits.pictures < Limits().pictures:
        return None
    words = "First training samples as the network gets them"
    size = (found.width, found.height)
    return replace(make_picture(found.jpeg, size, label="", title=words, width=found.width), alt=words)


def _first_rows(subject: Subject) -> shown.FirstRows | None:
    found = subject.view.first_rows
    if found is None or subject.limits.pictures < Limits().pictures:
        return None
    columns = tuple(subject.name(column) for column in found.columns)
    rows = tuple(tuple(shorten(cell, _MOST_OF_CELL) for cell in row) for row in found.rows)
    return shown.FirstRows(columns, rows)


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


def _strip(subject: Subject, shards: ShardView) -> shown.Strip:
    sizes, limit = shards.sizes, subject.limits.shards
    stretch = -(-len(sizes) // limit) if sizes else 1
    heights = [max(sizes[start : start + stretch]) for start in range(0, len(sizes), stretch)]
    return shown.Strip(
        shards.split,
        shards.shards,
        shards.bytes,
        (min(sizes), median(sizes), max(sizes)) if len(sizes) > 1 else None,
        len(heights) if stretch > 1 or len(sizes) < shards.shards else 0,
        bars(heights),
    )


def _rejected(subject: Subject, found: DataView) -> shown.RejectedFiles:
    kinds: Counter[str] = Counter()
    for reason, files in found.rejected_by_reason.items():
        kinds[kind_of(reason)] += files
    limit = subject.limits.rows
    listed = kinds.most_common(limit)
    other = found.num_rejected - sum(kinds.values())
    rarer = f"{other:,} files were rejected for reasons that are rarer still." if other > 0 else ""
    first = found.rejected[:limit]
    return shown.RejectedFiles(
        tuple((subject.name(kind), files, files / found.num_rejected) for kind, files in listed),
        " ".join(words for words in (left_out(len(listed), len(kinds), "reasons"), rarer) if words),
        tuple((subject.name(each.path), subject.name(each.reason)) for each in first),
        left_out(len(first), found.num_rejected, "files"),
    )


def kind_of(reason: str) -> str:
    """Return a reason without what differs from file to file: numbers, and what is quoted."""
    return re.sub(r"'[^']*'|\"[^\"]*\"", "…", re.sub(r"\d+", "N", reason[:500]))


def _lengths(name: str, counts: list[int]) -> shown.Lengths:
    """Return samples by the length of a text: each row holds lengths up to twice those of the one before."""
    most = max(counts, default=0) or 1
    first = next((bits for bits, samples in enumerate(counts) if samples), 0)
    return shown.Lengths(
        name,
        tuple(
            (bits, 1 << bits >> 1, (1 << bits) - 1, counts[bits], counts[bits] / most)
            for bits in range(first, len(counts))
        ),
    )
