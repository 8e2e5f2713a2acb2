"""Scalars and marks of a run, as the charts take them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from inspection.page.marks import find_gaps
from inspection.run.view import Curve, RunView


def chart_data(view: RunView) -> dict[str, Any]:
    """Return curves and marks; times are seconds since the first of them, what is no number is null."""
    curves = view.curves.curves if view.curves is not None else []
    marks = view.marks.marks if view.marks is not None else []
    moments = [time for curve in curves for time in curve.times[:1]] + [mark.time for mark in marks]
    start = min((time for time in moments if math.isfinite(time)), default=0.0)
    gaps = find_gaps(marks)
    return {
        "curves": [_curve(curve, start, gaps) for curve in curves if curve.values],
        "marks": [
            {"kind": mark.kind, "time": _number(mark.time - start), "step": mark.step, "text": mark.text}
            for mark in marks
        ],
        "ended": view.state not in ("running", "silent"),
    }


def _curve(curve: Curve, start: float, gaps: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return a curve; between attempts a value of null, so that no line is drawn where nobody trained."""
    rows: list[tuple[float, int, float | None]] = list(zip(curve.times, curve.steps, curve.values, strict=True))
    for begin, end in gaps:
        before = [step for time, step, _ in rows if time <= begin]
        if before and any(time >= end for time, _, _ in rows):
            rows.append(((begin + end) / 2, before[-1], None))
    if len(rows) > len(curve.times):
        rows.sort(key=lambda row: row[0])
    return {
        "name": curve.name,
        "steps": [step for _, step, _ in rows],
        "times": [_number(time - start) for time, _, _ in rows],
        "values": [None if value is None else _number(value) for _, _, value in rows],
        "rows": curve.rows,
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
