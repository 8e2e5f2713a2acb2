"""The shards: samples by split and class, columns, sizes of shards, what was left out, images and lengths of texts."""

from __future__ import annotations

import base64
import binascii
import re
from collections import Counter
from collections.abc import Callable
from statistics import median

from contracts.config import SPLITS
from inspection.page.chart import bars
from inspection.page.subject import NO_VALUE, Subject, left_out, tile
from inspection.run.view import ColumnView, DataView, PictureView, ShardView, shows_samples
from pages.markup import Html, bar, element, figure, join, section, shorten, table
from pages.quantities import count, number, percent, several, size

TITLE = "Data"
MOST_SPLITS = 6
"""There are three; a document from elsewhere may have any number."""


def data(subject: Subject) -> Html:
    """Return the section on the data."""
    found = subject.view.data
    if found is None:
        return section("data", TITLE, subject.absent("data", "shard", "The data"))
    return section(
        "data",
        TITLE,
        _tiles(found),
        element("h3", "Samples by class"),
        _classes(subject, found),
        _columns(subject, found),
        _sheet(subject),
        _shards(subject, found),
        _rejected(subject, found),
        _images(found),
        *(_lengths(name, counts) for name, counts in found.lengths.items()),
    )


def _tiles(found: DataView) -> Html:
    samples = sum(split.samples for split in found.splits)
    by_split = " · ".join(f"{split.name} {split.samples:,}" for split in found.splits[:MOST_SPLITS])
    shards, size_b = sum(each.shards for each in found.shards), sum(each.bytes for each in found.shards)
    copies, leaks = found.duplicate_copies, found.leaking_groups
    none = "none found" if found.duplicates_searched else "not searched"
    increments = f", {several(found.generation, 'increment')}" if found.generation else ""
    tiles = [
        tile("Samples", figure("data.samples", samples, count), by_split),
        *([tile("Classes", figure("data.classes", found.num_classes, count))] if found.num_classes else ()),
        tile("Shards", figure("data.shards", shards, count), f"{found.format}, {size(size_b)}{increments}"),
        tile("Rejected files", figure("data.rejected", found.num_rejected, count), _ignored(found)),
        tile(
            "Copies of images" if found.has_images else "Copies of samples",
            figure("data.copies", copies, count, none),
            "with the same bytes as another" if found.has_images else "with the content of another, whatever the label",
        ),
        tile(
            "Leaks",
            figure("data.leaks", leaks, count, none),
            "groups of copies in more than one split",
            kind="alarm" if leaks else "",
        ),
    ]
    return element("div", *tiles, class_="tiles")


def _ignored(found: DataView) -> str:
    if found.num_ignored:
        return f"and {found.num_ignored:,} ignored by their names"
    return "that could not be read as images" if found.has_images else "by their content"


def _columns(subject: Subject, found: DataView) -> Html:
    """Return the columns of samples with named fields; figures that no column has are left out."""
    if not found.columns:
        return Html("")
    shown = found.columns[: subject.limits.rows]
    unseen = [split for split in SPLITS if any(split in one.unseen for one in shown)]
    figures: list[tuple[str, str, Callable[[ColumnView], float | None], Callable[[float], str]]] = [
        ("Mean", "mean", lambda one: one.mean, number),
        ("Deviation", "std", lambda one: one.std, number),
        ("Least", "least", lambda one: one.least, number),
        ("Most", "most", lambda one: one.most, number),
        ("Missing", "missing", lambda one: one.missing, count),
        ("Categories", "categories", lambda one: one.categories, count),
        *(
            (f"Unseen in {split}", f"unseen.{split}", lambda one, split=split: one.unseen.get(split), count)
            for split in unseen
            # A training split has no value that its vocabulary lacks, unless an increment has added it.
            if split != "train" or any(one.unseen.get(split) for one in shown)
        ),
    ]
    told = [each for each in figures if any(each[2](one) is not None for one in shown)]
    rows = [
        [
            subject.name(one.name),
            subject.name(one.field),
            one.kind,
            *(figure(f"data.columns.{place}.{key}", value(one), said, NO_VALUE) for _, key, value, said in told),
        ]
        for place, one in enumerate(shown)
    ]
    caption = (
        "Columns of the source: values and categories of the training split, its samples that miss a value, and "
        "samples of the others whose category it lacks"
    )
    return join(
        [
            element("h3", "Columns"),
            table(
                caption,
                ["Column", "Field", "Kind", *(title for title, *_ in told)],
                rows,
                id_="columns",
                words=3,
                note=left_out(len(shown), found.num_columns, "columns"),
            ),
        ]
    )


def _classes(subject: Subject, found: DataView) -> Html:
    if not found.num_classes:
        return element("p", "No field of the samples is of classes.", class_="block")
    if not found.classes:
        return element("p", "The classes could not be read.", class_="missing block")
    splits = found.splits[:MOST_SPLITS]
    totals = [sum(at(split.by_class, place) for split in found.splits) for place in range(len(found.classes))]
    most = max(totals, default=0) or 1
    places = list(range(len(found.classes)))
    note = ""
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
    rows = [
        [
            element("span", subject.name(found.classes[place])),
            *(figure(f"data.{s.name}.{place}", at(s.by_class, place), count) for s in splits),
            figure(f"data.class.{place}", totals[place], count),
            _stacked([at(split.by_class, place) / most for split in splits]),
        ]
        for place in places
    ]
    rows.append(
        [
            element("strong", "all"),
            *(figure(f"data.{split.name}", split.samples, count) for split in splits),
            figure("data.all", sum(split.samples for split in found.splits), count),
            Html(""),
        ]
    )
    keys = [
        join([element("span", class_=f"swatch p{place % 4}", aria_hidden="true"), split.name])
        for place, split in enumerate(splits)
    ]
    head = ["Class", *keys, "all splits", "to scale"]
    return table("Samples of each class, by split", head, rows, id_="classes", note=note)


def _stacked(shares: list[float]) -> Html:
    """Return a bar of a class, a piece a split: what it says is in the cells beside it."""
    pieces = [
        element("i", style=f"width:{share * 100:.1f}%", class_=f"p{place % 4}") for place, share in enumerate(shares)
    ]
    return element("span", *pieces, class_="pieces", aria_hidden="true")


def at(values: list[int], place: int) -> int:
    """Return a class's count; a split of another manifest may have fewer classes."""
    return values[place] if place < len(values) else 0


def _sheet(subject: Subject) -> Html:
    pictures = subject.view.pictures
    if subject.view.config and not shows_samples(subject.view.config):
        return element("p", "Samples are hidden (inspect.samples).", class_="note", data_text="data.hidden")
    if not pictures:
        return Html("")
    shown = pictures[: subject.limits.pictures]
    splits = {each.split for each in shown}
    where = f" of the {shorten(shown[0].split, 20)} split" if len(splits) == 1 else ""
    items = [
        element("li", picture(each), element("span", shorten(each.label, 40)), *_split(each, len(splits) > 1))
        for each in shown
    ]
    more = left_out(len(shown), len(pictures), "pictures")
    return join(
        [
            element("h3", "Sample images"),
            element("ul", *items, class_="sheet", id="sheet"),
            element("p", f"From the shards{where}, made small. {more}", class_="note"),
        ]
    )


def _split(each: PictureView, is_said: bool) -> list[Html]:
    return [element("small", shorten(each.split, 20))] if is_said else []


def picture(shown: PictureView, width: int = 72) -> Html:
    """Return an image of a run: its bytes are in the page."""
    try:
        # Only what is base64 becomes part of an address.
        content = base64.b64encode(base64.b64decode(shown.jpeg, validate=True)).decode()
    except (binascii.Error, ValueError):
        return element("span", "not an image", class_="missing picture")
    return element(
        "img",
        src=f"data:image/jpeg;base64,{content}",
        alt=f"image labelled {shorten(shown.label, 80)}",
        width=width,
        height=max(1, round(width * min(max(shown.height, 1) / max(shown.width, 1), 3))),
        title=shorten(f"{shown.label}, {shown.split}, {shown.key}", 200),
    )


def _shards(subject: Subject, found: DataView) -> Html:
    if not found.shards:
        return Html("")
    rows = [_strip(subject, each) for each in found.shards[:MOST_SPLITS] if each.shards]
    return join([element("h3", "Sizes of shards"), element("div", *rows, class_="strips")])


def _strip(subject: Subject, shards: ShardView) -> Html:
    sizes, limit = shards.sizes, subject.limits.shards
    stretch = -(-len(sizes) // limit) if sizes else 1
    heights = [max(sizes[start : start + stretch]) for start in range(0, len(sizes), stretch)]
    words = f"{several(shards.shards, 'shard')}, {size(shards.bytes)}"
    if len(sizes) > 1:
        words += f"; smallest {size(min(sizes))}, median {size(median(sizes))}, largest {size(max(sizes))}"
    if stretch > 1 or len(sizes) < shards.shards:
        words += f". {len(heights):,} bars stand for {shards.shards:,} shards, the largest of each stretch."
    return element(
        "div",
        element("p", element("strong", shards.split), f" {words}"),
        bars(heights, label=f"Sizes of the shards of {shards.split}: {words}"),
        class_="strip",
        data_strip=shards.split,
    )


def _rejected(subject: Subject, found: DataView) -> Html:
    if not found.num_rejected:
        return Html("")
    listed = found.rejected
    kinds: Counter[str] = Counter()
    for reason, files in found.rejected_by_reason.items():
        kinds[kind_of(reason)] += files
    limit = subject.limits.rows
    rows = [
        [subject.name(kind), figure(f"data.rejected.{place}", files, count), percent(files / found.num_rejected)]
        for place, (kind, files) in enumerate(kinds.most_common(limit))
    ]
    other = found.num_rejected - sum(kinds.values())
    note = " ".join(words for words in (left_out(len(rows), len(kinds), "reasons"), _other(other)) if words)
    first = listed[:limit]
    files_each = [[element("code", subject.name(each.path)), subject.name(each.reason)] for each in first]
    each = table(
        "Files that were rejected, by their path in the source",
        ["File", "Reason"],
        files_each,
        id_="rejected",
        words=2,
        note=left_out(len(first), found.num_rejected, "files"),
    )
    head = ["Reason", "Files", "Share"]
    return join(
        [
            element("h3", "Rejected files"),
            table("Files that were left out of the shards, by reason", head, rows, id_="rejected-reasons", note=note),
            element("details", element("summary", f"The first {len(first):,} of them"), each, id="rejected-files"),
        ]
    )


def _other(files: int) -> str:
    return f"{files:,} files were rejected for reasons that are rarer still." if files > 0 else ""


def kind_of(reason: str) -> str:
    """Return a reason without what differs from file to file: numbers, and what is quoted."""
    return re.sub(r"'[^']*'|\"[^\"]*\"", "…", re.sub(r"\d+", "N", reason[:500]))


def _lengths(name: str, counts: list[int]) -> Html:
    """Return samples by the length of a text: each row holds lengths up to twice those of the one before."""
    most = max(counts, default=0) or 1
    first = next((bits for bits, samples in enumerate(counts) if samples), 0)
    rows = [
        [
            element("span", _span(bits)),
            figure(f"data.lengths.{name}.{bits}", counts[bits], count),
            bar(counts[bits] / most),
        ]
        for bits in range(first, len(counts))
    ]
    caption = f"Samples of all splits by the length of {name}"
    return join(
        [
            element("h3", f"Lengths of {name}"),
            table(caption, ["Bytes", "Samples", "to scale"], rows, id_=f"lengths-{name}"),
        ]
    )


def _span(bits: int) -> str:
    least, most = 1 << bits >> 1, (1 << bits) - 1
    return f"{least:,}" if least >= most else f"{least:,} to {most:,}"


def _images(found: DataView) -> Html:
    parts = []
    if found.formats:
        kinds = ", ".join(f"{shorten(name, 20)} {number_of:,}" for name, number_of in list(found.formats.items())[:12])
        parts.append(("Formats", kinds))
    for name, span in (("Width", found.width), ("Height", found.height)):
        if span:
            parts.append((name, f"{span[0]:,} to {span[-1]:,} pixels"))
    for name, values in (("Mean", found.mean), ("Standard deviation", found.std)):
        if values:
            parts.append((name, " · ".join(number(value) for value in values) + " (red, green, blue, of 1)"))
    if not parts:
        return Html("")
    pairs = [join([element("dt", name), element("dd", words)]) for name, words in parts]
    return join([element("h3", "Images"), element("dl", *pairs)])
