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
from inspection.ui.addresses import RunKey
from inspection.ui.shell import document, moment
from inspection.ui.store import Listing
from pages.markup import NO_MARKUP, Html, element, join, shorten
from pages.quantities import NBSP, count, metric_number, number, seconds, usd
from pages.state import chip, shape

_NAME_LENGTH = 160
_ERROR_LENGTH = 200
# Of a version; Python makes no number of thousands of them.
_DIGITS = 19
# Sorted by state, what wants attention comes first.
_ORDER: list[State] = ["running", "failed", "interrupted", "stopped", "unknown", "silent", "succeeded"]
_DURATION, _RESULT = "Duration", "Test result"
MINUS = "\u2212"
SCRIPTS = ("ask.js", "clocks.js", "list.js")


@dataclass(frozen=True)
class Column:
    """A column: its title, a cell's content, and the value that it is sorted by."""

    title: str
    cell: Callable[[RunLine], Html]
    value: Callable[[RunLine], str | float | None]
    words: bool = False
    """Text, not numbers."""
    better: Literal["", "max", "min"] = ""
    """Which values are better; of the test result its metric knows."""
    show: Callable[[float], str] = number
    """A difference of two values as text."""


def _points(value: float) -> str:
    return f"{value:.2f}{NBSP}points"


def _state(line: RunLine) -> Html:
    if line.problem:
        said = element("small", shorten(f"cannot be read: {line.problem}", _ERROR_LENGTH), class_="because")
    else:
        said = element(
            "small", shorten(" · ".join(filter(None, (line.stage, line.error))), _ERROR_LENGTH), class_="because"
        )
    return join([chip(line.state), said])


def _figure(name: FigureName) -> Callable[[RunLine], Html]:
    """Return what shows a figure of the headline in a cell, with its note where the mouse rests."""

    def cell(line: RunLine) -> Html:
        found = line.headline.figure(name)
        return (
            element("span", found.text.replace(" ", NBSP), title=found.note or None, data_text=name)
            if found.text
            else Html("")
        )

    return cell


def _test_result(line: RunLine) -> Html:
    shown = _figure("metric")(line)
    return join([shown, " ", element("small", metric_title(line.headline.metric))]) if shown else shown


def _export(line: RunLine) -> Html:
    verdict = line.headline.verdict
    return join([_figure("export")(line), " ", shape(verdict)]) if verdict else _figure("export")(line)


COLUMNS = (
    Column("State", _state, lambda line: _ORDER.index(line.state), words=True),
    Column("Started (UTC)", lambda line: moment(line.started_at), lambda line: line.started_at, words=True),
    Column(_DURATION, _figure("duration"), lambda line: line.headline.wall_s, better="min", show=seconds),
    Column(_RESULT, _test_result, lambda line: line.headline.metric_value),
    Column("Export", _export, lambda line: line.headline.text("export") or None, words=True),
    Column("Goodput", _figure("goodput"), lambda line: line.headline.goodput_percent, better="max", show=_points),
    Column("Preemptions", _figure("preemptions"), lambda line: line.headline.preemptions, better="min", show=count),
    Column("Cost", _figure("cost"), lambda line: line.headline.cost_high_usd, better="min", show=usd),
)


def difference(column: Column, a: RunLine, b: RunLine) -> Html:
    """Return how much more a run has than another, and whether that is better; nothing where they do not compare."""
    before, now = column.value(a), column.value(b)
    better, show = column.better, column.show
    if column.title == _RESULT and (a.headline.metric, a.headline.direction) == (
        b.headline.metric,
        b.headline.direction,
    ):
        better = a.headline.direction
        show = (lambda value: _points(100 * value)) if "%" in a.headline.text("metric") else metric_number
    if not better or isinstance(before, str) or isinstance(now, str) or before is None or now is None:
        return NO_MARKUP
    more = now - before
    if more == 0:
        return element("span", "the same")
    word, kind = ("better", "good") if (more > 0) == (better == "max") else ("worse", "bad")
    return element("span", f"{'+' if more > 0 else MINUS}{show(abs(more))}, {word}", class_=kind)


def cell(column: Column, key: RunKey, line: RunLine) -> Html:
    """Return what stands in a cell; what runs is drawn by the page's script, by the run's clock."""
    runs = column.title == _DURATION and line.state == "running"
    return element("span", column.cell(line), data_clock=key.path) if runs else column.cell(line)


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
    name = shorten(key.line, _NAME_LENGTH)
    run_id = shorten(key.id, _NAME_LENGTH)
    cells = [
        element(
            "td",
            element("input", type="checkbox", value=key.path, aria_label=f"Compare {name} {run_id}"),
            class_="pick words",
        ),
        element(
            "th",
            element("a", name, " ", element("small", run_id), href=f"/run/{key.path}"),
            scope="row",
            data_sort=f"{key.line} {key.id}",
        ),
    ]
    for column in COLUMNS:
        value = column.value(line)
        cells.append(
            element(
                "td",
                cell(column, key, line),
                class_="words" if column.words else None,
                data_sort=value if isinstance(value, str) or value is None else repr(float(value)),
            )
        )
    return element("tr", *cells, data_run=key.path, data_state=line.state)


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
    head = element(
        "tr",
        element("th", element("span", "compare", class_="hidden"), scope="col", class_="pick words"),
        *(
            element(
                "th",
                element("button", title, type="button"),
                scope="col",
                class_="words" if words else None,
                aria_sort="none",
            )
            for title, words in (("Run", True), *((column.title, column.words) for column in COLUMNS))
        ),
    )
    body = element("tbody", *(known["rows"][path] for path in known["order"] or []), id="rows")
    table = element("table", element("caption", "Runs, the newest first"), element("thead", head), body, id="runs")
    controls = element(
        "div",
        element(
            "label", "Filter ", element("input", type="search", id="filter", autocomplete="off", spellcheck="false")
        ),
        element("button", "Compare two", type="button", id="compare", disabled=True),
        element("span", "", id="count", role="status", class_="note"),
        element("a", "CSV", href="/api/runs.csv", download="runs.csv"),
        element("a", "JSON", href="/api/runs", download="runs.json"),
        id="controls",
        hidden=True,
    )
    return document(
        "Runs",
        element("header", element("h1", "Runs"), element("p", element("code", root), class_="machine")),
        element(
            "main",
            element(
                "section",
                controls,
                element("p", problem, id="problem", class_="missing block", hidden=not problem),
                element("p", "No runs yet.", id="empty", class_="missing block", hidden=bool(known["rows"])),
                element("div", table, class_="scroll", tabindex=0, role="region", aria_label="Runs"),
            ),
            id="content",
            class_="wide",
            data_version=known["version"],
            data_clocks=json.dumps(known["clocks"]),
        ),
        scripts=SCRIPTS,
    )
