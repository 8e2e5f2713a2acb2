"""Input of all sections: the run, size limits, and links. Only known schemes become links; other URIs stay text."""

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
"""The address that opens a URI; None: it is shown as text."""


@dataclass(frozen=True)
class Limits:
    """Number of rows, points and characters of a page; it names what it leaves out."""

    rows: int = 40
    cells: int = 24
    """Rows and columns of a heat map; of more classes, the most frequent confusions are listed."""
    pictures: int = 60
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
        """Return a link to a URI; objects of a bucket, and what has no address, show the URI beside it."""
        address = self.href(uri) or ""
        return Link(text, address, "" if address and not uri.startswith("gs://") else shown_uri(uri))

    def why_absent(self, name: str, stage: str, what: str) -> Text:
        """Return the reason why something from a stage is not there."""
        view = self.view.stage(stage)
        if view is None:
            return absent(name, f"{what}: this run has no stage {stage}")
        if view.state in ("done", "reused"):
            return absent(name, f"{what}: the files of stage {stage} could not be read (see Overview)")
        # A stage that was not started has its reason in the one that ended the run.
        stages = [view, *(each for each in self.view.stages if each is not view and each.state in ENDED_EARLY)]
        states = ", ".join(f"stage {each.name}: {each.state}" for each in stages)
        error = stages[-1].error.partition("\n")[0]
        return absent(name, f"{what}: {states}{f' ({shorten(error, 300)})' if error else ''}")


def finite(values: Sequence[float]) -> list[float]:
    """Return the values that are finite."""
    return [value for value in values if math.isfinite(value)]


def not_finite(curves: Iterable[Curve]) -> list[str]:
    """Return a sentence on each curve that has values that are NaN or infinite."""
    return [
        f"{shorten(curve.name, 60)}: {several(curve.not_finite, 'value')} not finite, the first at step "
        f"{curve.first_not_finite:,}"
        for curve in curves
        if curve.not_finite
    ]


def omitted(shown: int, total: int, what: str) -> str:
    """Return a remark on rows that are left out; empty: none are."""
    return f"{total - shown:,} more {what} are left out here." if total > shown else ""


def first(cells: Sequence[Cell], limit: int, what: str) -> list[Cell]:
    """Return the first cells, and as the last one a remark on those that are left out."""
    return [*cells[:limit], *filter(None, [omitted(limit, len(cells), what)])]


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
    """Return the console's page of an object, or of a folder (a URI that ends in /); None: it is in no bucket."""
    if not uri.startswith("gs://"):
        return None
    kind = "" if uri.endswith("/") else "_details/"
    return f"{CONSOLE}storage/browser/{kind}{quote(uri.removeprefix('gs://').rstrip('/'), safe='/')}"


def shown_uri(uri: str) -> str:
    """Return a URI as a user types it: a whole path for a local file."""
    return unquote(uri.removeprefix("file://")) if storage.is_local(uri) else uri
