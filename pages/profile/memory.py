"""The memory of a rank: over the traced steps, at its peak, and as a line over the slot size."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.artifacts.trace import TraceSummary
from pages.chart import Axis, Line, make_plot
from pages.markup import Html
from pages.parts import Cell, Drawing, Figure, Fold, Table, Tile, Tiles, Title, absent, section
from pages.profile.subject import Subject
from pages.quantities import count, seconds, size


def memory(subject: Subject) -> Html:
    """Return the view on memory: figures, a curve for each rank shown, and the line that the sweep fitted."""
    tiles = (
        ("Peak of a rank", "memory_peak_bytes", "size"),
        ("Reserved at most", "memory_reserved_bytes", "size"),
        ("Limit of a rank", "memory_limit_bytes", "size"),
        ("Fragmentation at the peak", "fragmentation_fraction", "percent"),
        ("Allocations tried again", "allocation_retries", "count"),
    )
    values = subject.report.indicators
    why = "not measured: the trace holds no allocations" if subject.summaries else subject.no_trace
    curves = [(summary.rank, _curve(subject, summary)) for summary in subject.shown if summary.memory]
    models = subject.report.memory
    return section(
        "memory",
        "Memory",
        Tiles(
            [
                Tile(title, Figure(f"memory.{name}", getattr(values, name), unit, subject.missing(name)))
                for title, name, unit in tiles
            ]
        ),
        *(curve for _, curve in curves[:1]),
        *(Fold(f"rank {rank}", [curve]) for rank, curve in curves[1:]),
        None if curves else absent("memory-curve", why),
        Title("Memory by slot size") if models else None,
        _models(subject) if models else None,
    )


def _curve(subject: Subject, summary: TraceSummary) -> Drawing:
    samples = sorted(summary.memory, key=lambda sample: sample.at_s)
    begin, whole = samples[0].at_s, samples[-1].at_s - samples[0].at_s or 1e-9
    limit, name, rank = subject.share(subject.limits.samples), f"memory.{summary.rank}", summary.rank
    drawn = [
        _thin([(sample.at_s - begin, sample.allocated_bytes) for sample in samples], limit),
        _thin([(s.at_s - begin, s.reserved_bytes) for s in samples if s.reserved_bytes is not None], limit),
    ]
    most = max(value for points in drawn for _, value in points) or 1
    peak = max(samples, key=lambda sample: sample.allocated_bytes)
    held = max((value for _, value in drawn[1]), default=None)
    return Drawing(
        make_plot(
            [_steps(points, style, whole) for style, points in enumerate(drawn) if points],
            Axis(0.0, whole, [(whole * k / 4, seconds(whole * k / 4)) for k in range(5)]),
            Axis(0.0, most, [(0.0, "0"), (most / 2, size(most / 2)), (most, size(most))]),
            label=f"Memory of rank {rank} over the traced steps: at most {size(peak.allocated_bytes)} allocated",
        ),
        [
            f"rank {rank}, solid: allocated{'' if summary.device == 'gpu' else ' since the profiler began'}, at most ",
            Figure(f"{name}.allocated_peak", peak.allocated_bytes, "size"),
            " at ",
            Figure(f"{name}.peak_at_s", peak.at_s - begin, "milliseconds"),
            " ms; dashed: reserved by the allocator, at most " if drawn[1] else " ms; reserved by the allocator: ",
            Figure(f"{name}.reserved_peak", held, "size", subject.missing("memory_reserved_bytes")),
            f". {count(len(samples))} events; the highest of each stretch are drawn." if len(samples) > limit else ".",
        ],
        data={"rank": str(rank)},
    )


def _steps(points: Sequence[tuple[float, int]], style: int, whole: float) -> Line:
    """Return a line of steps: memory keeps its size until the next event."""
    xs = [at for at, _ in points for _ in (0, 1)][1:]
    ys = [float(value) for _, value in points for _ in (0, 1)][:-1]
    return Line("", [*xs, whole], [*ys, float(points[-1][1])], style)


def _thin(points: Sequence[tuple[float, int]], limit: int) -> list[tuple[float, int]]:
    """Return at most `limit` points: the highest of each stretch, and thereby the peak."""
    if len(points) <= limit:
        return list(points)
    stretch = -(-len(points) // limit)
    return [max(points[at : at + stretch], key=lambda point: point[1]) for at in range(0, len(points), stretch)]


def _models(subject: Subject) -> Table:
    rows: list[tuple[Cell, ...]] = [
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
