"""Learning curves over steps, and what happened to the training over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inspection.page.marks import MARKS, STOPS, find_gaps, mark_strip
from inspection.page.results import title
from inspection.page.subject import NO_VALUE, Limits, Subject, finite
from inspection.run.curves import thin
from inspection.run.view import Curve, RunView
from inspection.tasks import is_share
from pages.chart import Axis, Line, count_axis, make_plot, time_axis, value_axis
from pages.markup import Html, shorten
from pages.parts import Cell, Drawing, Figure, Fold, Grid, Part, Table, Text, Title, Words, absent, section
from pages.quantities import count, number, percent, size

TITLE = "Learning curves"

# Title of a chart, and the tags that are on it, in the order of their colours. Each metric of the task gets a chart
# after the first of these; what no chart names gets its own.
CHARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Loss", ("train/loss", "validation/loss")),
    ("Learning rate", ("train/learning_rate",)),
    ("Throughput, samples/s", ("train/samples_per_s", "throughput/samples_per_s", "data/samples_per_s")),
    ("Data time, % of the time", ("train/data_time_percent", "data/time_percent", "data/loader_percent")),
    ("Gradient norm", ("train/gradient_norm",)),
    ("Memory of the first rank, MiB", ("memory/resident_bytes", "memory/resident_peak_bytes")),
    (
        "Memory of its GPU at its peak, MiB",
        ("memory/gpu_allocated_peak_bytes", "memory/gpu_reserved_peak_bytes"),
    ),
    ("Use of its GPU, %", ("gpu/utilization_percent",)),
)
# What they say stands in a line: where training is, and how often it went wrong.
_IN_A_LINE = ("train/epoch", "train/skipped_steps")
_RULES = (*STOPS, "resume")
_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Chart:
    """Curves that share their axes."""

    title: str
    curves: Sequence[Curve]
    task: str = ""
    """Name of the run's task, which knows which metrics are shares."""

    @property
    def is_fraction(self) -> bool:
        """Whether all values are shares of 1, shown in percent."""
        return all(is_share(self.task, curve.name) or curve.name.endswith("fraction") for curve in self.curves)

    @property
    def is_bytes(self) -> bool:
        """Whether all values are bytes, drawn in MiB."""
        return all(curve.name.endswith("_bytes") for curve in self.curves)

    def drawn(self, curve: Curve) -> Sequence[float]:
        """Return the values of one of its curves in the unit of the axis."""
        return [value / 2**20 for value in curve.values] if self.is_bytes else curve.values

    def show(self, value: float) -> str:
        """Return a value as text, with its unit."""
        return percent(value) if self.is_fraction else size(value) if self.is_bytes else number(value)

    @property
    def unit(self) -> str:
        """What shows its values (pages/quantities.py)."""
        return "percent" if self.is_fraction else "size" if self.is_bytes else "number"


def curves(subject: Subject) -> Html:
    """Return the section on training."""
    found, limits = subject.view.curves, subject.limits
    drawn = [curve for curve in found.curves if finite(curve.values)] if found is not None else []
    if found is None or not drawn:
        why = absent("curves", subject.why_absent("train", "Learning curves"))
        return section("curves", TITLE, why, *_over_time(subject, []))
    first, flat = _headline(subject.view), [curve for curve in drawn if _is_flat(curve)]
    told = [curve for curve in drawn if curve not in flat]
    charts = group(told, limits, task=subject.view.task, headline=first)
    rest = [Chart(curve.name, [curve], subject.view.task) for curve in flat[: limits.rows]]
    points = max(len(curve.values) for curve in drawn)
    is_thinned = any(curve.rows > len(curve.values) for curve in drawn) or points > limits.points
    said = f"at most {count(min(points, limits.points))} points per curve" if is_thinned else "all drawn"
    more = len(drawn) - len(rest) - sum(len(chart.curves) for chart in charts)
    left_out = f" {count(more)} more curves are left out here; TensorBoard shows them." if more else ""
    return section(
        "curves",
        TITLE,
        Text(f"{count(found.rows)} rows, {said}.{left_out}", "note", "curves.rows"),
        Grid([_over_steps(subject, chart) for chart in charts], "charts"),
        _flat(subject, rest) if rest else None,
        *_over_time(subject, drawn),
        _values(subject, [*charts, *rest]),
        *(Text(subject.name(words), "missing") for words in found.missing),
    )


def _flat(subject: Subject, charts: Sequence[Chart]) -> Text:
    """Return the last values of curves that have no chart."""
    cells: list[Cell] = ["Without a chart, by their last values: "]
    for place, one in enumerate(charts):
        last = one.show(finite(one.curves[0].values)[-1])
        cells += [Words(subject.name(one.title), style="code"), f" {last}{'.' if place == len(charts) - 1 else ', '}"]
    return Text(cells, "note", "curves.flat")


def _is_flat(curve: Curve) -> bool:
    """Whether a line of text says all that a chart would."""
    constant = len(curve.values) > 1 and min(curve.values) == max(curve.values) and not curve.not_finite
    return curve.name in _IN_A_LINE or constant


def _headline(view: RunView) -> str:
    """Return the name of the task's headline metric; empty: not known."""
    found = view.evaluation or view.checkpoint
    return found.headline.metric if found is not None and found.headline is not None else ""


def group(drawn: Sequence[Curve], limits: Limits, *, task: str = "", headline: str = "") -> list[Chart]:
    """Return the charts: those that are known by their tags first, then a chart for each other curve.

    Args:
        drawn: All curves.
        limits: Of the page.
        task: Name of the task.
        headline: Its headline metric, which comes before its others; empty: not known.
    """
    by_name = {curve.name: curve for curve in drawn}
    found = {name.partition("/")[2] for name in by_name if name.startswith(("validation/", "test/"))} - {"loss"}
    names = sorted(found, key=lambda name: (name != headline, name))
    metrics = [(title(name), tuple(f"{split}/{name}" for split in _SPLITS)) for name in names]
    units = [name.removeprefix("train/").removesuffix("_per_s") for name in by_name if _is_rate(name)]
    rates = [(f"Throughput, {unit}/s", (f"train/{unit}_per_s",)) for unit in units]
    wanted = (*CHARTS[:1], *metrics[: max(0, limits.curves // 2)], *CHARTS[1:3], *rates, *CHARTS[3:])
    charts = [Chart(words, [by_name.pop(tag) for tag in tags if tag in by_name], task) for words, tags in wanted]
    charts = [chart for chart in charts if chart.curves]
    room = max(0, limits.curves - sum(len(chart.curves) for chart in charts))
    return charts + [Chart(curve.name, [curve], task) for curve in list(by_name.values())[:room]]


def _is_rate(name: str) -> bool:
    """Whether a tag is what a task counts besides samples, per second."""
    return name.startswith("train/") and name.endswith("_per_s") and name != "train/samples_per_s"


def _thin(curve: Curve, limit: int) -> Curve:
    return curve.at(thin(curve.values, max(4, limit)))


def _lines(subject: Subject, chart: Chart) -> list[Line]:
    """Return the lines of a chart."""
    lines = []
    for style, whole in enumerate(chart.curves):
        curve = _thin(whole, subject.limits.points)
        short = _short(whole.name, [other.name for other in chart.curves])
        lines.append(Line(shorten(short, 60), [float(step) for step in curve.steps], chart.drawn(curve), style))
    return lines


def _short(name: str, names: Sequence[str]) -> str:
    """Return what tells a curve from the others of its chart: train of train/loss, resident of its bytes."""
    if len(names) == 1:
        return name
    first, _, rest = name.partition("/")
    return (
        first
        if len({other.partition("/")[0] for other in names}) > 1
        else rest.removesuffix("_bytes").replace("_", " ")
    )


def _y(chart: Chart) -> Axis:
    values = [value for curve in chart.curves for value in finite(chart.drawn(curve))]
    return value_axis(values, percent=chart.is_fraction)


def _over_steps(subject: Subject, chart: Chart) -> Drawing:
    lines = _lines(subject, chart)
    places = [x for line in lines for x in line.xs]
    x = count_axis(min(places), max(places))
    marks = subject.view.marks.marks if subject.view.marks is not None else []
    stops = {
        kind: [float(mark.step) for mark in marks if mark.kind == kind and mark.step is not None] for kind in _RULES
    }
    rules = [(kind, [at for at in steps if x.low <= at <= x.high]) for kind, steps in stops.items()]
    last = [values[-1] if (values := finite(curve.values)) else None for curve in chart.curves]
    caption: list[Cell] = [Words(subject.name(chart.title), style="strong")]
    if len(lines) == 1:
        name = chart.curves[0].name
        tag = "" if name == chart.title else f" {subject.name(name)}"
        caption.append(Words(f"{tag} {chart.show(last[0]) if last[0] is not None else NO_VALUE}", style="small"))
    return Drawing(
        make_plot(lines, x, _y(chart), label=_describe(chart), rules=rules, unit="steps"),
        caption,
        [(line.name, value) for line, value in zip(lines, last, strict=True)] if len(lines) > 1 else [],
        chart.unit,
        remarks=[words for curve in chart.curves if (words := _diverged(curve))],
        data={"chart": chart.title},
    )


def _diverged(curve: Curve) -> str:
    """Say that values are NaN or infinite: the line leaves them out; empty: none is."""
    if not curve.not_finite:
        return ""
    values = "1 value is" if curve.not_finite == 1 else f"{curve.not_finite:,} values are"
    return f"{shorten(curve.name, 60)}: {values} not finite, the first at step {curve.first_not_finite:,}"


def _describe(chart: Chart) -> str:
    parts = []
    for curve in chart.curves:
        pairs = [(step, value) for step, value in zip(curve.steps, curve.values, strict=True) if finite([value])]
        low, high = min(pairs, key=lambda pair: pair[1]), max(pairs, key=lambda pair: pair[1])
        parts.append(
            f"{shorten(curve.name, 60)}: from {chart.show(pairs[0][1])} at step {pairs[0][0]:,} to "
            f"{chart.show(pairs[-1][1])} at step {pairs[-1][0]:,}; lowest {chart.show(low[1])} at step {low[0]:,}, "
            f"highest {chart.show(high[1])} at step {high[0]:,}"
        )
    return f"{shorten(chart.title, 60)}. " + ". ".join(parts)


def _over_time(subject: Subject, drawn: Sequence[Curve]) -> Iterator[Part]:
    """Yield the strip of what happened."""
    marks = subject.view.marks
    times = [time for curve in drawn for time in finite(curve.times)]
    times += finite([mark.time for mark in marks.marks]) if marks is not None else []
    if not times or marks is None:
        return
    start = min(times)
    gaps = [(begin - start, end - start) for begin, end in find_gaps(marks.marks)]
    yield Title("What happened over time")
    yield from mark_strip(subject, marks, time_axis(max(times) - start), start, gaps)


def _values(subject: Subject, charts: Sequence[Chart]) -> Fold:
    """Return the numbers behind the curves, for those who do not see them."""
    rows: list[tuple[Cell, ...]] = []
    points: list[tuple[Cell, ...]] = []
    for chart in charts:
        for curve in chart.curves:
            values, thinned = finite(curve.values), _thin(curve, min(20, subject.limits.rows))
            name, key = Words(subject.name(curve.name), style="code"), f"curves.{curve.name}"
            shown = {"first": values[0], "last": values[-1], "lowest": min(values), "highest": max(values)}
            figures = (Figure(f"{key}.{what}", value, chart.unit) for what, value in shown.items())
            rows.append((name, Figure(f"{key}.rows", curve.rows, "count"), *figures))
            points += [
                (name, count(step), chart.show(value))
                for step, value in zip(thinned.steps, thinned.values, strict=True)
                if finite([value])
            ]
    head = ("Curve", "Rows", "First", "Last", "Lowest", "Highest")
    tables = [
        Table("curve-values", "Each curve in numbers", head, rows),
        Table("curve-points", "Values of each curve, evenly chosen", ("Curve", "Step", "Value"), points),
    ]
    return Fold("The curves in numbers", tables, "curves-numbers")


__all__ = ["CHARTS", "MARKS", "Chart", "curves", "group"]
