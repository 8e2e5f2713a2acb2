"""Tables of a profiling run's page: numbers with their units, and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pages.markup import NOT_MEASURED


@dataclass(frozen=True)
class Figure:
    """A number for readers, with its exact value for programs."""

    name: str
    """Where it is from, such as indicators.step_s: unique in the page."""
    value: float | None
    """None and what is no number read as missing."""
    unit: str
    """Filter that makes the text, a function of pages/quantities.py."""
    missing: str = NOT_MEASURED
    note: str = ""
    """More text after it, in smaller print."""
    bar: float | None = None
    """Share of 0 to 1 that a bar below it shows."""


@dataclass(frozen=True)
class Words:
    """Text with something beside it."""

    text: str
    more: str = ""
    """After it, in smaller print."""
    star: bool = False
    """What is after it marks the choice."""
    code: bool = False
    """It is a name out of a program."""
    swatch: str = ""
    """Class of the colour that stands for it in a drawing."""


Cell = str | Words | Figure


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row is its header."""

    id: str
    caption: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    words: int = 1
    """Columns from the left that are text; the others are numbers, set to the right."""
    note: str = ""
    """What was left out, below it."""
