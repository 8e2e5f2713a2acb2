"""The page of a comparison: results, configuration, what the profiling runs chose, where all came from, the curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from inspection.run.summary import RunLine
from inspection.run.view import RunView
from inspection.tasks import is_share
from inspection.ui.compare import Origin, Setting, choices, origins, settings
from inspection.ui.live import News, live_content
from inspection.ui.run_list import (
    COLUMNS,
    Column,
    Direction,
    clock_of,
    compare_values,
    difference,
    points,
    show_cell,
    without_clock,
)
from inspection.ui.shell import document
from inspection.ui.store import Shown, digest_of
from pages.markup import Html, shorten
from pages.parts import Cell, Part, Table, Text, Words, absent, section
from pages.quantities import count as show_count
from pages.quantities import exact_percent, metric_number
from pages.rendering import render
from pages.ui.run_list import ComparisonHeader

# A configuration has about a hundred keys.
_ROWS = 500
_NAME_LENGTH, _VALUE_LENGTH = 200, 400
_NO_CHART = "No curves yet, or no script to draw them."
LETTERS = "ABCDEFGH"
MOST_RUNS = len(LETTERS)
SCRIPTS = ("ask.js", "clocks.js", "place.js", "uPlot.iife.min.js", "draw.js", "charts.js", "live.js")


def compare_page(runs: Sequence[Shown], news: News) -> str:
    """Return the page around what `compare` finds."""
    paths = [run.key.path for run in runs]
    names = [shorten(f"{run.key.line} {run.key.id}", _NAME_LENGTH) for run in runs]
    addresses = [f"/run/{path}" for path in paths]
    header = ComparisonHeader(tuple(zip(LETTERS, names, addresses, strict=False)))
    content = live_content(
        news,
        Html(""),
        live="/api/compare?" + "&".join(f"run={path}" for path in paths),
        curves=" ".join(f"/api/curves/{path}" for path in paths),
    )
    return document(f"{len(runs)} runs", Html(render(header) + content), scripts=SCRIPTS)


def compare(runs: Sequence[Shown], lines: Sequence[RunLine]) -> News:
    """Return what the page shows.

    Args:
        runs: Two to eight; one of them twice, too.
        lines: Their lines in the list.
    """
    letters = tuple(LETTERS[: len(runs)])
    views = [run.view for run in runs]
    sections: Mapping[str, tuple[str, Part]] = {
        "results": ("Results", _results(letters, runs, lines)),
        "curves": ("Learning curves", Text(_NO_CHART, "missing needs-script")),
        "data": ("Data", _data(letters, [dict(run.data) for run in runs])),
        "configuration": ("Configuration", _configuration(letters, settings([view.config for view in views]))),
        "choice": ("What the profiling run chose", _choice(letters, choices(views))),
        "lineage": ("Where it came from", _lineage(letters, views)),
    }
    return News(
        {name: section(name, title, part) for name, (title, part) in sections.items()},
        digest_of("".join(run.curves_digest for run in runs)),
        all(run.ended for run in runs),
        dict(clock for run, line in zip(runs, lines, strict=True) for clock in clock_of(run.key, line)),
    )


def _results(letters: tuple[str, ...], runs: Sequence[Shown], lines: Sequence[RunLine]) -> Table:
    still = [without_clock(line) for line in lines]
    rows = [
        _row(
            column.title,
            [show_cell(column, run.key, line) for run, line in zip(runs, still, strict=True)],
            _against(column, still),
        )
        for column in COLUMNS
    ]
    metrics = {line.headline.metric: line.headline.direction for line in lines}
    names = dict.fromkeys(name for line in lines for name in line.metrics)
    if len(metrics) == 1:
        names.pop(f"test_{still[0].headline.metric}", None)
    for name in names:
        values = [line.metrics.get(name) for line in lines]
        metric = name.partition("_")[2] or name
        show, show_more = (exact_percent, points) if is_share(runs[0].view.task, metric) else (metric_number,) * 2
        rows.append(_compared(name.replace("_", " "), values, show, show_more, metrics.get(metric, "")))
    return _table("results", "Results", letters, rows)


def _against(column: Column, lines: Sequence[RunLine]) -> list[Words | None]:
    return [None, *(difference(column, lines[0], line) for line in lines[1:])]


def _table(name: str, title: str, letters: tuple[str, ...], rows: Sequence[Sequence[Cell]], note: str = "") -> Table:
    caption = f"{title} of all runs; differences are against {letters[0]}"
    return Table(f"{name}-table", caption, ("Figure", *letters), rows, 1 + len(letters), note)


def _row(title: str, cells: Sequence[Cell], differences: Sequence[Words | None]) -> list[Cell]:
    """Return cells side by side, each with its difference from the first below it."""
    return [title, *((one, more) if more is not None else one for one, more in zip(cells, differences, strict=True))]


def _data(letters: tuple[str, ...], counts: Sequence[Mapping[str, int]]) -> Part:
    if not any(counts):
        return absent("data", "No run's data could be read.")
    names = list(dict.fromkeys(name for each in counts for name in each))
    # Splits and classes are always told; of the classes' counts, those that differ.
    found = {each: [count.get(each) for count in counts] for each in names}
    shown = {each: values for each, values in found.items() if " of " not in each or len(set(values)) > 1}
    rows = [_compared(each, values, show_count, show_count) for each, values in list(shown.items())[:_ROWS]]
    same = len(found) - len(shown)
    return _table("data", "Data", letters, rows, f"{same} counts of classes are the same in all." if same else "")


def _compared(
    title: str,
    values: Sequence[float | None],
    show: Callable[[float], str],
    show_more: Callable[[float], str],
    better: Direction = "",
) -> list[Cell]:
    """Return numbers side by side, each with its difference from the first."""
    cells = ["" if value is None else show(value) for value in values]
    return _row(title, cells, [None, *(compare_values(values[0], one, show_more, better) for one in values[1:])])


def _settings(name: str, caption: str, letters: tuple[str, ...], found: Sequence[Setting], note: str = "") -> Table:
    def value(each: Setting, text: str | None) -> Cell:
        if text is None:
            return Words("not set", style="missing")
        return Words(shorten(text, _VALUE_LENGTH), style="code differs" if each.differs else "code")

    rows = [
        [Words(shorten(each.name, _VALUE_LENGTH), style="code"), *(value(each, text) for text in each.values)]
        for each in found
    ]
    return Table(f"{name}-table", caption, ("Key", *letters), rows, 1 + len(letters), note)


def _configuration(letters: tuple[str, ...], found: Sequence[Setting]) -> Part:
    name, different = "configuration", [each for each in found if each.differs]
    if not found:
        return absent(name, "No run's configuration could be read.")
    same = len(found) - len(different)
    if not different:
        return absent(name, f"The same: all {same} values.", calm=True)
    note = f"{same} values are the same in all."
    if len(different) > _ROWS:
        note = f"{len(different) - _ROWS} more differ; they are left out here. {note}"
    return _settings(name, "Only what differs", letters, different[:_ROWS], note)


def _choice(letters: tuple[str, ...], found: Sequence[Setting]) -> Part:
    if not found:
        return absent("choice", "No run has a profile report.")
    return _settings("choice", "All settings; those that differ are marked", letters, found)


def _lineage(letters: tuple[str, ...], views: Sequence[RunView]) -> Part:
    signs = {"same": ("=", " good"), "different": ("\u2260", " warning"), "unknown": ("?", "")}

    def row(each: Origin) -> list[Cell]:
        sign, kind = signs[each.verdict]
        hashes = (Words(value[:16], style="code") if value else Words("none", style="missing") for value in each.hashes)
        return [each.name, Words(f"{sign} {each.verdict}", style=f"state{kind}"), *hashes]

    if not (found := origins(views)):
        return absent("lineage", "It is known of no run.")
    head = ("Document", "Verdict", *letters)
    return Table("lineage-table", "Documents by their hashes", head, list(map(row, found)), 2 + len(letters))
