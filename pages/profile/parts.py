"""What the sweep predicts from: the loader alone, the steps alone, and memory as a line."""

from __future__ import annotations

from contracts.artifacts import ComputePoint, LoaderPoint
from pages.markup import Html, bar, element, figure, join, shorten, table
from pages.profile.subject import Subject, name_flags, workers
from pages.quantities import number, several, size


def parts(subject: Subject) -> Html:
    """Return the tables of parts; nothing where none was measured, as in a full grid."""
    report = subject.report
    tables = []
    if report.loader:
        tables.append(_loader(subject, report.loader))
    if report.compute:
        tables.append(_compute(subject, report.compute))
    if not tables:
        return Html("")
    return element("details", element("summary", "The parts: loader alone, steps alone"), *tables)


def _rate(name: str, value: float | None, outcome: str, reason: str, most: float, limit: int) -> Html:
    if outcome != "measured":
        return element("span", f"{outcome}: {shorten(reason, limit)}" if reason else outcome, class_="missing")
    return join([figure(name, value, number), bar(value / most if value is not None and most else None)])


def _loader(subject: Subject, points: list[LoaderPoint]) -> Html:
    most = max((point.samples_per_s or 0.0 for point in points), default=0.0)
    limit = subject.limits
    rows = [
        [
            f"{workers(point.num_workers, point.prefetch_factor)}, slot size {point.slot_size}",
            _rate(f"loader.{i}.samples_per_s", point.samples_per_s, point.outcome, point.reason, most, limit.reason),
            figure(f"loader.{i}.cpu_ms", _milli(point.cpu_s_per_sample), number),
        ]
        for i, point in enumerate(points[: limit.points])
    ]
    head = ["Loader", "Samples/s of one rank", "Processor time (ms a sample)"]
    return table("The loader alone, no steps", head, rows, id_="loader-points", note=_left_out(points, limit.points))


def _compute(subject: Subject, points: list[ComputePoint]) -> Html:
    most = max((point.samples_per_s or 0.0 for point in points), default=0.0)
    limit = subject.limits
    rows = [
        [
            f"slot size {point.slot_size}, {several(point.threads, 'thread')}, {name_flags(point.flags)}",
            _rate(f"compute.{i}.samples_per_s", point.samples_per_s, point.outcome, point.reason, most, limit.reason),
            figure(f"compute.{i}.slot_ms", _milli(point.slot_s), number),
            figure(f"compute.{i}.last_slot_ms", _milli(point.last_slot_s), number),
            figure(f"compute.{i}.memory_bytes", point.memory_bytes, size),
        ]
        for i, point in enumerate(points[: limit.points])
    ]
    head = ["Steps", "Samples/s of one rank", "Slot (ms)", "Last slot, with update (ms)", "Peak memory of a rank"]
    caption = "The steps alone, on tensors that are on the device already"
    return table(caption, head, rows, id_="compute-points", note=_left_out(points, limit.points))


def _left_out(points: list[LoaderPoint] | list[ComputePoint], limit: int) -> str:
    more = len(points) - limit
    return f"{more} more are left out here; the report holds them." if more > 0 else ""


def _milli(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
