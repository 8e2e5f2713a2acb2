"""Charts as plain SVG: round ticks, scales and paths; what is read (ticks, names) is text beside the drawing.

A drawing is stretched to the width that there is, its text is not: on a phone it has the size of all other text.
Templates draw them by the macros in pages/templates/chart/macros.html.j2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

WIDTH, HEIGHT = 2000, 1000
"""Units of a drawing: one is a fraction of a pixel, so that whole numbers do."""

# Ticks at most: of an axis of steps or times, and of one of values.
_MOST_TICKS, _MOST_VALUES = 6, 5

# Round steps of a time axis, in seconds.
_DURATIONS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@dataclass(frozen=True)
class Line:
    """A line of a chart."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: int
    """Which of the colours and dashes."""


@dataclass(frozen=True)
class Axis:
    """A stretch of numbers, with the round ones that are named."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]

    def share(self, value: float) -> float:
        """Return where a value is: 0 at the low end, 1 at the high one."""
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most `most` round numbers that cover a stretch, from not above `low` to not below `high`.

    Args:
        low: Smallest value, finite.
        high: Largest value, finite; not below `low`.
        most: Two at least.
    """
    if not high > low:
        room = abs(low) * 0.1 or 1.0
        low, high = low - room, high + room
    width = (high - low) / (most - 1)
    if not math.isfinite(width) or width < max(1e-200, 1e-13 * max(abs(low), abs(high))):
        # Numbers that differ by their last bits have no round ones between them.
        return [low, high]
    power = 10.0 ** math.floor(math.log10(width))
    for factor in (1, 2, 2.5, 5, 10, 20, 25, 50, 100):
        step = factor * power
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if 1 <= last - first < most:
            return [round_to(place * step, step) for place in range(first, last + 1)]
    return [low, high]


def duration_ticks(seconds: float) -> list[float]:
    """Return a few round durations from 0 on, none of them beyond `seconds`."""
    step = next((size for size in _DURATIONS if seconds / size < _MOST_TICKS), None)
    if step is None:
        days = round_ticks(0.0, seconds / 86400, _MOST_TICKS)
        return [day * 86400 for day in days if 0 <= day * 86400 <= seconds]
    return [float(step * place) for place in range(int(seconds / step) + 1)]


def round_to(value: float, step: float) -> float:
    """Return a multiple of a step without the noise of its multiplication."""
    return round(value, decimals_of(step) + 2) + 0.0


def decimals_of(step: float) -> int:
    """Return how many decimals multiples of a step need."""
    if step <= 0 or not math.isfinite(step):
        return 0
    digits = max(0, -math.floor(math.log10(step)))
    # 2.5 and 25 have one more than 2 and 20.
    return digits if round(step * 10.0**digits, 6).is_integer() else digits + 1


def value_axis(values: Sequence[float], *, percent: bool = False) -> Axis:
    """Return the axis of values; 0 is on it unless they are far from it.

    Args:
        values: Finite numbers, one at least.
        percent: Values are fractions, and shown in percent.
    """
    low, high = min(values), max(values)
    if low >= 0 and (low < 0.35 * high or low == high):
        low, high = 0.0, high or 1.0
    scale = 100.0 if percent else 1.0
    ticks = round_ticks(low * scale, high * scale, _MOST_VALUES)
    sign = "\u00a0%" if percent else ""
    named = [(tick / scale, tick_label(tick, ticks) + sign) for tick in ticks]
    return Axis(ticks[0] / scale, ticks[-1] / scale, named)


def count_axis(low: float, high: float) -> Axis:
    """Return an axis from `low` to `high` exactly, with the round numbers between them: of steps."""
    ticks = [tick for tick in round_ticks(low, high, _MOST_TICKS) if low <= tick <= high and float(tick).is_integer()]
    return Axis(low, high if high > low else low + 1, [(tick, tick_label(tick, ticks)) for tick in ticks])


def time_axis(seconds: float) -> Axis:
    """Return an axis of seconds since a start."""
    return Axis(0.0, seconds or 1.0, [(tick, duration_label(tick)) for tick in duration_ticks(seconds)])


def tick_label(value: float, ticks: Sequence[float]) -> str:
    """Return a tick's number, with as many decimals as its neighbours need."""
    step = min((b - a for a, b in pairwise(ticks)), default=1.0)
    most = max(abs(tick) for tick in ticks)
    if most >= 1e7 or step < 1e-4:
        # As many digits as tell neighbours apart.
        digits = math.floor(math.log10(most)) - math.floor(math.log10(step)) + 2 if most > 0 and step > 0 else 2
        return f"{value:.{max(1, digits)}g}"
    return f"{value:,.{decimals_of(step)}f}"


def duration_label(seconds: float) -> str:
    """Return a round duration in its own unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size and (seconds / size * 2).is_integer():
            return f"{seconds / size:g}\u00a0{unit}"
    return f"{seconds:g}\u00a0s" if seconds else "0"


def path(line: Line, x: Axis, y: Axis) -> str:
    """Return a line as an SVG path; it breaks where a value is no number."""
    parts: list[str] = []
    is_open = False
    for at, value in zip(line.xs, line.ys, strict=True):
        if not (math.isfinite(at) and math.isfinite(value)):
            is_open = False
            continue
        point = f"{_unit(x.share(at), WIDTH)} {_unit(1 - y.share(value), HEIGHT)}"
        # A single point is a line to itself: round caps make a dot of it.
        parts.append(f"L{point}" if is_open else f"M{point}L{point}")
        is_open = True
    return "".join(parts)


@dataclass(frozen=True)
class Plot:
    """A chart, ready to be drawn."""

    label: str
    """What it shows, in words, for those who do not see it."""
    lines: tuple[tuple[int, str], ...]
    """Style and path."""
    grid: str
    """Path of the horizontal lines."""
    rules: tuple[tuple[str, str], ...]
    """Kind and path of vertical lines."""
    ys: tuple[tuple[str, float], ...]
    """Names beside the drawing, and their place from the top, 0 to 1."""
    xs: tuple[tuple[str, float, str], ...]
    """Names below it, their place from the left, 0 to 1, and the side that they must not stick out of."""

    @property
    def width_of_names(self) -> int:
        """Characters of the longest name beside it."""
        return max((len(name) for name, _ in self.ys), default=1)


def make_plot(
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    *,
    label: str,
    rules: Iterable[tuple[str, Sequence[float]]] = (),
    unit: str = "",
) -> Plot:
    """Return a chart.

    Args:
        lines: What is drawn.
        x: The axis across.
        y: The axis upwards.
        label: What it shows, in words, for those who do not see it.
        rules: A class of the style, and the places of x that get a vertical line of it.
        unit: Of x, after the last tick.
    """
    return Plot(
        label,
        tuple((line.style, path(line, x, y)) for line in lines),
        "".join(f"M0 {_unit(1 - y.share(tick), HEIGHT)}H{WIDTH}" for tick, _ in y.ticks),
        tuple(
            (kind, "".join(f"M{_unit(x.share(at), WIDTH)} 0V{HEIGHT}" for at in places))
            for kind, places in rules
            if places
        ),
        tuple((name, 1 - y.share(tick)) for tick, name in y.ticks),
        tuple(_below(x, unit)),
    )


def _below(x: Axis, unit: str) -> Iterator[tuple[str, float, str]]:
    for place, (tick, name) in enumerate(x.ticks):
        share = x.share(tick)
        # The last one has the unit, in the middle of it would be mistaken for a name.
        shown = f"{name} {unit}" if unit and place == len(x.ticks) - 1 else name
        yield shown, share, "from" if share < 0.04 else "to" if share > 0.94 else ""


def _unit(share: float, whole: int) -> int:
    return round(min(max(share, -1.0), 2.0) * whole)


def bars(heights: Sequence[float]) -> str:
    """Return the path of bars side by side, from 0 on."""
    most = max(heights, default=0.0) or 1.0
    width = WIDTH / max(1, len(heights))
    gap = min(6.0, width * 0.2)
    return "".join(
        f"M{place * width:.0f} {HEIGHT}V{HEIGHT - height / most * HEIGHT:.0f}h{width - gap:.0f}V{HEIGHT}z"
        for place, height in enumerate(heights)
    )
