"""The page of a comparison: results, configuration, what the profiling runs chose, where all came from, the curves."""

from __future__ import annotations

from inspection.run.before import Pair, pairs
from inspection.run.summary import RunLine
from inspection.ui.compare import Origin, choices, origins
from inspection.ui.live import News, live_content
from inspection.ui.run_list import COLUMNS, cell, clock_of, difference, without_clock
from inspection.ui.shell import document
from inspection.ui.store import Shown, digest_of
from pages.markup import NO_MARKUP, Html, absent, element, join, section, shorten, table

_VALUE_LENGTH = 400
# A configuration has about a hundred keys.
_ROWS = 500
_NO_CHART = "No curves yet, or no script to draw them."
SCRIPTS = ("ask.js", "clocks.js", "place.js", "uPlot.iife.min.js", "charts.js", "live.js")


def compare_page(a: Shown, b: Shown, news: News) -> str:
    """Return the page around what `compare` finds."""
    query = f"a={a.key.path}&b={b.key.path}"
    return document(
        f"{a.key.id} and {b.key.id}",
        element("header", element("h1", "Comparison"), element("p", _run("A", a), element("br"), _run("B", b))),
        live_content(
            news,
            NO_MARKUP,
            live=f"/api/compare?{query}",
            curves=f"/api/curves/{a.key.path} /api/curves/{b.key.path}",
        ),
        scripts=SCRIPTS,
    )


def compare(a: Shown, b: Shown, lines: tuple[RunLine, RunLine]) -> News:
    """Return what the page shows.

    Args:
        a: A run.
        b: Another, or the same.
        lines: Their lines in the list.
    """
    found = (
        ("results", "Results", _results((a, b), lines)),
        ("curves", "Learning curves", element("p", _NO_CHART, class_="missing needs-script")),
        ("configuration", "Configuration", _configuration(a, b)),
        ("choice", "What the profiling run chose", _choice(a, b)),
        ("lineage", "Where it came from", _lineage(a, b)),
    )
    return News(
        {name: section(name, title, body) for name, title, body in found},
        digest_of(a.curves_digest + b.curves_digest),
        a.ended and b.ended,
        {name: lasted for each in zip((a, b), lines, strict=True) for name, lasted in clock_of(each[0].key, each[1])},
    )


def _run(letter: str, shown: Shown) -> Html:
    name = shorten(f"{shown.key.line} {shown.key.id}", 200)
    return join([element("strong", f"{letter} "), element("a", name, href=f"/run/{shown.key.path}")])


def _results(shown: tuple[Shown, Shown], lines: tuple[RunLine, RunLine]) -> Html:
    a, b = map(without_clock, lines)
    rows = [
        (column.title, cell(column, shown[0].key, a), cell(column, shown[1].key, b), difference(column, a, b))
        for column in COLUMNS
    ]
    return table("Of both runs", ("Figure", "A", "B", "B against A"), rows, id_="results-table", words=4)


def _configuration(a: Shown, b: Shown) -> Html:
    found = pairs(a.view.config, b.view.config)
    if not found:
        return absent("configuration", "Neither run's configuration could be read.")
    different = [pair for pair in found if pair.differs]
    same = len(found) - len(different)
    if not different:
        return element("p", f"The same: all {same} values.", class_="block")
    note = f"{same} values are the same in both."
    if len(different) > _ROWS:
        note = f"{len(different) - _ROWS} more differ; they are left out here. {note}"
    return _pairs("Only what differs", different[:_ROWS], "configuration-table", note)


def _choice(a: Shown, b: Shown) -> Html:
    found = choices(a.view, b.view)
    if not found:
        return absent("choice", "Neither run has a profile report.")
    return _pairs("All settings; those that differ are marked", found, "choice-table", "")


def _pairs(caption: str, found: list[Pair], id_: str, note: str) -> Html:
    rows = [
        (element("code", shorten(pair.name, _VALUE_LENGTH)), _value(pair.a, pair.differs), _value(pair.b, pair.differs))
        for pair in found
    ]
    return table(caption, ("Key", "A", "B"), rows, id_=id_, words=3, note=note)


def _value(value: str | None, differs: bool) -> Html:
    if value is None:
        return element("span", "not set", class_="missing")
    return element("strong" if differs else "span", shorten(value, _VALUE_LENGTH), class_="code")


def _lineage(a: Shown, b: Shown) -> Html:
    found = origins(a.view, b.view)
    if not found:
        return absent("lineage", "Of neither run is it known.")
    return table(
        "Documents by their hashes",
        ("Document", "Verdict", "A", "B"),
        [(origin.name, _verdict(origin), _hash(origin.a), _hash(origin.b)) for origin in found],
        id_="lineage-table",
        words=4,
    )


def _verdict(origin: Origin) -> Html:
    shape, kind = {"same": ("=", "good"), "different": ("≠", "warning"), "unknown": ("?", "")}[origin.verdict]
    sign = element("span", shape, aria_hidden="true")
    return element("span", sign, f" {origin.verdict}", class_=f"state {kind}".strip())


def _hash(value: str) -> Html:
    return element("code", value[:16]) if value else element("span", "none", class_="missing")
