"""Section on the training: curves over steps, events over time, and the account of time and cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from contracts.artifacts import GoodputRecord
from inspection.pages.chart import Plot, count_axis, line_chart, time_axis, value_axis
from inspection.pages.parts import Cell, Drawing, Figure, Part, Table, Text, Tiles, absent, grid, note, section
from inspection.pages.quantities import count, instant, number, percent, seconds, several, shorten, size, usd
from inspection.pages.rendering import Html
from inspection.report.context import NO_VALUE, Context, finite, first, not_finite, omitted
from inspection.task_metrics import is_share
from inspection.training import TIME_CLASSES, thin
from inspection.view import Curve, Mark, Money

# Titles of charts, and their curves in the order of their colours. Charts of the task's metrics come after the
# first of these; each remaining curve has its own chart.
_CHARTS: dict[str, tuple[str, ...]] = {
    "Loss": ("train/loss", "validation/loss"),
    "Learning rate": ("train/learning_rate",),
    "Throughput, samples/s": ("train/samples_per_s",),
    "Data time, % of the time": ("data/time_percent",),
    "Gradient norm": ("train/gradient_norm",),
    "RAM of the first rank": ("memory/resident_bytes", "memory/resident_peak_bytes"),
    "Peak memory of the first rank's GPU": ("memory/gpu_allocated_peak_bytes", "memory/gpu_reserved_peak_bytes"),
}
# Curves shown by their last value.
_WITHOUT_CHART = ("train/epoch", "train/skipped_steps")
# By kind: row of the strip, shape around (0, 0), name.
_MARKS: dict[str, tuple[int, str, str]] = {
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
_STOPS = ("preemption", "interruption", "kill", "crash")
_ROWS = ("runs", "saves", "stops")


def training(context: Context) -> Html:
    """Return the section."""
    view = context.view
    parts: list[Part | None] = []
    curves = [curve for curve in view.curves if finite(curve.values)]
    if curves:
        parts += _curves(context, curves)
    else:
        parts.append(context.why_absent("curves", "train", "Learning curves"))
    if view.marks:
        parts += [Text("Events over time", "title"), *_strip(context, curves)]
    parts.append(Text("Time and money", "title"))
    if view.goodput is not None:
        parts += _time(view.goodput)
    else:
        parts.append(context.why_absent("goodput", "train", "Account of the training's time"))
    if view.money is not None:
        parts += _money(view.money)
    elif view.goodput is not None:
        reasons = (each.reason for each in view.missing if each.what == "cost")
        parts.append(absent("money", f"Cost: {context.message(next(reasons, 'no price of the machines is known'))}"))
    return section("training", "Training", *parts)


def _curves(context: Context, curves: Sequence[Curve]) -> Iterator[Part | None]:
    limits = context.limits
    flat = [curve for curve in curves if _is_flat(curve)]
    charts = group([curve for curve in curves if curve not in flat], context)
    yield grid([_chart(context, title, chart) for title, chart in charts])
    if flat:
        texts = [f"{context.name(curve.name)} {number(finite(curve.values)[-1])}" for curve in flat[: limits.rows]]
        yield Text(f"Without a chart, by their last values: {', '.join(texts)}.", "note")
    rows = max(curve.rows for curve in curves)
    if any(curve.rows > min(len(curve.values), max(4, limits.points)) for curve in curves):
        most = count(max(4, limits.points))
        yield note(f"Of up to {count(rows)} values per curve at most {most} are drawn, including extremes.")
    if any(mark.kind in (*_STOPS, "resume") for mark in context.view.marks):
        yield note("Vertical lines: stops and resumes. Shaded: steps that were repeated after them.")
    drawn = sum(len(chart) for _, chart in charts) + min(len(flat), limits.rows)
    yield note(omitted(drawn, len(curves), "curves"))


def _is_flat(curve: Curve) -> bool:
    constant = len(curve.values) > 1 and min(curve.values) == max(curve.values) and not curve.not_finite
    return curve.name in _WITHOUT_CHART or constant


def group(curves: Sequence[Curve], context: Context) -> list[tuple[str, list[Curve]]]:
    """Return the charts, each with its title: known ones first, then one for each other curve."""
    view, limit = context.view, context.limits.curves
    by_name = {curve.name: curve for curve in curves}
    document = view.evaluation or view.checkpoint
    headline = document.headline.metric if document is not None and document.headline is not None else ""
    names = {name.partition("/")[2] for name in by_name if name.startswith(("validation/", "test/"))} - {"loss"}
    metrics = {
        name.replace("_", " ").capitalize(): tuple(f"{split}/{name}" for split in ("train", "validation", "test"))
        for name in sorted(names, key=lambda name: (name != headline, name))[: max(0, limit // 2)]
    }
    # Rates of the task's further units, such as tokens.
    units = [name.removeprefix("train/").removesuffix("_per_s") for name in by_name if name.endswith("_per_s")]
    rates = {f"Throughput, {unit}/s": (f"train/{unit}_per_s",) for unit in units if unit != "samples"}
    charts = list(_CHARTS.items())
    ordered = [charts[0], *metrics.items(), *charts[1:3], *rates.items(), *charts[3:]]
    grouped = [(title, [by_name.pop(name) for name in names if name in by_name]) for title, names in ordered]
    grouped = [(title, chart) for title, chart in grouped if chart]
    room = max(0, limit - sum(len(chart) for _, chart in grouped))
    return grouped + [(curve.name, [curve]) for curve in list(by_name.values())[:room]]


def _chart(context: Context, title: str, curves: Sequence[Curve]) -> Drawing:
    """Return a chart; axis and legend have one unit."""
    is_percent = all(is_share(context.view.task, curve.name) or curve.name.endswith("fraction") for curve in curves)
    unit = "percent" if is_percent else "size" if all(curve.name.endswith("_bytes") for curve in curves) else "number"
    show = {"percent": percent, "size": size, "number": number}[unit]
    thinned = [curve.at(thin(curve.values, max(4, context.limits.points))) for curve in curves]
    x = count_axis(min(curve.steps[0] for curve in thinned), max(curve.steps[-1] for curve in thinned))
    y = value_axis([value for curve in thinned for value in finite(curve.values)], unit)
    steps = {
        kind: [float(mark.step) for mark in context.view.marks if mark.kind == kind and mark.step is not None]
        for kind in (*_STOPS, "resume")
    }
    texts = [f"{shorten(curve.name, 60)} {show(finite(curve.values)[-1])}" for curve in curves]
    plot = line_chart(
        [([float(step) for step in curve.steps], curve.values) for curve in thinned],
        x,
        y,
        label=f"{shorten(title, 60)} over steps; last values: {', '.join(texts)}",
        rules=list(steps.items()),
        spans=repeated_steps(context.view.marks),
        x_unit="steps",
    )
    legend = [(f"line s{place % 4}", "M-11 0H11", text) for place, text in enumerate(texts)]
    caption: list[Cell] = [Text(context.name(title), "strong")]
    return Drawing(plot, caption, legend, not_finite(curves))


def repeated_steps(marks: Sequence[Mark]) -> list[tuple[float, float]]:
    """Return the ranges of steps that a later attempt repeated: from the checkpoint it resumed from to the stop."""
    ranges: list[tuple[float, float]] = []
    last = 0
    for mark in sorted(marks, key=lambda each: each.time):
        if mark.kind == "resume" and mark.step is not None and mark.step < last:
            ranges.append((float(mark.step), float(last)))
            last = mark.step
        elif mark.kind != "best" and mark.step is not None:
            last = max(last, mark.step)
    return ranges


def find_gaps(marks: Sequence[Mark]) -> list[tuple[float, float]]:
    """Return the times between the end of an attempt and the start of the next, in seconds since the epoch."""
    gaps: list[tuple[float, float]] = []
    ended: float | None = None
    for mark in sorted(marks, key=lambda each: each.time):
        if mark.kind in (*_STOPS, "end"):
            ended = mark.time if ended is None else ended
        elif mark.kind in ("start", "resume"):
            if ended is not None and mark.time > ended:
                gaps.append((ended, mark.time))
            ended = None
    return gaps


def _strip(context: Context, curves: Sequence[Curve]) -> Iterator[Part | None]:
    """Yield starts, checkpoints and stops over time; the time between attempts is shaded."""
    marks = [mark for mark in context.view.marks if math.isfinite(mark.time)]
    times = [mark.time for mark in marks] + [time for curve in curves for time in finite(curve.times)]
    if not times:
        return
    start, gaps = min(times), find_gaps(marks)
    x = time_axis(max(times) - start)
    # If there are too many marks, checkpoints are omitted first.
    drawn = marks if len(marks) <= context.limits.points else [mark for mark in marks if mark.kind != "checkpoint"]
    drawn = drawn[-context.limits.points :]
    counts = {kind: sum(mark.kind == kind for mark in marks) for kind in _MARKS}
    legend = [
        (f"mark {kind}", path, several(counts[kind], name))
        for kind, (_, path, name) in _MARKS.items()
        if counts[kind] or kind in ("checkpoint", "preemption")
    ]
    tops = [(row + 0.5) / len(_ROWS) for row in range(len(_ROWS))]
    plot = Plot(
        "Events of the training over time: " + ", ".join(text for *_, text in legend),
        xs=[(name, x.fraction(tick)) for tick, name in x.ticks],
        ys=[(name, tops[row]) for row, name in enumerate(_ROWS)],
        bars=[
            ("gap", x.fraction(begin - start), max(0.001, (end - begin) / (x.high - x.low)), seconds(end - begin))
            for begin, end in gaps
        ],
        marks=[
            (mark.kind, path, x.fraction(mark.time - start), tops[row], _describe(mark, name))
            for mark in drawn
            for row, path, name in (_MARKS[mark.kind],)
        ],
        height=66,
    )
    yield Drawing(plot, "", legend, id="events")
    if gaps:
        idle = seconds(sum(end - begin for begin, end in gaps))
        yield note(f"Shaded: from the end of an attempt to the next start, {idle} in all.")
    stops = [_describe(mark, _MARKS[mark.kind][2]) for mark in marks if mark.kind in _STOPS]
    if stops:
        yield Text(first(stops[::-1], context.limits.rows, "stops"), "list")
    yield note(omitted(len(drawn), len(marks), "marks"))


def _describe(mark: Mark, name: str) -> str:
    step = f", step {mark.step:,}" if mark.step is not None else ""
    return f"{name}{step}, {instant(mark.time)}{f': {shorten(mark.text, 160)}' if mark.text else ''}"


def _time(record: GoodputRecord) -> Iterator[Part | None]:
    values = {field: getattr(record, field) for field in TIME_CLASSES}
    finite_values = {field: max(0.0, value) if math.isfinite(value) else 0.0 for field, value in values.items()}
    total = sum(finite_values.values()) or 1.0
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            Figure(f"time.{field}", values[field], "seconds", bar=finite_values[field] / total),
            percent(finite_values[field] / total) if math.isfinite(values[field]) else NO_VALUE,
        )
        for field, name in TIME_CLASSES.items()
    ]
    idle = record.between_attempts_s
    remark = f"In addition, {seconds(idle)} between attempts, in which nothing ran." if 0 < idle < math.inf else ""
    yield Table("times", "Time of the training over all attempts", ("Use", "Time", "Share"), rows, note=remark)
    counts = {
        "attempts": f"{several(record.starts, 'start')} of the ranks",
        "interruptions": "Ctrl-C, or SIGTERM by a user",
        "kills": "ended without an event, on a machine that is not preemptible",
        "crashes": "failed ranks",
        "steps": "optimizer steps",
        "lost_steps": "steps repeated after interruptions",
    }
    yield Tiles(
        [
            (name.replace("_", " ").capitalize(), Figure(f"time.{name}", getattr(record, name), "count"), remark)
            for name, remark in counts.items()
            if getattr(record, name)
        ]
    )


def _money(money: Money) -> Iterator[Part | None]:
    node_hours: Cell = Figure("money.node_hours", money.node_hours, "number")
    tiles: list[tuple[str, Cell, Cell]] = [("Node-hours", node_hours, money.machine or "this machine")]
    saved = (money.on_demand_usd or 0.0) - money.cost_usd
    if saved > 0 and money.strategy != "STANDARD":
        figure = Figure("money.on_demand", money.on_demand_usd, "usd")
        tiles.append(("On demand", figure, f"{usd(saved)} more than with {money.strategy.lower()} machines"))
    yield Tiles(tiles)
    yield Text([f"An estimate. Prices: {money.source}.", *money.assumptions], "list")
