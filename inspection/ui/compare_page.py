"""The page of a comparison: results, configuration, what the profiling runs chose, where all came from, the curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from inspection.run.summary import RunLine
from inspection.tasks import is_share
from inspection.ui.compare import choices, origins, settings
from inspection.ui.live import News, live_content
from inspection.ui.run_list import COLUMNS, Direction, cell, clock_of, compare_values, difference, points, without_clock
from inspection.ui.shell import document
from inspection.ui.store import Shown, digest_of
from pages.markup import Html, shorten
from pages.quantities import count as show_count
from pages.quantities import exact_percent, metric_number
from pages.rendering import render
from pages.run.absent import AbsentSection
from pages.ui.comparison import ComparisonHeader, CurvesPlace, OriginsSection, Result, ResultsSection, SettingsSection
from pages.ui.run_list import Cell

# A configuration has about a hundred keys.
_ROWS = 500
_NAME_LENGTH = 200
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
    parts: Mapping[str, Html] = {
        "results": _results(letters, runs, lines),
        "curves": render(CurvesPlace(_NO_CHART)),
        "data": _data(letters, runs),
        "configuration": _configuration(letters, runs),
        "choice": _choice(letters, runs),
        "lineage": _lineage(letters, runs),
    }
    return News(
        parts,
        digest_of("".join(run.curves_digest for run in runs)),
        all(run.ended for run in runs),
        dict(clock for run, line in zip(runs, lines, strict=True) for clock in clock_of(run.key, line)),
    )


def _results(letters: tuple[str, ...], runs: Sequence[Shown], lines: Sequence[RunLine]) -> Html:
    still = [without_clock(line) for line in lines]
    rows = [
        Result(
            column.title,
            tuple(cell(column, run.key, line) for run, line in zip(runs, still, strict=True)),
            (None, *(difference(column, still[0], line) for line in still[1:])),
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
    return render(ResultsSection("results", "Results", letters, tuple(rows)))


def _data(letters: tuple[str, ...], runs: Sequence[Shown]) -> Html:
    name, title = "data", "Data"
    counts = [dict(run.data) for run in runs]
    if not any(counts):
        return render(AbsentSection(name, title, "No run's data could be read."))
    names = list(dict.fromkeys(name for each in counts for name in each))
    # Splits and classes are always told; of the classes' counts, those that differ.
    found = {each: [count.get(each) for count in counts] for each in names}
    shown = {each: values for each, values in found.items() if " of " not in each or len(set(values)) > 1}
    rows = tuple(_compared(each, values, show_count, show_count) for each, values in list(shown.items())[:_ROWS])
    same = len(found) - len(shown)
    note = f"{same} counts of classes are the same in all." if same else ""
    return render(ResultsSection(name, title, letters, rows, note))


def _compared(
    title: str,
    values: Sequence[float | None],
    show: Callable[[float], str],
    show_more: Callable[[float], str],
    better: Direction = "",
) -> Result:
    """Return numbers side by side, each with its difference from the first."""
    cells = tuple(Cell(title, "" if value is None else show(value)) for value in values)
    return Result(title, cells, (None, *(compare_values(values[0], value, show_more, better) for value in values[1:])))


def _configuration(letters: tuple[str, ...], runs: Sequence[Shown]) -> Html:
    name, title = "configuration", "Configuration"
    found = settings([run.view.config for run in runs])
    if not found:
        return render(AbsentSection(name, title, "No run's configuration could be read."))
    different = tuple(each for each in found if each.differs)
    same = len(found) - len(different)
    if not different:
        return render(AbsentSection(name, title, f"The same: all {same} values.", calm=True))
    note = f"{same} values are the same in all."
    if len(different) > _ROWS:
        note = f"{len(different) - _ROWS} more differ; they are left out here. {note}"
    return render(SettingsSection(name, title, "Only what differs", letters, different[:_ROWS], note))


def _choice(letters: tuple[str, ...], runs: Sequence[Shown]) -> Html:
    name, title = "choice", "What the profiling run chose"
    if not (found := tuple(choices([run.view for run in runs]))):
        return render(AbsentSection(name, title, "No run has a profile report."))
    return render(SettingsSection(name, title, "All settings; those that differ are marked", letters, found))


def _lineage(letters: tuple[str, ...], runs: Sequence[Shown]) -> Html:
    if not (found := tuple(origins([run.view for run in runs]))):
        return render(AbsentSection("lineage", "Where it came from", "It is known of no run."))
    return render(OriginsSection(letters, found))
