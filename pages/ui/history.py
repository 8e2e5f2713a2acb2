"""The history of a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.chart import Sparkline
from pages.rendering import View


@dataclass(frozen=True)
class HistoryRow:
    """A run, or a move by hand."""

    run: str
    address: str
    """Of the run's page; empty: there is none."""
    state: str
    """Of the run; empty: it is none, or gone."""
    data: str
    """Verdict of its data report; empty: it has none."""
    said: tuple[str, ...]
    """What the data report finds."""
    is_production: bool
    texts: dict[str, str]
    """By the columns' names."""
    curve: Sparkline | None = None
    """After the result."""


@dataclass(frozen=True)
class HistoryPage(View):
    """The page."""

    template: ClassVar[str] = "ui/history.html.j2"
    name: str
    """Of the line."""
    folder: str
    head: str
    """What is in production."""
    problem: bool
    """Whether that is not known."""
    columns: dict[str, str]
    """Titles by name."""
    rows: tuple[HistoryRow, ...]
