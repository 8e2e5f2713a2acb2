"""Charts as SVG: axes with round ticks, lines, vertical rules, marks and bars; one unit per chart.

A drawing is scaled to the width of the page; its text is separate and is not scaled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from inspection.pages import quantities
from inspection.pages.quantities import NBSP

WIDTH, HEIGHT = 2000, 1000
"""Units of a drawing: whole numbers are fractions of a pixel."""
_MOST_X_TICKS, _MOST_Y_TICKS = 6, 5


@dataclass(frozen=True)
class Axis:
    """A range of numbers with named ticks."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]

    def fraction(self, value: float) -> float:
        """Return the place of a value: 0 at the low end, 1 at the high end."""
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5


@dataclass(frozen=True)
class Plot:
    """A chart: places are fractions from the left and from the top."""

    label: str
    """Content as text, for screen readers."""
    xs: Sequence[tuple[str, float]] = ()
    """Ticks below it."""
    ys: Sequence[tuple[str, float]] = ()
    """Ticks on its left."""
    lines: Sequence[tuple[str, str]] = ()
    """Class and path of each."""
    bars: Sequence[tuple[str, float, float, str]] = ()
    """Class, left, width and tooltip of each, as high as the drawing."""
    marks: Sequence[tuple[str, str, float, float, str]] = ()
    """Class, path around (0, 0), left, top and tooltip."""
    height: int = 180
    """In pixels."""


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most `most` (two or more) round numbers that cover a range of finite numbers."""
    if not high > low:
        margin = abs(low) * 0.1 or 1.0
        low, high = low - margin, high + margin
    width = (high - low) / (most - 1)
    if not math.isfinite(width) or width < max(1e-200, 1e-13 * max(abs(low), abs(high))):
        # No round numbers between numbers that differ in the last bits.
        return [low, high]
    power = 10.0 ** math.floor(math.log10(width))
    for factor in (1, 2, 2.5, 5, 10, 20, 25, 50, 100):
        step = factor * power
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if 1 <= last - first < most:
            return [round(place * step, _decimals(step) + 2) + 0.0 for place in range(first, last + 1)]
    return [low, high]


def _decimals(step: float) -> int:
    """Return the number of decimals that multiples of a step need."""
    if step <= 0 or not math.isfinite(step):
        return 0
    digits = max(0, -math.floor(math.log10(step)))
    # 2.5 and 0.25 need one more than 2 and 0.2.
    return digits if round(step * 10.0**digits, 6).is_integer() else digits + 1


def value_axis(values: Sequence[float], unit: str = "number") -> Axis:
    """Return the axis of finite values; 0 is included unless it is far from them.

    Args:
        values: One or more.
        unit: Function of quantities.py: percent, size (ticks in one unit of bytes) or number.
    """
    low, high = min(values), max(values)
    if low >= 0 and (low < 0.35 * high or low == high):
        low, high = 0.0, high or 1.0
    scale, sign = (100.0, f"{NBSP}%") if unit == "percent" else (1.0, "")
    if unit == "size":
        # The unit of quantities.size for the largest value, so that axis and legend agree.
        sign = f"{NBSP}{quantities.size(max(abs(low), abs(high))).rpartition(NBSP)[2]}"
        scale = 1 / {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}[sign[1:]]
    ticks = round_ticks(low * scale, high * scale, _MOST_Y_TICKS)
    return Axis(ticks[0] / scale, ticks[-1] / scale, [(tick / scale, tick_label(tick, ticks) + sign) for tick in ticks])


def count_axis(low: float, high: float) -> Axis:
    """Return an axis from `low` to `high` exactly, with the round whole numbers between them: of steps."""
    ticks = [tick for tick in round_ticks(low, high, _MOST_X_TICKS) if low <= tick <= high and tick.is_integer()]
    return Axis(low, high if high > low else low + 1, [(tick, tick_label(tick, ticks)) for tick in ticks])


def time_axis(duration_s: float) -> Axis:
    """Return an axis of seconds since a start, with ticks in the largest unit that fits twice."""
    units = ((86400, "d"), (3600, "h"), (60, "min"))
    size, unit = next(((size, unit) for size, unit in units if duration_s >= 2 * size), (1, "s"))
    ticks = [tick for tick in round_ticks(0.0, duration_s / size, _MOST_X_TICKS) if 0 <= tick * size <= duration_s]
    return Axis(0.0, duration_s or 1.0, [(tick * size, f"{tick:g}{NBSP}{unit}" if tick else "0") for tick in ticks])


def tick_label(value: float, ticks: Sequence[float]) -> str:
    """Return a tick's number, with enough decimals to differ from its neighbours."""
    step = min((b - a for a, b in pairwise(ticks)), default=1.0)
    most = max(abs(tick) for tick in ticks)
    if most >= 1e7 or step < 1e-4:
        digits = math.floor(math.log10(most)) - math.floor(math.log10(step)) + 2 if most > 0 and step > 0 else 2
        return f"{value:.{max(1, digits)}g}"
    return f"{value:,.{_decimals(step)}f}"


def line_path(xs: Sequence[float], ys: Sequence[float], x: Axis, y: Axis) -> str:
    """Return an SVG path through points; it breaks at values that are not finite."""
    path: list[str] = []
    is_open = False
    for across, value in zip(xs, ys, strict=True):
        if not (math.isfinite(across) and math.isfinite(value)):
            is_open = False
            continue
        point = f"{_place(x.fraction(across), WIDTH)} {_place(1 - y.fraction(value), HEIGHT)}"
        # A single point is a line of length 0, drawn as a dot by round caps.
        path.append(f"L{point}" if is_open else f"M{point}L{point}")
        is_open = True
    return "".join(path)


def line_chart(
    lines: Sequence[tuple[Sequence[float], Sequence[float]]],
    x: Axis,
    y: Axis,
    *,
    label: str,
    rules: Sequence[tuple[str, Sequence[float]]] = (),
    spans: Sequence[tuple[float, float]] = (),
    x_unit: str = "",
) -> Plot:
    """Return a chart of lines in the classes s0, s1, ...

    Args:
        lines: xs and ys of each.
        x: Axis across.
        y: Axis upwards.
        label: Content as text.
        rules: Class and xs of vertical lines.
        spans: Ranges of x that are shaded.
        x_unit: Follows the last tick of x.
    """
    grid = "".join(f"M0 {_place(1 - y.fraction(tick), HEIGHT)}H{WIDTH}" for tick, _ in y.ticks)
    vertical = ((f"rule {kind}", [at for at in places if x.low <= at <= x.high]) for kind, places in rules)
    paths = [(kind, "".join(f"M{_place(x.fraction(at), WIDTH)} 0V{HEIGHT}" for at in at_x)) for kind, at_x in vertical]
    names = [f"{name} {x_unit}" if x_unit and (tick, name) == x.ticks[-1] else name for tick, name in x.ticks]
    return Plot(
        label,
        [(name, x.fraction(tick)) for name, (tick, _) in zip(names, x.ticks, strict=True)],
        [(name, 1 - y.fraction(tick)) for tick, name in y.ticks],
        [
            *(("gap", _span(x.fraction(begin), x.fraction(end))) for begin, end in spans),
            ("grid", grid),
            *((kind, path) for kind, path in paths if path),
            *((f"line s{style}", line_path(xs, ys, x, y)) for style, (xs, ys) in enumerate(lines)),
        ],
    )


def _span(begin: float, end: float) -> str:
    x = _place(begin, WIDTH)
    return f"M{x} 0H{max(_place(end, WIDTH), x + 2)}V{HEIGHT}H{x}z"


def _place(fraction: float, whole: int) -> int:
    return round(min(max(fraction, -1.0), 2.0) * whole)
