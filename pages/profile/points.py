"""Tables of a sweep: configurations measured end to end, those that failed, the loader alone, the steps alone."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.artifacts import ComputePoint, LoaderPoint, ProfilePoint
from pages.heat_map import is_failed
from pages.markup import shorten
from pages.parts import Cell, Figure, Table, Words
from pages.profile.subject import Subject, workers
from pages.quantities import count, number, several

NO_RATE = "\u2013"


def point_table(subject: Subject) -> Table:
    """Return the configurations with a rate or a prediction, the fastest first."""
    points = [point for point in subject.report.points if not is_failed(point)]
    points.sort(key=lambda p: (-(p.samples_per_s or 0.0), -(p.predicted_samples_per_s or 0.0)))
    limit = subject.limits.points
    return Table(
        "points",
        "Configurations end to end, fastest first; rates of one rank",
        (
            "Configuration",
            "Predicted (samples/s)",
            "Measured (samples/s)",
            "Lowest to highest window",
            "Windows",
            "Predicted ÷ measured",
            "Data time (% of step)",
            "USD per million samples",
        ),
        [_point(subject, position, point) for position, point in enumerate(points[:limit])],
        note=_left_out(points, limit),
    )


def failed_table(subject: Subject) -> Table:
    """Return the configurations that did not work, with their reasons."""
    failed = [point for point in subject.report.points if is_failed(point)]
    limit = subject.limits.points
    return Table(
        "failed-points",
        "Configurations that could not be measured",
        ("Configuration", "Outcome", "Reason"),
        [(describe_settings(one), one.outcome, shorten(one.reason, subject.limits.reason)) for one in failed[:limit]],
        words=3,
        note=_left_out(failed, limit),
    )


def part_tables(subject: Subject) -> tuple[Table, ...]:
    """Return the loader alone and the steps alone, each where it was measured."""
    loader, compute, limit = subject.report.loader, subject.report.compute, subject.limits.points
    found = []
    if loader:
        fastest = max(point.samples_per_s or 0.0 for point in loader)
        rows: list[tuple[Cell, ...]] = [
            (
                f"{workers(point.num_workers, point.prefetch_factor)}, slot size {point.slot_size}",
                _part_rate(subject, f"loader.{i}", point, fastest),
                Figure(f"loader.{i}.cpu_ms", _milli(point.cpu_s_per_sample), "number"),
            )
            for i, point in enumerate(loader[:limit])
        ]
        head = ("Loader", "Samples/s of one rank", "Processor time (ms per sample)")
        found.append(Table("loader-points", "The loader alone, no steps", head, rows, note=_left_out(loader, limit)))
    if compute:
        fastest = max(point.samples_per_s or 0.0 for point in compute)
        rows = [
            (
                f"slot size {point.slot_size}, {several(point.threads, 'thread')}, {point.flags.in_words()}",
                _part_rate(subject, f"compute.{i}", point, fastest),
                Figure(f"compute.{i}.slot_ms", _milli(point.slot_s), "number"),
                Figure(f"compute.{i}.last_slot_ms", _milli(point.last_slot_s), "number"),
                Figure(f"compute.{i}.memory_bytes", point.memory_bytes, "size"),
            )
            for i, point in enumerate(compute[:limit])
        ]
        steps = ("Steps", "Samples/s of one rank", "Slot (ms)", "Last slot, with update (ms)", "Peak memory of a rank")
        caption = "The steps alone, on tensors that are on the device already"
        found.append(Table("compute-points", caption, steps, rows, note=_left_out(compute, limit)))
    return tuple(found)


def _point(subject: Subject, position: int, point: ProfilePoint) -> tuple[Cell, ...]:
    name = f"points.{position}"
    predicted, measured = point.predicted_samples_per_s, point.samples_per_s
    ratio = predicted / measured if predicted is not None and measured else None
    spread = NO_RATE
    if point.samples_per_s_min is not None and point.samples_per_s_max is not None:
        spread = f"{number(point.samples_per_s_min)} to {number(point.samples_per_s_max)}"
    return (
        Words(describe_settings(point), "★ chosen" if subject.is_chosen(point) else "", star=True),
        Figure(f"{name}.predicted", predicted, "number", "not predicted"),
        Figure(f"{name}.measured", measured, "number"),
        spread,
        count(point.windows) if point.windows else NO_RATE,
        Figure(f"{name}.ratio", ratio, "number", NO_RATE),
        Figure(f"{name}.data_time_fraction", point.data_time_fraction, "percent", NO_RATE),
        Figure(f"{name}.usd", point.usd_per_million_samples, "number", NO_RATE),
    )


def describe_settings(point: ProfilePoint) -> str:
    """Return a configuration in words."""
    return (
        f"slot size {point.slot_size} \u00d7 {point.slots_per_rank}, "
        f"{workers(point.num_workers, point.prefetch_factor)}, "
        f"{several(point.threads, 'thread')}, {point.flags.in_words()}"
    )


def _part_rate(subject: Subject, name: str, point: LoaderPoint | ComputePoint, fastest: float) -> Cell:
    if point.outcome != "measured":
        reason = shorten(point.reason, subject.limits.reason)
        return f"{point.outcome}: {reason}" if reason else point.outcome
    value = point.samples_per_s
    return Figure(f"{name}.samples_per_s", value, "number", bar=value / fastest if value and fastest else None)


def _left_out(points: Sequence[object], limit: int) -> str:
    more = len(points) - limit
    return f"{more} more are left out here; the report holds them." if more > 0 else ""


def _milli(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
