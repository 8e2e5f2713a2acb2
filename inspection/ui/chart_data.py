"""Scalars and marks of a run, as the charts take them."""

from __future__ import annotations

import math
from typing import Any

from inspection.run.view import RunView


def chart_data(view: RunView) -> dict[str, Any]:
    """Return curves and marks; times are seconds since the first of them, what is no number is null."""
    curves = view.curves.curves if view.curves is not None else []
    marks = view.marks.marks if view.marks is not None else []
    moments = [time for curve in curves for time in curve.times[:1]] + [mark.time for mark in marks]
    start = min((time for time in moments if math.isfinite(time)), default=0.0)
    return {
        "curves": [
            {
                "name": curve.name,
                "steps": curve.steps,
                "times": [_number(time - start) for time in curve.times],
                "values": [_number(value) for value in curve.values],
                "rows": curve.rows,
            }
            for curve in curves
        ],
        "marks": [
            {"kind": mark.kind, "time": _number(mark.time - start), "step": mark.step, "text": mark.text}
            for mark in marks
        ],
        "ended": view.state not in ("running", "silent"),
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
