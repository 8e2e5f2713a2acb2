"""The list of runs: its columns, a row a run, and which rows have changed."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from inspection.run.headline import FigureName, metric_title
from inspection.run.summary import RunLine
from inspection.run.view import State
from inspection.tasks import show_metric
from inspection.ui.addresses import RunKey
from inspection.ui.shell import document
from inspection.ui.store import Listing
from pages import parts
from pages.chart import Sparkline, sparkline
from pages.markup import Html, shorten
from pages.parts import Chip, Clock, Moment, Words
from pages.quantities import NBSP, count, iso_instant, metric_number, number, seconds, usd
from pages.rendering import render
from pages.ui.run_list import Cell, Head, RunListPage, RunRow

_ERROR_LENGTH = 200
# Of a version; Python makes no number of thousands of them.
_DIGITS = 19
# Sorted by state, what wants attention comes first.
_ORDER: list[State] = [
    "running",
    "failed",
    "interrupted",
    "stopped",
    "unknown",
    "silent",
    "succeeded",
    "nothing to do",
]
MINUS = "\u2212"
Direction = Literal["", "max", "min"]
SCRIPTS = ("ask.js", "clocks.js", "list.js")


@dataclass(frozen=True)
class Column:
    """A column: its title, a cell, and the value that it is sorted by."""

    name: str
    """In filters."""
    title: str
    cell: Callable[[RunLine], parts.Cell]
    value: Callable[[RunLine], str | float | None]
    words: bool = False
    """Text, not numbers."""
    better: Direction = ""
    """Which values are better; of the test result its metric knows."""
    show: Callable[[float], str] = number
    """A difference of two values as text."""


def points(share: float) -> str:
    """Return a difference of two shares in percentage points."""
    return f"{100 * share:.2f}{NBSP}points"


def _goodput_points(value: float) -> str:
    return points(value / 100)


def _state(line: RunLine) -> parts.Cell:
    said = f"cannot be read: {line.problem}" if line.problem else " · ".join(filter(None, (line.stage, line.error)))
    return parts.Inline([Chip(line.state), Words(shorten(said, _ERROR_LENGTH), style="because")])


def _started(line: RunLine) -> parts.Cell:
    moment = iso_instant(line.started_at)
    if not moment:
        return Words("unknown", style="missing")
    return Moment(moment.replace("T", " ").replace("Z", f"{NBSP}UTC"), moment)


def _figure(name: FigureName) -> Callable[[RunLine], parts.Cell]:
    """Return what shows a figure of the headline, with its note where the mouse rests."""

    def cell(line: RunLine) -> parts.Cell:
        found, head = line.headline.figure(name), line.headline
        beside = metric_title(head.metric) if name == "metric" else ""
        shape = head.verdict if name == "export" else ""
        text = found.text.replace(" ", NBSP)
        return Words(text, beside, name=name, shape=shape, title=found.note) if text else ""

    return cell


def draw_curve(line: RunLine) -> Sparkline | None:
    """Return the short curve of a run; None: it has none."""
    if (curve := line.curve) is None:
        return None
    show, known = show_metric(str(line.parameters.get("task", "")), curve.name), curve.known()
    words = f"first {show(known[0])}, last {show(known[-1])}, best {show(curve.best())}"
    return sparkline(curve.values, f"{curve.name}: {words}")


COLUMNS = (
    Column("state", "State", _state, lambda line: _ORDER.index(line.state), words=True),
    Column("started", "Started", _started, lambda line: line.started_at, words=True),
    Column("duration", "Duration", _figure("duration"), lambda line: line.headline.wall_s, better="min", show=seconds),
    Column("result", "Test result", _figure("metric"), lambda line: line.headline.metric_value),
    Column(
        "curve",
        "Curve",
        lambda line: draw_curve(line) or "",
        lambda line: line.curve.known()[-1] if line.curve is not None else None,
    ),
    Column("export", "Export", _figure("export"), lambda line: line.headline.text("export") or None, words=True),
    Column(
        "goodput",
        "Goodput",
        _figure("goodput"),
        lambda line: line.headline.goodput_percent,
        better="max",
        show=_goodput_points,
    ),
    Column(
        "preemptions",
        "Preemptions",
        _figure("preemptions"),
        lambda line: line.headline.preemptions,
        better="min",
        show=count,
    ),
    Column("cost", "Cost", _figure("cost"), lambda line: line.headline.cost_high_usd, better="min", show=usd),
)


def difference(column: Column, a: RunLine, b: RunLine) -> Words | None:
    """Return how much more a run has than another, and whether that is better; None: they do not compare."""
    before, now = column.value(a), column.value(b)
    better, show = column.better, column.show
    if column.name == "result" and (a.headline.metric, a.headline.direction) == (
        b.headline.metric,
        b.headline.direction,
    ):
        better = a.headline.direction
        show = points if "%" in a.headline.text("metric") else metric_number
    if not better or isinstance(before, str) or isinstance(now, str):
        return None
    return compare_values(before, now, show, better)


def compare_values(
    before: float | None, now: float | None, show: Callable[[float], str], better: Direction
) -> Words | None:
    """Return how much more a value is than another.

    Args:
        before: What it is held against.
        now: The value.
        show: A difference as text.
        better: Which values are better; empty: neither.
    """
    if before is None or now is None:
        return None
    more = now - before
    if more == 0:
        return Words("the same", style="difference")
    text = f"{'+' if more > 0 else MINUS}{show(abs(more))}"
    if not better:
        return Words(text, style="difference")
    word, kind = ("better", "good") if (more > 0) == (better == "max") else ("worse", "bad")
    return Words(f"{text}, {word}", style=f"difference {kind}")


def show_cell(column: Column, key: RunKey, line: RunLine) -> parts.Cell:
    """Return what stands in a column; what runs is drawn by the page's script, by the run's clock."""
    runs = column.name == "duration" and line.state == "running"
    return Clock(key.path, column.cell(line)) if runs else column.cell(line)


def without_clock(line: RunLine) -> RunLine:
    """Return a line that changes only when something was written: of a run that goes on, without its duration."""
    if line.state != "running":
        return line
    figures = [
        each.model_copy(update={"text": ""} if each.name == "duration" else {}) for each in line.headline.figures
    ]
    return line.model_copy(update={"headline": line.headline.model_copy(update={"wall_s": None, "figures": figures})})


def clock_of(key: RunKey, line: RunLine) -> list[tuple[str, float]]:
    """Return how long a run has run by now, in seconds, with its name; nothing of one that does not."""
    if line.state != "running" or line.started_at is None:
        return []
    return [(key.path, round(time.time() - line.started_at, 1))]


def row(key: RunKey, line: RunLine) -> Html:
    """Return the row of a run."""
    values = ((column, column.value(line)) for column in COLUMNS)
    cells = tuple(
        Cell(show_cell(column, key, line), float(value) if isinstance(value, int) else value, column.words)
        for column, value in values
    )
    own = json.dumps({"parameters": line.parameters, "metrics": line.metrics}, separators=(",", ":"))
    return render(RunRow(key.path, key.line, key.id, line.state, cells, own, tuple(line.tags)))


class RowBook:
    """The rows as they were last made, and in which version each of them changed."""

    def __init__(self) -> None:
        # Another server may listen where this one did: its numbers mean nothing here.
        self._boot = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._version = 0
        self._order: list[str] = []
        self._order_version = 0
        self._rows: dict[str, tuple[RunLine, Html, int]] = {}
        self._lines: list[tuple[RunKey, RunLine]] = []

    def update(self, listing: Listing) -> None:
        """Take in what the runs are now."""
        with self._lock:
            version = self._version + 1
            rows = {}
            for key, line in zip(listing.keys, listing.lines, strict=True):
                line = without_clock(line)
                before = self._rows.get(key.path)
                rows[key.path] = before if before and before[0] == line else (line, row(key, line), version)
            order = list(rows)
            if order != self._order:
                self._order, self._order_version = order, version
            if self._order_version == version or any(made == version for _, _, made in rows.values()):
                self._version = version
            self._rows = rows
            self._lines = list(zip(listing.keys, listing.lines, strict=True))

    def since(self, known: str) -> dict[str, Any]:
        """Return the order of all rows, where it has changed, and the rows that have changed since a version."""
        with self._lock:
            boot, _, number = known.partition(".")
            is_ours = boot == self._boot and number.isascii() and number.isdigit() and len(number) < _DIGITS
            since = int(number) if is_ours else -1
            return {
                "version": f"{self._boot}.{self._version}",
                "order": self._order if self._order_version > since else None,
                "rows": {path: html for path, (_, html, version) in self._rows.items() if version > since},
                "clocks": dict(clock for key, line in self._lines for clock in clock_of(key, line)),
            }


def list_page(root: str, known: dict[str, Any], problem: str) -> str:
    """Return the page of the list.

    Args:
        root: What the user calls the folder.
        known: `RowBook.since("")`.
        problem: Why the runs could not be listed; empty: they could.
    """
    page = RunListPage(
        root,
        (Head("run", "Run", True), *(Head(each.name, each.title, each.words) for each in COLUMNS)),
        tuple(known["rows"][path] for path in known["order"] or []),
        known["version"],
        json.dumps(known["clocks"]),
        problem,
    )
    return document("Runs", render(page), scripts=SCRIPTS)
