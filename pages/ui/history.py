"""The history of a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.markup import Html
from pages.rendering import View


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
    rows: Html
