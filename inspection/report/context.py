"""Input of all sections: the run, size limits, and links. Only URIs with known schemes become links."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from urllib.parse import quote, unquote

from contracts import storage
from inspection.pages.parts import Cell, Link, Text, absent
from inspection.pages.quantities import several, shorten
from inspection.view import Curve, RunView

NO_VALUE = "\u2013"
"""Text of a cell without a value."""
ENDED_EARLY = ("failed", "interrupted", "stopped")
CONSOLE = "https://console.cloud.google.com/"
_SAFE = "/%:@!$&'()*+,;=~-._"

Href = Callable[[str], str | None]
"""Maps a URI to an address to open it; None: shown as text."""


@dataclass(frozen=True)
class Limits:
    """Number of rows, points and characters of a page; omissions are noted."""

    rows: int = 40
    cells: int = 24
    """Rows and columns of a heat map; with more classes, the most frequent confusions are listed."""
    worst: int = 24
    points: int = 400
    """Points of a curve, and marks on the time axis."""
    curves: int = 24
    name: int = 160
    """Characters of a name from the run."""
    message: int = 4000
    """Characters of a message from the run."""
    config: int = 60_000
    """Characters of the configuration."""

    def halved(self) -> Limits:
        """Return limits half as large, at least 1."""
        return Limits(**{field.name: max(1, getattr(self, field.name) // 2) for field in fields(self)})


@dataclass(frozen=True)
class Context:
    """The run that a page is about, and its limits."""

    view: RunView
    limits: Limits
    href: Href

    def name(self, value: str) -> str:
        """Return a name from the run, shortened where it is very long."""
        return shorten(value, self.limits.name)

    def message(self, value: str) -> str:
        """Return a message from the run, shortened where it is very long."""
        return shorten(value, self.limits.message)

    def link(self, uri: str, text: str) -> Link:
        """Return a link to a URI; objects in buckets, and URIs without an address, are shown too."""
        address = self.href(uri) or ""
        return Link(text, address, "" if address and not uri.startswith("gs://") else shown_uri(uri))

    def why_absent(self, name: str, stage: str, subject: str) -> Text:
        """Return the reason why a stage's data is missing."""
        view = self.view.stage(stage)
        if view is None:
            return absent(name, f"{subject}: this run has no stage {stage}")
        if view.state in ("done", "reused"):
            return absent(name, f"{subject}: the files of stage {stage} could not be read (see Overview)")
        # The reason of a stage that was not started is the stage that ended the run.
        stages = [view, *(each for each in self.view.stages if each is not view and each.state in ENDED_EARLY)]
        states = ", ".join(f"stage {each.name}: {each.state}" for each in stages)
        error = stages[-1].error.partition("\n")[0]
        return absent(name, f"{subject}: {states}{f' ({shorten(error, 300)})' if error else ''}")


def finite(values: Sequence[float]) -> list[float]:
    """Return the values that are finite."""
    return [value for value in values if math.isfinite(value)]


def not_finite(curves: Iterable[Curve]) -> list[str]:
    """Return a sentence on each curve with NaN or infinite values."""
    return [
        f"{shorten(curve.name, 60)}: {several(curve.not_finite, 'value')} not finite, the first at step "
        f"{curve.first_not_finite:,}"
        for curve in curves
        if curve.not_finite
    ]


def omitted(shown: int, total: int, items: str) -> str:
    """Return a remark on omitted rows; empty if there are none."""
    return f"{total - shown:,} more {items} are not shown." if total > shown else ""


def first(cells: Sequence[Cell], limit: int, items: str) -> list[Cell]:
    """Return the first cells, followed by a remark on the omitted ones."""
    return [*cells[:limit], *filter(None, [omitted(limit, len(cells), items)])]


def beside(line: str) -> Href:
    """Return links of a page in LINE/runs/ID/: relative ones to files below the line.

    Args:
        line: URI of the line's folder.
    """
    folder = line.rstrip("/") + "/"

    def href(uri: str) -> str | None:
        if storage.is_local(uri) and uri.startswith(folder) and ".." not in uri.removeprefix(folder).split("/"):
            return "../../" + quote(uri.removeprefix(folder), safe=_SAFE)
        return elsewhere(uri)

    return href


def elsewhere(uri: str) -> str | None:
    """Return links of a page at any place: absolute ones."""
    return "file://" + quote(uri.removeprefix("file://"), safe=_SAFE) if storage.is_local(uri) else console(uri)


def console(uri: str) -> str | None:
    """Return the console's page of an object, or of a folder (a URI that ends in /); None: not in a bucket."""
    if not uri.startswith("gs://"):
        return None
    kind = "" if uri.endswith("/") else "_details/"
    return f"{CONSOLE}storage/browser/{kind}{quote(uri.removeprefix('gs://').rstrip('/'), safe='/')}"


def shown_uri(uri: str) -> str:
    """Return a URI as a user types it: a whole path for a local file."""
    return unquote(uri.removeprefix("file://")) if storage.is_local(uri) else uri
