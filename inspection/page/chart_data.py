"""Scalars and marks of a run, as pages/static/draw.js takes them."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from inspection.page.marks import find_gaps
from inspection.run.curves import thin
from inspection.run.view import Curve, RunView

POINTS = 2_000
"""Of a curve at most."""
# Of all curves together, some 25 bytes each.
_ALL_POINTS = 24_000


def chart_data(view: RunView, *, points: int = POINTS) -> dict[str, Any]:
    """Return curves and marks; times are seconds since the first of them, what is no number is null.

    Args:
        view: What is known of a run.
        points: Of a curve at most; fewer where there are many curves.
    """
    curves = [curve for curve in view.curves.curves if curve.values] if view.curves is not None else []
    marks = view.marks.marks if view.marks is not None else []
    moments = [time for curve in curves for time in curve.times[:1]] + [mark.time for mark in marks]
    start = min((time for time in moments if math.isfinite(time)), default=0.0)
    gaps = [(begin - start, end - start) for begin, end in find_gaps(marks)]
    most = max(4, min(points, _ALL_POINTS // max(1, len(curves))))
    return {
        "curves": [_curve(curve, start, gaps, most) for curve in curves],
        "marks": [
            {"kind": mark.kind, "time": _number(mark.time - start), "step": mark.step, "text": mark.text}
            for mark in marks
        ],
        "gaps": [[_number(begin), _number(end)] for begin, end in gaps],
        "ended": view.state not in ("running", "silent"),
    }


def _curve(curve: Curve, start: float, gaps: Sequence[tuple[float, float]], points: int) -> dict[str, Any]:
    """Return a curve; between attempts a value of null, so that no line is drawn where nobody trained."""
    places = thin(curve.values, points)
    rows = [(curve.times[place] - start, curve.steps[place], curve.values[place]) for place in places]
    rows.sort(key=lambda row: row[0])
    times = [time for time, _, _ in rows]
    breaks: list[tuple[float, int, float | None]] = []
    for begin, end in gaps:
        before = bisect_right(times, begin)
        if before and bisect_left(times, end) < len(times):
            breaks.append(((begin + end) / 2, rows[before - 1][1], None))
    whole = sorted([*rows, *breaks], key=lambda row: row[0]) if breaks else rows
    return {
        "name": curve.name,
        "steps": [step for _, step, _ in whole],
        "times": [_number(time) for time, _, _ in whole],
        "values": [None if value is None else _number(value, 6) for _, _, value in whole],
        "rows": curve.rows,
    }


def _number(value: float, digits: int = 9) -> float | None:
    """Return a number with as many digits as a chart can show."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
