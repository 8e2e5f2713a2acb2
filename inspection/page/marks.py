"""What happened to a training, on its time axis: starts, checkpoints, stops by their cause, resumes, the end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from inspection.page.subject import Subject
from inspection.run.data import evenly
from inspection.run.view import Mark, Marks
from pages.chart import Axis
from pages.markup import shorten
from pages.parts import Fold, Listing, Part, Text
from pages.quantities import count, instant, seconds, several
from pages.rendering import render
from pages.run.curves import MarkStrip

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


def mark_strip(
    subject: Subject, found: Marks, x: Axis, start: float, gaps: Sequence[tuple[float, float]]
) -> Iterator[Part]:
    """Yield rows of marks over the time axis, and what they are in words."""
    marks, limit = found.marks, subject.limits.rows * 2
    drawn = evenly([mark for mark in marks if math.isfinite(mark.time)], subject.limits.marks)
    # Those of checkpoints say least, and are left out where there are many.
    told = [mark for mark in marks if mark.kind != "checkpoint"] if len(marks) > limit else list(marks)
    yield render(
        MarkStrip(
            label=_told(marks),
            rows=tuple((name, _middle(row)) for row, name in enumerate(ROWS)),
            height=ROW_H * len(ROWS),
            gaps=tuple((x.share(begin), max(0.001, x.share(end) - x.share(begin))) for begin, end in gaps),
            marks=tuple(
                (mark.kind, d, x.share(mark.time - start), _middle(row), _words(mark, word))
                for mark in drawn
                for row, d, word in (MARKS[mark.kind],)
            ),
            ticks=tuple((name, x.share(tick)) for tick, name in x.ticks),
            counts=tuple(
                (kind, d, several(found.counts.get(kind, 0), word))
                for kind, (_, d, word) in MARKS.items()
                if found.counts.get(kind, 0) or kind in ("checkpoint", "preemption")
            ),
        )
    )
    lines = [_words(mark, MARKS[mark.kind][2]) for mark in told[:limit]]
    lines += [f"{count(len(marks) - len(lines))} more are left out here."] if len(marks) > len(lines) else []
    yield Fold("What happened, in words", [Listing(lines, ordered=True)], "curves-marks")
    if len(marks) > len(drawn):
        yield Text(f"{count(len(marks) - len(drawn))} more marks are left out here.", "note")
    if gaps:
        idle = seconds(sum(end - begin for begin, end in gaps))
        yield Text(f"Shaded: from an end or a crash to the next start, {idle} in all.", "note")


def _middle(row: int) -> float:
    return (row + 0.5) * ROW_H


def _words(mark: Mark, word: str) -> str:
    at = f", step {mark.step:,}" if mark.step is not None else ""
    more = f": {shorten(mark.text, 160)}" if mark.text else ""
    return f"{word}{at}, {instant(mark.time)}{more}"


def _told(marks: Sequence[Mark]) -> str:
    kinds = [word for kind, (_, _, word) in MARKS.items() if any(mark.kind == kind for mark in marks)]
    return "What happened over time: " + (", ".join(kinds) or "nothing that was seen") + "; listed below"
