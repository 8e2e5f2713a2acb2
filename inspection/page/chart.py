"""Charts as plain SVG: round ticks, scales and paths; what is read (ticks, names) is text beside the drawing.

A drawing is stretched to the width that there is, its text is not: on a phone it has the size of all other text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pages.markup import Html, element, join

WIDTH, HEIGHT = 2000, 1000
"""Units of a drawing: one is a fraction of a pixel, so that whole numbers do."""

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


def round_ticks(low: float, high: float, most: int = 5) -> list[float]:
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


def duration_ticks(seconds: float, most: int = 6) -> list[float]:
    """Return at most `most` round durations from 0 on, none of them beyond `seconds`."""
    step = next((size for size in _DURATIONS if seconds / size < most), None)
    if step is None:
        days = round_ticks(0.0, seconds / 86400, most)
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


def value_axis(values: Sequence[float], *, percent: bool = False, most: int = 5) -> Axis:
    """Return the axis of values; 0 is on it unless they are far from it.

    Args:
        values: Finite numbers, one at least.
        percent: Values are fractions, and shown in percent.
        most: Ticks at most.
    """
    low, high = min(values), max(values)
    if low >= 0 and (low < 0.35 * high or low == high):
        low, high = 0.0, high or 1.0
    scale = 100.0 if percent else 1.0
    ticks = round_ticks(low * scale, high * scale, most)
    sign = "\u00a0%" if percent else ""
    named = [(tick / scale, tick_label(tick, ticks) + sign) for tick in ticks]
    return Axis(ticks[0] / scale, ticks[-1] / scale, named)


def count_axis(low: float, high: float, most: int = 6) -> Axis:
    """Return an axis from `low` to `high` exactly, with the round numbers between them: of steps."""
    ticks = [tick for tick in round_ticks(low, high, most) if low <= tick <= high and float(tick).is_integer()]
    return Axis(low, high if high > low else low + 1, [(tick, tick_label(tick, ticks)) for tick in ticks])


def time_axis(seconds: float, most: int = 6) -> Axis:
    """Return an axis of seconds since a start."""
    return Axis(0.0, seconds or 1.0, [(tick, duration_label(tick)) for tick in duration_ticks(seconds, most)])


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


def path(line: Line, x: Axis, y: Axis, gaps: Sequence[tuple[float, float]] = ()) -> str:
    """Return a line as an SVG path; it breaks where a value is no number, and where a gap lies between two points."""
    parts: list[str] = []
    is_open, before = False, -math.inf
    for at, value in zip(line.xs, line.ys, strict=True):
        if not (math.isfinite(at) and math.isfinite(value)):
            is_open = False
            continue
        if any(before <= start and end <= at for start, end in gaps):
            is_open = False
        point = f"{_unit(x.share(at), WIDTH)} {_unit(1 - y.share(value), HEIGHT)}"
        # A single point is a line to itself: round caps make a dot of it.
        parts.append(f"L{point}" if is_open else f"M{point}L{point}")
        is_open, before = True, at
    return "".join(parts)


def plot(
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    *,
    label: str,
    gaps: Sequence[tuple[float, float]] = (),
    rules: Iterable[tuple[str, Sequence[float]]] = (),
    unit: str = "",
) -> Html:
    """Return a chart.

    Args:
        lines: What is drawn.
        x: The axis across.
        y: The axis upwards.
        label: What it shows, in words, for those who do not see it.
        gaps: Stretches of x in which nothing ran: shaded.
        rules: A class of the style, and the places of x that get a vertical line of it.
        unit: Of x, after the last tick.
    """
    grid = "".join(f"M0 {_unit(1 - y.share(tick), HEIGHT)}H{WIDTH}" for tick, _ in y.ticks)
    shades = [
        element(
            "rect",
            x=_unit(x.share(start), WIDTH),
            y=0,
            width=max(2, _unit(x.share(end), WIDTH) - _unit(x.share(start), WIDTH)),
            height=HEIGHT,
            class_="gap",
        )
        for start, end in gaps
    ]
    ruled = [
        element("path", d="".join(f"M{_unit(x.share(at), WIDTH)} 0V{HEIGHT}" for at in places), class_=f"rule-{kind}")
        for kind, places in rules
        if places
    ]
    drawn = [element("path", d=path(line, x, y, gaps), class_=f"line s{line.style}") for line in lines]
    drawing = element(
        "svg",
        element("path", d=grid, class_="grid"),
        *shades,
        *ruled,
        *drawn,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )
    widest = max((len(name) for _, name in y.ticks), default=1)
    return element(
        "div",
        element("div", *_beside(y), class_="ys", style=f"width:{widest}ch", aria_hidden="true"),
        drawing,
        element("div", *_below(x, unit), class_="xs", aria_hidden="true"),
        class_="plot",
    )


def legend(lines: Sequence[Line], last: Sequence[str]) -> Html:
    """Return what each line is, with its last value."""
    items = [
        element("li", swatch(line.style), element("b", line.name), " ", value)
        for line, value in zip(lines, last, strict=True)
    ]
    return element("ul", *items, class_="legend")


def swatch(style: int) -> Html:
    """Return a piece of a line, as it is drawn."""
    return element(
        "svg",
        element("path", d="M1 5H23", class_=f"line s{style}"),
        viewBox="0 0 24 10",
        width=24,
        height=10,
        aria_hidden="true",
    )


def _beside(y: Axis) -> list[Html]:
    return [element("span", name, style=f"top:{(1 - y.share(tick)) * 100:.1f}%") for tick, name in y.ticks]


def _below(x: Axis, unit: str) -> list[Html]:
    named = list(x.ticks)
    spans = []
    for place, (tick, name) in enumerate(named):
        share = x.share(tick)
        side = "from" if share < 0.04 else "to" if share > 0.94 else None
        # The last one has the unit, in the middle of it would be mistaken for a name.
        shown = f"{name} {unit}" if unit and place == len(named) - 1 else name
        spans.append(element("span", shown, style=f"left:{share * 100:.1f}%", class_=side))
    return spans


def _unit(share: float, whole: int) -> int:
    return round(min(max(share, -1.0), 2.0) * whole)


def bars(heights: Sequence[float], *, label: str) -> Html:
    """Return bars side by side, from 0 on, as one drawing."""
    most = max(heights, default=0.0) or 1.0
    width = WIDTH / max(1, len(heights))
    gap = min(6.0, width * 0.2)
    d = join(
        f"M{place * width:.0f} {HEIGHT}V{HEIGHT - height / most * HEIGHT:.0f}h{width - gap:.0f}V{HEIGHT}z"
        for place, height in enumerate(heights)
    )
    return element(
        "svg",
        element("path", d=d, class_="fill"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )
