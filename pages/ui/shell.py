"""What stands around every page of the server; the pages of a log and of an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.markup import Html
from pages.rendering import View


@dataclass(frozen=True)
class UiBody(View):
    """A page's whole body."""

    template: ClassVar[str] = "ui/body.html.j2"
    content: Html


@dataclass(frozen=True)
class FailurePage(View):
    """Why there is no page."""

    template: ClassVar[str] = "ui/failure.html.j2"
    title: str
    reason: str


@dataclass(frozen=True)
class LiveContent(View):
    """Sections that scripts keep up to date."""

    template: ClassVar[str] = "ui/live.html.j2"
    before: Html
    """Header and navigation, before the sections."""
    sections: tuple[Html, ...]
    live: str
    """Address of what is new."""
    digest: str
    ended: bool
    clocks: str
    """Figures that run, in seconds by their names, as JSON."""
    curves: str
    """Addresses of what the charts show, separated by spaces."""


@dataclass(frozen=True)
class LogTail(View):
    """The last lines of a log, on the page of its run; without text it is hidden."""

    template: ClassVar[str] = "ui/tail.html.j2"
    stage: str = ""
    address: str = ""
    """Of the log; empty: it is not here, and the text is what the stage's events say."""
    text: str = ""


@dataclass(frozen=True)
class LogPage(View):
    """Part of a log, and the ways to the rest."""

    template: ClassVar[str] = "ui/log.html.j2"
    stage: str
    run: str
    """Address of the run's page."""
    attempt: str
    address: str
    """Of the log: its newest part."""
    start: int
    """Bytes that are shown: the first, and the one after the last."""
    end: int
    size: int
    """Of the log, in bytes."""
    text: str
