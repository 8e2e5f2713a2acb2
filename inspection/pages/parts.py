"""Parts of page sections: Table, Tiles, Figure, Text, Chip, Link, Notice, Drawing and Sheet.

A cell is a string, Figure, Text, Chip or Link, or a tuple of cells, one per line. templates/parts.html.j2 renders them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from inspection.pages.chart import Plot
from inspection.pages.quantities import NOT_MEASURED, UNPRINTABLE
from inspection.pages.rendering import Html, render_macro


@dataclass(frozen=True)
class Figure:
    """A number with its unit; the HTML also has its exact value, for programs."""

    name: str
    """Path of the number, such as indicators.step_s: unique in a page."""
    value: float | None
    """None and NaN are shown as `missing`."""
    unit: str = ""
    """Function of quantities.py that makes the text; empty: `shown` is the text."""
    missing: str = NOT_MEASURED
    note: str = ""
    """Text after it, in smaller print."""
    bar: float | None = None
    """Fraction that a bar below it shows."""
    target: float | None = None
    """Fraction at which the bar has a mark."""
    shown: str = ""


@dataclass(frozen=True)
class Text:
    """Text in a style: within a cell a span, between parts a paragraph, heading or list."""

    cells: Sequence[Cell]
    """In a row, or one per line in a list. A string is one cell."""
    style: str = ""
    """code, strong, small; of a part also title, pre, list, note and missing; others are CSS classes."""
    id: str = ""
    """Of a part."""


@dataclass(frozen=True)
class Chip:
    """A state as text with an icon."""

    state: str
    text: str = ""
    """Instead of the state's name."""


@dataclass(frozen=True)
class Link:
    """Text with an optional link."""

    text: str
    address: str = ""
    uri: str = ""
    """URI shown beside it."""


Cell: TypeAlias = "str | Figure | Text | Chip | Link | tuple[Cell, ...]"


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row is its header."""

    id: str
    caption: str
    head: Sequence[Cell]
    """Empty: names and their values, without a head."""
    rows: Sequence[Sequence[Cell]]
    text_columns: int = 1
    """Number of columns with text, from the left; all others have numbers, aligned right."""
    note: str = ""
    style: str = ""
    classes: Sequence[Sequence[str]] = ()
    """Class of each cell after the first of its row, as in a heat map."""


@dataclass(frozen=True)
class Tiles:
    """Figures side by side."""

    tiles: Sequence[tuple[str, Cell, Cell]]
    """Title, value and note of each."""


@dataclass(frozen=True)
class Notice:
    """A box with a title: an error, a warning, a finding, or (severity fold) details that are folded."""

    severity: str
    """bad, warning, note or fold."""
    title: Sequence[Cell]
    parts: Sequence[Part]
    id: str = ""


@dataclass(frozen=True)
class Drawing:
    """A chart with its caption and legend."""

    plot: Plot
    caption: Sequence[Cell] = ()
    legend: Sequence[tuple[str, str, str]] = ()
    """Class, path and text of each entry."""
    alarms: Sequence[str] = ()
    """Text above the drawing, in the colour of errors."""
    id: str = ""


@dataclass(frozen=True)
class Sheet:
    """Samples as small pictures or texts, each with lines below it."""

    id: str
    samples: Sequence[tuple[Html | str, Sequence[Cell]]]
    """Picture (`picture`) or text of each sample, and its lines."""
    style: str = ""


Part: TypeAlias = "Html | Table | Tiles | Text | Notice | Drawing | Sheet"


def section(name: str, title: str, *parts: Part | None) -> Html:
    """Return a section of a page; parts that are None are left out."""
    return render_macro("section", name, title, [part for part in parts if part is not None])


def grid(parts: Sequence[Part]) -> Html:
    """Return parts side by side where the page is wide enough."""
    return render_macro("grid", parts)


def absent(name: str, reason: str) -> Text:
    """Return a part with the reason why data is missing."""
    return Text(reason, "missing", id=f"absent-{name}")


def note(text: str) -> Text | None:
    """Return a remark in small print; None for an empty text."""
    return Text(text, "note") if text else None


def pairs(id: str, caption: str, rows: Sequence[tuple[str, Cell]]) -> Table:
    """Return names with their values."""
    return Table(id, caption, (), rows, 2, style="pairs")


def picture(jpeg: str, size: tuple[int, int], *, alt: str, tooltip: str, width: int = 72) -> Html:
    """Return a picture that is part of the page.

    Args:
        jpeg: Base64; anything else is no picture.
        size: Width and height in pixels.
        alt: Its content as text.
        tooltip: Text where the mouse rests.
        width: In pixels, as shown; it is three times as high at most.
    """
    try:
        content = base64.b64encode(base64.b64decode(jpeg, validate=True)).decode()
    except (binascii.Error, ValueError):
        return Html('<span class="missing picture">no picture</span>')
    height = max(1, round(width * min(max(size[1], 1) / max(size[0], 1), 3)))
    return Html('<img src="data:image/jpeg;base64,{}" alt="{}" title="{}" width="{}" height="{}"/>').format(
        content, *(UNPRINTABLE.sub("\ufffd", text[:200]) for text in (alt, tooltip)), width, height
    )
