"""The memory of a rank: over the traced steps, at its peak, and as a line over the slot size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from contracts.artifacts.trace import TraceSummary
from pages.profile.subject import Subject
from pages.profile.table import Figure, Table
from pages.rendering import View

WIDTH, HEIGHT = 1000, 200


@dataclass(frozen=True)
class Curve:
    """Memory of a rank over the traced steps."""

    summary: TraceSummary
    allocated: str
    """Corners of the line in a box of WIDTH by HEIGHT."""
    reserved: str
    """As `allocated`; empty: the device does not tell."""
    most_bytes: int
    """At the top of the box."""
    whole_s: float
    """Its width."""
    peak: Figure
    peak_at: Figure
    reserved_peak: Figure
    samples: int
    thinned: bool
    """Of each stretch only the highest are drawn."""


@dataclass(frozen=True)
class MemoryView(View):
    """The section on memory."""

    template: ClassVar[str] = "profile/memory.html.j2"
    tiles: tuple[tuple[str, Figure], ...]
    curves: tuple[Curve, ...]
    absent: str
    """Why there is no curve."""
    models: Table | None = None
    """Memory as a line over the slot size."""
    width: int = WIDTH
    height: int = HEIGHT


def memory(subject: Subject) -> MemoryView:
    """Return the view on memory: figures, a curve for each rank shown, and the line that the sweep fitted."""
    tiles = (
        ("Peak of a rank", "memory_peak_bytes", "size"),
        ("Reserved at most", "memory_reserved_bytes", "size"),
        ("Limit of a rank", "memory_limit_bytes", "size"),
        ("Fragmentation at the peak", "fragmentation_fraction", "percent"),
        ("Allocations tried again", "allocation_retries", "count"),
    )
    values = subject.report.indicators
    return MemoryView(
        tuple(
            (title, Figure(f"memory.{name}", getattr(values, name), unit, subject.missing(name)))
            for title, name, unit in tiles
        ),
        tuple(_curve(subject, summary) for summary in subject.shown if summary.memory),
        "not measured: the trace holds no allocations" if subject.summaries else subject.no_trace,
        _models(subject) if subject.report.memory else None,
    )


def _curve(subject: Subject, summary: TraceSummary) -> Curve:
    samples = sorted(summary.memory, key=lambda sample: sample.at_s)
    begin, whole = samples[0].at_s, samples[-1].at_s - samples[0].at_s or 1e-9
    limit, name = subject.share(subject.limits.samples), f"memory.{summary.rank}"
    allocated = _thin([(s.at_s, s.allocated_bytes) for s in samples], limit)
    reserved = _thin([(s.at_s, s.reserved_bytes) for s in samples if s.reserved_bytes is not None], limit)
    most = max(value for _, value in (*allocated, *reserved)) or 1

    def path(points: Sequence[tuple[float, int]]) -> str:
        # Memory keeps its size until the next event: steps, not slopes.
        corners, height = [], HEIGHT - points[0][1] / most * HEIGHT
        for at, value in points:
            x, y = (at - begin) / whole * WIDTH, HEIGHT - value / most * HEIGHT
            corners.append(f"{x:.1f},{height:.1f} {x:.1f},{y:.1f}")
            height = y
        return " ".join((*corners, f"{WIDTH},{height:.1f}"))

    peak = max(samples, key=lambda sample: sample.allocated_bytes)
    held = max((value for _, value in reserved), default=None)
    return Curve(
        summary,
        path(allocated),
        path(reserved) if reserved else "",
        most_bytes=most,
        whole_s=whole,
        peak=Figure(f"{name}.allocated_peak", peak.allocated_bytes, "size"),
        peak_at=Figure(f"{name}.peak_at_s", peak.at_s - begin, "milliseconds"),
        reserved_peak=Figure(f"{name}.reserved_peak", held, "size", subject.missing("memory_reserved_bytes")),
        samples=len(samples),
        thinned=len(samples) > limit,
    )


def _thin(points: Sequence[tuple[float, int]], limit: int) -> list[tuple[float, int]]:
    """Return at most `limit` points: the highest of each stretch, and thereby the peak."""
    if len(points) <= limit:
        return list(points)
    stretch = -(-len(points) // limit)
    return [max(points[at : at + stretch], key=lambda point: point[1]) for at in range(0, len(points), stretch)]


def _models(subject: Subject) -> Table:
    rows = [
        (
            model.flags.in_words(),
            Figure(f"memory_model.{position}.base_bytes", model.base_bytes, "size"),
            Figure(f"memory_model.{position}.bytes_per_sample", model.bytes_per_sample, "size"),
            Figure(f"memory_model.{position}.limit_bytes", model.limit_bytes, "size", "not known"),
            Figure(f"memory_model.{position}.largest_slot_size", model.largest_slot_size, "count", "not known"),
        )
        for position, model in enumerate(subject.report.memory[: subject.limits.rows])
    ]
    return Table(
        "memory-models",
        "Memory of a rank as a line over the slot size: base + slot size \u00d7 memory per sample",
        ("Flags", "Base", "Per sample of the slot", "Limit of a rank", "Largest slot that fits (samples)"),
        rows,
    )
