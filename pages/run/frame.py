"""What stands around the sections of a run's page, and of the page of one of its stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.markup import NO_MARKUP, Html
from pages.rendering import View


@dataclass(frozen=True)
class RunHeader(View):
    """Which run it is, where, and how it stands."""

    template: ClassVar[str] = "run/header.html.j2"
    name: str
    id: str
    state: str
    facts: tuple[str, ...]
    line: str
    console: str = ""
    """Its page in Google's console; empty: it has none."""


@dataclass(frozen=True)
class StageHeader(View):
    """Which stage of which run it is, and how it stands."""

    template: ClassVar[str] = "run/stage_header.html.j2"
    title: str
    state: str
    id: str
    """Of the run."""
    made: str = ""


@dataclass(frozen=True)
class Navigation(View):
    """Links to the sections."""

    template: ClassVar[str] = "run/navigation.html.j2"
    sections: tuple[tuple[str, str], ...]
    """Id and title of each."""


@dataclass(frozen=True)
class Main(View):
    """The sections."""

    template: ClassVar[str] = "run/main.html.j2"
    sections: tuple[Html, ...]
    id: str = ""


@dataclass(frozen=True)
class RunBody(View):
    """A page's whole body."""

    template: ClassVar[str] = "run/body.html.j2"
    header: Html
    main: Html
    id: str
    """Of the run."""
    seen_at: float
    navigation: Html = NO_MARKUP
