"""The list of runs, a row of it, and the head of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages import parts
from pages.markup import Html
from pages.rendering import View


@dataclass(frozen=True)
class Cell:
    """A value of a run in the list."""

    shown: parts.Cell
    sort: str | float | None = None
    """What the list is sorted by; None: not known, the last."""
    is_words: bool = False
    """Set to the left."""


@dataclass(frozen=True)
class ComparisonHeader(View):
    """Which runs are compared."""

    template: ClassVar[str] = "ui/comparison.html.j2"
    runs: tuple[tuple[str, str, str], ...]
    """Letter, name and address of each."""


@dataclass(frozen=True)
class RunRow(View):
    """The row of a run."""

    template: ClassVar[str] = "ui/row.html.j2"
    path: str
    """Of the run, as a part of addresses."""
    line: str
    id: str
    state: str
    cells: tuple[Cell, ...]
    values: str = "{}"
    """Parameters and metrics by name, as JSON: columns that a reader may choose."""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Head:
    """The head of a column."""

    name: str
    """In filters."""
    title: str
    is_words: bool


@dataclass(frozen=True)
class RunListPage(View):
    """The list."""

    template: ClassVar[str] = "ui/list.html.j2"
    root: str
    columns: tuple[Head, ...]
    rows: tuple[Html, ...]
    version: str
    clocks: str
    """Durations of runs that go on, in seconds by their names, as JSON."""
    problem: str = ""
    """Why the runs could not be listed; empty: they could."""
