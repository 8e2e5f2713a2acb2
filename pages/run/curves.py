"""Learning curves over steps, and what happened to the training over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.chart import Plot
from pages.markup import Html
from pages.rendering import View


@dataclass(frozen=True)
class ChartBox:
    """A chart with its title and legend."""

    key: str
    """Title in full."""
    title: str
    tag: str
    """Name of its only curve, where the title is another; empty else."""
    unit: str
    """Of its values: a filter of pages/quantities.py."""
    curves: str
    """Names of its curves, a list of JSON."""
    lines: tuple[tuple[str, float | None], ...]
    """Name and last value of each."""
    diverged: tuple[str, ...]
    """What is said of values that are not finite."""
    plot: Plot


@dataclass(frozen=True)
class MarkShape:
    """Something that happened, on the time axis."""

    kind: str
    path: str
    left: float
    """Share of the axis."""
    top: float
    """In pixels."""
    words: str


@dataclass(frozen=True)
class MarkStrip:
    """Rows of marks over the time axis."""

    label: str
    rows: tuple[tuple[str, float], ...]
    """Name, and middle from the top in pixels."""
    height: int
    gaps: tuple[tuple[float, float], ...]
    """Left end and width of what is shaded, as shares of the axis."""
    marks: tuple[MarkShape, ...]
    ticks: tuple[tuple[str, float], ...]
    """Name, and place as a share of the axis."""
    counts: tuple[tuple[str, str, str], ...]
    """Of each kind: its name, path, and how many there were, in words."""
    listed: tuple[str, ...]
    """Marks in words."""
    listed_left_out: int
    left_out: int


@dataclass(frozen=True)
class OverTime:
    """What happened to a training."""

    strip: MarkStrip
    idle_s: float | None
    """Between attempts; None: there was one."""


@dataclass(frozen=True)
class CurveRow:
    """A curve in numbers."""

    key: str
    name: str
    unit: str
    rows: int
    first: float
    last: float
    lowest: float
    highest: float
    points: tuple[tuple[int, float], ...]
    """Step and value of some of its points, evenly chosen."""


@dataclass(frozen=True)
class CurvesSection(View):
    """The section on learning curves."""

    template: ClassVar[str] = "run/curves.html.j2"
    title: str
    absent: str = ""
    """Why there is no curve; empty: there are some."""
    rows: int = 0
    most_points: int | None = None
    """Points drawn of a curve at most; None: all are drawn."""
    curves_left_out: int = 0
    charts: tuple[ChartBox, ...] = ()
    flat: tuple[tuple[str, str, float], ...] = ()
    """Name, unit and last value of curves that have no chart."""
    over_time: OverTime | None = None
    values: tuple[CurveRow, ...] = ()
    missing: tuple[str, ...] = ()
    """What could not be read, in words."""


@dataclass(frozen=True)
class ChartData(View):
    """What the script of a page draws."""

    template: ClassVar[str] = "run/chart_data.html.j2"
    json: Html
    """Without any `<`."""
