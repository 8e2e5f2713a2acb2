"""What happened to a training, on its time axis: starts, checkpoints, stops by their cause, resumes, the end."""

from __future__ import annotations

import math
from collections.abc import Sequence

from inspection.page.chart import Axis
from inspection.page.subject import Subject, evenly
from inspection.run.view import Mark, Marks
from pages.markup import Html, element, join, shorten
from pages.quantities import instant, several

# By kind: the row of the strip, its shape around (0, 0), and a word.
MARKS: dict[str, tuple[int, str, str]] = {
    "start": (0, "M-4 -5L5 0L-4 5z", "start"),
    "resume": (0, "M-4 -5L5 0L-4 5z", "resume"),
    "end": (0, "M-4 -4h8v8h-8z", "end"),
    "checkpoint": (1, "M0 -5L5 0L0 5L-5 0z", "checkpoint"),
    "best": (1, "M0 -7L2 -2L7 -2L3 1.5L4.5 7L0 3.8L-4.5 7L-3 1.5L-7 -2L-2 -2z", "best checkpoint"),
    "preemption": (2, "M0 -5L5.5 5H-5.5z", "preemption"),
    "interruption": (2, "M-4 -5h3v10h-3zM1 -5h3v10h-3z", "interruption"),
    "kill": (2, "M0 -5L5 0L0 5L-5 0z", "kill"),
    "crash": (2, "M-5 -3L-3 -5L0 -2L3 -5L5 -3L2 0L5 3L3 5L0 2L-3 5L-5 3L-2 0z", "crash"),
}
STOPS = ("preemption", "interruption", "kill", "crash")
ROWS = ("runs", "saves", "stops")
ROW_H = 22


def find_gaps(marks: Sequence[Mark]) -> list[tuple[float, float]]:
    """Return the stretches between the end of an attempt and the start of the next, in seconds since the epoch."""
    gaps: list[tuple[float, float]] = []
    ended: float | None = None
    for mark in sorted(marks, key=lambda each: each.time):
        if mark.kind in (*STOPS, "end"):
            ended = mark.time if ended is None else ended
        elif mark.kind in ("start", "resume"):
            if ended is not None and mark.time > ended:
                gaps.append((ended, mark.time))
            ended = None
    return gaps


def mark_counts(marks: Marks) -> Html:
    """Return the legend: each kind's shape, and how many there were."""
    items = [
        element("li", shape(kind), several(marks.counts.get(kind, 0), word), data_count=kind)
        for kind, (_, _, word) in MARKS.items()
        if marks.counts.get(kind, 0) or kind in ("checkpoint", "preemption")
    ]
    return element("ul", *items, class_="legend", id="mark-counts")


def shape(kind: str) -> Html:
    """Return the shape of a mark, for a legend."""
    return element(
        "svg",
        element("path", d=MARKS[kind][1], class_=f"mark m-{kind}"),
        viewBox="-8 -8 16 16",
        width=16,
        height=16,
        aria_hidden="true",
    )


def mark_strip(
    subject: Subject, marks: Sequence[Mark], x: Axis, start: float, gaps: Sequence[tuple[float, float]]
) -> Html:
    """Return three rows of marks over the time axis; each tells what it is where one points at it."""
    shown = evenly([mark for mark in marks if math.isfinite(mark.time)], subject.limits.marks)
    lines = [
        element("line", x1="0", x2="100%", y1=(row + 0.5) * ROW_H, y2=(row + 0.5) * ROW_H, class_="grid")
        for row in range(len(ROWS))
    ]
    shades = [
        element(
            "rect",
            x=f"{x.share(begin) * 100:.2f}%",
            y=0,
            width=f"{max(0.1, (x.share(end) - x.share(begin)) * 100):.2f}%",
            height=ROW_H * len(ROWS),
            class_="gap",
        )
        for begin, end in gaps
    ]
    drawing = element(
        "svg",
        *shades,
        *lines,
        *(_mark(mark, x.share(mark.time - start)) for mark in shown),
        height=ROW_H * len(ROWS),
        width="100%",
        role="img",
        aria_label=_told(marks),
    )
    names = [element("span", name, style=f"top:{(row + 0.5) * ROW_H}px") for row, name in enumerate(ROWS)]
    ticks = [element("span", name, style=f"left:{x.share(tick) * 100:.1f}%") for tick, name in x.ticks]
    more = len(marks) - len(shown)
    return join(
        [
            element(
                "div",
                element("div", *names, class_="ys", style="width:6ch", aria_hidden="true"),
                drawing,
                element("div", *ticks, class_="xs", aria_hidden="true"),
                class_="plot strip-plot",
            ),
            _listed(subject, marks),
            element("p", f"{more:,} more marks are left out here.", class_="note") if more else Html(""),
        ]
    )


def _mark(mark: Mark, share: float) -> Html:
    row, d, word = MARKS[mark.kind]
    # A drawing within the drawing: its place is a share of the width, its size is not.
    return element(
        "svg",
        element("g", element("title", _words(mark, word)), element("path", d=d, class_=f"mark m-{mark.kind}")),
        x=f"{share * 100:.2f}%",
        y=(row + 0.5) * ROW_H,
        overflow="visible",
        width=1,
        height=1,
        data_mark=mark.kind,
    )


def _words(mark: Mark, word: str) -> str:
    at = f", step {mark.step:,}" if mark.step is not None else ""
    more = f": {shorten(mark.text, 160)}" if mark.text else ""
    return f"{word}{at}, {instant(mark.time)}{more}"


def _told(marks: Sequence[Mark]) -> str:
    kinds = [word for kind, (_, _, word) in MARKS.items() if any(mark.kind == kind for mark in marks)]
    return "What happened over time: " + (", ".join(kinds) or "nothing that was seen") + "; listed below"


def _listed(subject: Subject, marks: Sequence[Mark]) -> Html:
    """Return marks in words: those of checkpoints say least, and are left out where there are many."""
    limit = subject.limits.rows * 2
    told = [mark for mark in marks if mark.kind != "checkpoint"] if len(marks) > limit else list(marks)
    shown = told[:limit]
    items = [element("li", _words(mark, MARKS[mark.kind][2])) for mark in shown]
    if len(marks) > len(shown):
        items.append(element("li", f"{len(marks) - len(shown):,} more are left out here."))
    return element("details", element("summary", "What happened, in words"), element("ol", *items), id="curves-marks")
