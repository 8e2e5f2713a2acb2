"""The page of a comparison: results, configuration, what the profiling runs chose, where all came from, the curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inspection.run.summary import RunLine
from inspection.ui.compare import choices, origins, settings
from inspection.ui.live import News, live_content
from inspection.ui.run_list import COLUMNS, cell, clock_of, difference, without_clock
from inspection.ui.shell import document
from inspection.ui.store import Shown, digest_of
from pages.markup import Html, shorten
from pages.rendering import render
from pages.run.absent import AbsentSection
from pages.ui.comparison import ComparisonHeader, CurvesPlace, OriginsSection, Result, ResultsSection, SettingsSection

# A configuration has about a hundred keys.
_ROWS = 500
_NAME_LENGTH = 200
_NO_CHART = "No curves yet, or no script to draw them."
LETTERS = "AB"
SCRIPTS = ("ask.js", "clocks.js", "place.js", "uPlot.iife.min.js", "charts.js", "live.js")


def compare_page(runs: Sequence[Shown], news: News) -> str:
    """Return the page around what `compare` finds."""
    paths = [run.key.path for run in runs]
    query = "&".join(f"{letter}={path}" for letter, path in zip("ab", paths, strict=True))
    named = zip(LETTERS, runs, paths, strict=False)
    header = ComparisonHeader(
        tuple(
            (letter, shorten(f"{run.key.line} {run.key.id}", _NAME_LENGTH), f"/run/{path}")
            for letter, run, path in named
        )
    )
    content = live_content(
        news,
        Html(""),
        live=f"/api/compare?{query}",
        curves=" ".join(f"/api/curves/{path}" for path in paths),
    )
    title = " and ".join(run.key.id for run in runs)
    return document(title, Html(render(header) + content), scripts=SCRIPTS)


def compare(runs: Sequence[Shown], lines: Sequence[RunLine]) -> News:
    """Return what the page shows.

    Args:
        runs: Two of them; the same twice, too.
        lines: Their lines in the list.
    """
    letters = tuple(LETTERS[: len(runs)])
    parts: Mapping[str, Html] = {
        "results": _results(letters, runs, lines),
        "curves": render(CurvesPlace(_NO_CHART)),
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
    return render(ResultsSection(letters, tuple(rows)))


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
