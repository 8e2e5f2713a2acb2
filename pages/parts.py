"""Parts that sections are made of: tables, tiles, paragraphs, lists and drawings; templates/parts.html.j2 draws them.

A cell is text, one of these, or several of them below each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from pages.chart import Plot
from pages.markup import NOT_MEASURED, Html
from pages.rendering import View, render
from pages.run.picture import Picture


@dataclass(frozen=True)
class Figure:
    """A number for readers, with its exact value for programs."""

    kind: ClassVar[str] = "figure"
    name: str
    """Where it is from, such as indicators.step_s: unique in the page."""
    value: float | None
    """None and what is no number read as missing."""
    unit: str = ""
    """Filter that makes the text, a function of pages/quantities.py; empty: `shown` is the text."""
    missing: str = NOT_MEASURED
    note: str = ""
    """More text after it, in smaller print."""
    bar: float | None = None
    """Share of 0 to 1 that a bar below it shows."""
    mark: float | None = None
    """Share at which the bar has a mark: a target."""
    shown: str = ""


@dataclass(frozen=True)
class Words:
    """Text of a style, with something beside it."""

    kind: ClassVar[str] = "words"
    text: str
    more: str = ""
    """After it, in smaller print."""
    style: str = ""
    """code, strong, small, or classes; empty: as all text."""
    star: bool = False
    """What is after it marks the choice."""
    swatch: str = ""
    """Class of the colour that stands for it in a drawing."""
    name: str = ""
    """Of the text, for programs."""
    shape: str = ""
    """State whose shape stands after it."""
    title: str = ""
    """Where the mouse rests."""


@dataclass(frozen=True)
class Inline:
    """Cells one behind the other."""

    kind: ClassVar[str] = "inline"
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Chip:
    """A state by its word and shape."""

    kind: ClassVar[str] = "chip"
    state: str
    words: str = ""
    """Other than the state's own."""


@dataclass(frozen=True)
class Link:
    """Words that lead somewhere, where there is an address."""

    kind: ClassVar[str] = "link"
    words: str
    address: str = ""
    """Empty: the words are text."""
    shown: str = ""
    """The URI beside them; empty: none is shown."""


@dataclass(frozen=True)
class Piece:
    """A part of a bar."""

    name: str
    colour: str
    """Class of the colour."""
    width: float
    """Share of the bar that is drawn."""
    words: str
    """What it is, with its numbers."""
    label: str = ""
    """Within it."""


@dataclass(frozen=True)
class Pieces:
    """A small bar in a table; the numbers stand beside it."""

    kind: ClassVar[str] = "pieces"
    pieces: Sequence[Piece]


Cell: TypeAlias = "str | Figure | Words | Inline | Chip | Link | Pieces | tuple[Cell, ...]"


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row is its header."""

    kind: ClassVar[str] = "table"
    id: str
    caption: str
    head: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    words: int = 1
    """Columns from the left that are text; the others are numbers, set to the right."""
    note: str = ""
    """What was left out, below it."""
    data: Sequence[Mapping[str, str]] = ()
    """Attributes of each row for programs: data-NAME; none: no row has any."""


@dataclass(frozen=True)
class Tile:
    """A figure with its title."""

    title: str
    value: Cell
    note: Cell = ""
    style: str = ""
    """alarm: what it says is not as it should be."""


@dataclass(frozen=True)
class Tiles:
    """Figures side by side."""

    kind: ClassVar[str] = "tiles"
    tiles: Sequence[Tile]
    style: str = ""
    """wide, head; empty: narrow."""


@dataclass(frozen=True)
class Title:
    """A heading within a section."""

    kind: ClassVar[str] = "title"
    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    cells: Sequence[Cell]
    """One behind the other; a string is one cell."""
    style: str = ""
    """note, reason, or what else the style has."""
    name: str = ""
    """Of the text, for programs."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Attributes for programs: data-NAME."""


@dataclass(frozen=True)
class Listing:
    """A list of lines."""

    kind: ClassVar[str] = "listing"
    lines: Sequence[Sequence[Cell]]
    """Cells one behind the other; a string is one cell."""
    id: str = ""
    style: str = ""
    ordered: bool = False


@dataclass(frozen=True)
class Code:
    """Text out of a file, line by line."""

    kind: ClassVar[str] = "code"
    text: str
    label: str
    """What it is, in words."""


@dataclass(frozen=True)
class Pairs:
    """Names with what each is."""

    kind: ClassVar[str] = "pairs"
    rows: Sequence[tuple[str, Cell]]
    id: str = ""


@dataclass(frozen=True)
class Drawing:
    """A chart with its caption."""

    kind: ClassVar[str] = "drawing"
    plot: Plot
    caption: Sequence[Cell] = ()
    legend: Sequence[tuple[str, float | None]] = ()
    """Name and value of each line, in the order of their styles."""
    unit: str = "number"
    """Of the values: a filter of pages/quantities.py."""
    style: str = ""
    remarks: Sequence[str] = ()
    """What is said above the drawing as an alarm."""
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stack:
    """Bars that show what a whole is made of."""

    kind: ClassVar[str] = "stack"
    label: str
    """What it shows, in words."""
    bars: Sequence[tuple[str, Sequence[Piece]]]
    """Name and pieces of each."""
    id: str = ""


@dataclass(frozen=True)
class Strips:
    """Small bars without axes: name, words, and path by pages/chart.py of each."""

    kind: ClassVar[str] = "strips"
    strips: Sequence[tuple[str, str, str]]
    id: str


@dataclass(frozen=True)
class Sheet:
    """Pictures with their labels, and what is said of each in smaller print."""

    kind: ClassVar[str] = "sheet"
    pictures: Sequence[tuple[Picture, str, str]]
    id: str


@dataclass(frozen=True)
class WorstSample:
    """A sample that the network got wrong, or nearly so."""

    picture: Picture | None
    words: str | None
    """Of a sample without an image; None: not shown."""
    lines: tuple[tuple[str, str, str, float | None], ...]
    """Word before, text, kind (good, bad or none) and probability."""
    key: str
    file: Link | None = None
    """In the source; None: not known, or it has none of its own."""


@dataclass(frozen=True)
class Worst:
    """The samples that the network got worst."""

    kind: ClassVar[str] = "worst"
    title: str
    note: str
    samples: tuple[WorstSample, ...]


@dataclass(frozen=True)
class Fold:
    """Parts that a click unfolds."""

    kind: ClassVar[str] = "fold"
    summary: str
    parts: Sequence[Part]
    id: str = ""
    opened: bool = False
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Notice:
    """What a reader should not miss."""

    kind: ClassVar[str] = "notice"
    severity: str
    """bad, warning or note: its colour."""
    title: Sequence[Cell]
    """Cells one behind the other; a string is one cell."""
    parts: Sequence[Part]
    sign: str = ""
    """Before the title, beside the colour."""
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Grid:
    """Parts beside each other, where there is room."""

    kind: ClassVar[str] = "grid"
    parts: Sequence[Part]
    style: str


Part: TypeAlias = (
    "Html | Table | Tiles | Title | Text | Listing | Code | Pairs | Drawing | Stack | Strips | Sheet | Worst | Fold | "
    "Notice | Grid"
)


@dataclass(frozen=True)
class Parts(View):
    """Parts below each other."""

    template: ClassVar[str] = "parts.html.j2"
    parts: Sequence[Part]
    name: str = ""
    """Of the section, where the navigation goes; empty: they are a part of one."""
    title: str = ""


def section(name: str, title: str, *parts: Part | None) -> Html:
    """Return a section; a part of None is none."""
    return render(Parts([part for part in parts if part is not None], name, title))


def absent(name: str, reason: str, *, calm: bool = False) -> Text:
    """Return why something is not there.

    Args:
        name: What, for programs.
        reason: Why.
        calm: Whether nothing is what one wants.
    """
    return Text(reason, "calm" if calm else "missing block", data={"absent": name})


def note(text: str) -> Text | None:
    """Return a remark in small print; none where it is empty."""
    return Text(text, "note") if text else None
