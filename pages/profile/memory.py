"""The memory of a rank: over the traced steps, at its peak, and as a line over the slot size."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.artifacts.trace import TraceSummary
from pages.markup import Html, absent, element, figure, join, section, table
from pages.profile.subject import NO_TRACE, Subject, name_flags
from pages.quantities import count, milliseconds, percent, seconds, size

WIDTH, HEIGHT = 1000, 200


def memory(subject: Subject) -> Html:
    """Return the view on memory: figures, a curve for each rank shown, and the line that the sweep fitted."""
    values = subject.report.indicators
    names: list[tuple[str, str, float | None]] = [
        ("memory_peak_bytes", "Peak of a rank", values.memory_peak_bytes),
        ("memory_reserved_bytes", "Reserved at most", values.memory_reserved_bytes),
        ("memory_limit_bytes", "Limit of a rank", values.memory_limit_bytes),
        ("fragmentation_fraction", "Fragmentation at the peak", values.fragmentation_fraction),
        ("allocation_retries", "Allocations tried again", values.allocation_retries),
    ]
    shown = {"fragmentation_fraction": percent, "allocation_retries": count}
    tiles = [
        element(
            "div",
            element("span", title, class_="title"),
            element(
                "span", figure(f"memory.{name}", value, shown.get(name, size), subject.missing(name)), class_="value"
            ),
            class_="tile",
        )
        for name, title, value in names
    ]
    curves = [summary for summary in subject.shown if summary.memory]
    if curves:
        drawn = [_curve(subject, curves[0])]
        drawn += [
            element("details", element("summary", f"rank {summary.rank}"), _curve(subject, summary))
            for summary in curves[1:]
        ]
    else:
        reason = "not measured: the trace holds no allocations" if subject.summaries else NO_TRACE
        drawn = [absent("memory-curve", reason)]
    return section("memory", "Memory", element("div", *tiles, class_="tiles"), *drawn, _lines(subject))


def _curve(subject: Subject, summary: TraceSummary) -> Html:
    samples = sorted(summary.memory, key=lambda sample: sample.at_s)
    begin, whole = samples[0].at_s, samples[-1].at_s - samples[0].at_s or 1e-9
    allocated = _thin([(s.at_s, s.allocated_bytes) for s in samples], subject.share(subject.limits.samples))
    reserved = _thin(
        [(s.at_s, s.reserved_bytes) for s in samples if s.reserved_bytes is not None],
        subject.share(subject.limits.samples),
    )
    most = max(value for _, value in (*allocated, *reserved)) or 1

    def path(points: Sequence[tuple[float, int]]) -> str:
        # Memory keeps its size until the next event: steps, not slopes.
        corners, height = [], HEIGHT - points[0][1] / most * HEIGHT
        for at, value in points:
            x, y = (at - begin) / whole * WIDTH, HEIGHT - value / most * HEIGHT
            corners.append(f"{x:.1f},{height:.1f} {x:.1f},{y:.1f}")
            height = y
        return " ".join((*corners, f"{WIDTH},{height:.1f}"))

    lines = [element("polyline", points=path(allocated), class_="allocated")]
    if reserved:
        lines.append(element("polyline", points=path(reserved), class_="reserved"))
    peak = max(samples, key=lambda sample: sample.allocated_bytes)
    title = f"Memory of rank {summary.rank} over the traced steps: at most {size(peak.allocated_bytes)} allocated"
    svg = element(
        "svg", element("title", title), *lines, viewBox=f"0 0 {WIDTH} {HEIGHT}", preserveAspectRatio="none", role="img",
        aria_label=title,
    )  # fmt: skip
    return element(
        "figure",
        element(
            "div",
            element(
                "div", element("span", size(most)), element("span", size(most / 2)), element("span", "0"), class_="y"
            ),
            svg,
            element("div", *(element("span", seconds(whole * k / 4)) for k in range(5)), class_="x"),
            class_="chart",
        ),
        element(
            "figcaption",
            f"rank {summary.rank}, ",
            element("span", "solid", class_="key allocated"),
            ": allocated, at most " if summary.device == "gpu" else ": allocated since the profiler began, at most ",
            figure(f"memory.{summary.rank}.allocated_peak", peak.allocated_bytes, size),
            " at ",
            figure(f"memory.{summary.rank}.peak_at_s", peak.at_s - begin, milliseconds),
            " ms; ",
            *_reserved(subject, summary.rank, reserved),
            _thinned(len(samples), subject.share(subject.limits.samples)),
        ),
        class_="memory",
        data_rank=summary.rank,
    )


def _reserved(subject: Subject, rank: int, reserved: Sequence[tuple[float, int]]) -> list[str]:
    most = max((value for _, value in reserved), default=None)
    shown = figure(f"memory.{rank}.reserved_peak", most, size, subject.missing("memory_reserved_bytes"))
    if most is None:
        return ["reserved by the allocator: ", shown]
    return [element("span", "dashed", class_="key reserved"), ": reserved by the allocator, at most ", shown]


def _thinned(samples: int, limit: int) -> str:
    return f". {samples:,} events; the highest of each stretch are drawn." if samples > limit else "."


def _thin(points: Sequence[tuple[float, int]], limit: int) -> list[tuple[float, int]]:
    """Return at most `limit` points: the highest of each stretch, and thereby the peak."""
    if len(points) <= limit:
        return list(points)
    stretch = -(-len(points) // limit)
    return [max(points[at : at + stretch], key=lambda point: point[1]) for at in range(0, len(points), stretch)]


def _lines(subject: Subject) -> Html:
    models = subject.report.memory
    if not models:
        return Html("")
    rows = [
        [
            name_flags(model.flags),
            figure(f"memory_model.{position}.base_bytes", model.base_bytes, size),
            figure(f"memory_model.{position}.bytes_per_sample", model.bytes_per_sample, size),
            figure(f"memory_model.{position}.limit_bytes", model.limit_bytes, size, "not known"),
            figure(
                f"memory_model.{position}.largest_slot_size",
                model.largest_slot_size,
                count,
                "not known",
            ),
        ]
        for position, model in enumerate(models[: subject.limits.rows])
    ]
    head = ["Flags", "Base", "A sample of the slot", "Limit of a rank", "Largest slot that fits (samples)"]
    caption = "Memory of a rank as a line over the slot size: base + slot size \u00d7 a sample"
    return join([element("h3", "Memory by slot size"), table(caption, head, rows, id_="memory-models")])
