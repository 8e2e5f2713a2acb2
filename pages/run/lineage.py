"""The way from the raw listing to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.links import Link
from pages.rendering import View


@dataclass(frozen=True)
class Hash:
    """A hash by its name."""

    name: str
    value: str
    """Empty: not known."""
    match: str = ""
    """What it is of a document before; empty: of none."""


@dataclass(frozen=True)
class Entry:
    """A document on the way."""

    name: str
    stage: str
    link: Link | None
    own: tuple[Hash, ...]
    made_from: tuple[Hash, ...]


@dataclass(frozen=True)
class LineageSection(View):
    """Every document's hashes."""

    template: ClassVar[str] = "run/lineage.html.j2"
    title: str
    entries: tuple[Entry, ...]
    tied: int = 0
    """Documents that name a hash of one before them."""
