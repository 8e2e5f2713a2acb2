"""What stands around the sections of a page: its header, the way to each section, and its footer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.markup import NO_MARKUP, Html
from pages.rendering import View


@dataclass(frozen=True)
class Header(View):
    """What the page is of, where it is, and how it stands."""

    template: ClassVar[str] = "run/header.html.j2"
    name: str
    facts: tuple[str, ...]
    id: str = ""
    state: str = ""
    """Empty: it has none."""
    line: str = ""
    console: str = ""
    """Its page in Google's console; empty: it has none."""


@dataclass(frozen=True)
class Navigation(View):
    """Links to the sections."""

    template: ClassVar[str] = "run/navigation.html.j2"
    sections: tuple[tuple[str, str], ...]
    """Id and title of each."""


@dataclass(frozen=True)
class Body(View):
    """A page's whole body."""

    template: ClassVar[str] = "run/body.html.j2"
    header: Html
    sections: tuple[Html, ...]
    footer: str
    first: str = ""
    """Id of the first section, where the navigation begins; empty: there is none."""
    navigation: Html = NO_MARKUP
