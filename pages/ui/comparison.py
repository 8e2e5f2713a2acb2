"""Sections of a comparison of runs; the first of them is what the others are held against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.rendering import View
from pages.ui.run_list import Cell


@dataclass(frozen=True)
class ComparisonHeader(View):
    """Which runs are compared."""

    template: ClassVar[str] = "ui/comparison.html.j2"
    runs: tuple[tuple[str, str, str], ...]
    """Letter, name and address of each."""


@dataclass(frozen=True)
class Difference:
    """How much more a run has than the first."""

    text: str
    kind: str = ""
    """good, bad; empty: neither."""


@dataclass(frozen=True)
class Result:
    """A figure of every run."""

    title: str
    cells: tuple[Cell, ...]
    differences: tuple[Difference | None, ...]
    """Of each, against the first; None: it is the first, or they do not compare."""


@dataclass(frozen=True)
class ResultsSection(View):
    """Figures side by side."""

    template: ClassVar[str] = "ui/results.html.j2"
    name: str
    title: str
    letters: tuple[str, ...]
    results: tuple[Result, ...]
    note: str = ""


@dataclass(frozen=True)
class CurvesPlace(View):
    """Where the script draws the curves."""

    template: ClassVar[str] = "ui/curves_place.html.j2"
    words: str


@dataclass(frozen=True)
class Setting:
    """A value of each run by its key; None: a run does not have it."""

    name: str
    values: tuple[str | None, ...]
    differs: bool


@dataclass(frozen=True)
class SettingsSection(View):
    """Values of the runs by their keys."""

    template: ClassVar[str] = "ui/settings.html.j2"
    name: str
    title: str
    caption: str
    letters: tuple[str, ...]
    settings: tuple[Setting, ...]
    note: str = ""


@dataclass(frozen=True)
class Origin:
    """A document that runs were made from or made."""

    name: str
    verdict: str
    """same, different or unknown."""
    hashes: tuple[str, ...]
    """Of each run; empty: it has none."""


@dataclass(frozen=True)
class OriginsSection(View):
    """Which documents the runs share."""

    template: ClassVar[str] = "ui/origins.html.j2"
    letters: tuple[str, ...]
    origins: tuple[Origin, ...]
