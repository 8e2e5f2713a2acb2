"""Section on the profile: choice, heat map, findings, breakdown against targets, kernels, memory, operators, traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from contracts import storage
from contracts.artifacts import Finding, Indicators, ProfilePoint, ProfileReport, TraceSummary
from inspection.page.links import make_link
from inspection.page.subject import Subject, left_out
from inspection.profile import OFF, describe_choice, describe_cut, describe_effort
from pages.chart import Axis, Line, make_plot
from pages.markup import Html
from pages.parts import (
    Cell,
    Drawing,
    Figure,
    Fold,
    Listing,
    Notice,
    Pairs,
    Part,
    Piece,
    Stack,
    Table,
    Text,
    Tile,
    Tiles,
    Title,
    Words,
    absent,
    note,
    section,
)
from pages.quantities import milliseconds, percent, seconds, several, size
from pages.rendering import View, render
from pages.style import SHADES

TITLE = "Profile"
# Ranks whose traces are shown; all of them are files beside the report.
RANKS_SHOWN = 4
GPU_BUSY_TARGET, DATA_TIME_TARGET, MFU_TARGET = 0.8, 0.2, 0.25
# Indicators besides those with a target: name, title, unit.
INDICATORS = (
    ("step_s", "Optimizer step, without the profiler", "seconds"),
    ("communication_fraction", "Exchange between ranks with no kernel beside it, % of a step", "percent"),
    ("exposed_copy_fraction", "Copies between host and device with no kernel beside them, % of a step", "percent"),
    ("pageable_copies", "Copies per step from memory that is not page-locked", "count"),
    ("copy_kernel_fraction", "Copies and layout changes, % of kernel time (no GPU: of operator time)", "percent"),
    ("tensor_core_fraction", "Kernels on tensor cores, % of kernel time", "percent"),
    ("kernels_per_step", "Kernels per step", "count"),
    ("mean_kernel_us", "Mean duration of a kernel, µs", "number"),
    ("flops_per_sample", "Operations of the model per sample", "flops"),
    ("peak_flops", "Peak of the GPU at this precision", "flops_per_s"),
    ("memory_peak_bytes", "Peak memory of a rank", "size"),
    ("memory_limit_bytes", "Memory that a rank may take", "size"),
)


@dataclass(frozen=True)
class HeatMap(View):
    """A row per slot size, a column per number of loader processes."""

    template: ClassVar[str] = "profile/heat_map.html.j2"
    columns: Sequence[int]
    rows: Sequence[tuple[int, Sequence[tuple[ProfilePoint | None, str, bool]]]]
    """Slot size, and per column: the point, the class of its colour, and whether it is the choice."""


def profile(subject: Subject) -> Html:
    """Return the section."""
    report, limits = subject.view.profile, subject.limits
    if report is None:
        return section("profile", TITLE, absent("profile", subject.why_absent("profile", "The profile")))
    if report.method == "off":
        return section("profile", TITLE, absent("profile", f"Profile {OFF}.", calm=True))
    failed = [point for point in report.points if point.samples_per_s is None]
    lines: list[list[Cell]] = [
        [f"{describe_choice(point)}: ", Words(point.outcome, style="strong"), f" {subject.name(point.reason)}"]
        for point in failed[: limits.rows]
    ]
    return section(
        "profile",
        TITLE,
        Text([Words("Why: ", style="strong"), subject.reason(report.choice.reason)], "reason", "profile.why"),
        _chosen(report),
        Text(f"{describe_cut(report)}.", "note"),
        Title("Slot size by loader processes"),
        heat_map(report, limits.cells),
        Text(f"{describe_effort(report)}.", "note"),
        Fold(f"{several(len(failed), 'configuration')} failed", [Listing(lines)], "profile-failed") if failed else None,
        *(Text(subject.reason(warning), "note") for warning in report.warnings[: limits.rows]),
        Title("Findings"),
        *_findings(subject, report.findings[: limits.rows]),
        note(left_out(limits.rows, len(report.findings), "findings")),
        *_breakdown(report.indicators, subject.view.trace_summaries),
        *_tables(subject, subject.view.trace_summaries[:1]),
        *_traces(subject, report),
    )


def _chosen(report: ProfileReport) -> Tiles:
    choice = report.choice
    point = next((point for point in report.points if point.settings() == choice.settings()), None)

    def tile(title: str, name: str, value: float | None, unit: str, about: str) -> Tile:
        return Tile(title, Figure(f"profile.{name}", value, unit), about)

    units = point.units_per_s if point else {}
    rate, data_time = (point.samples_per_s, point.data_time_fraction) if point else (None, None)
    return Tiles(
        [
            tile("Slot size", "slot_size", choice.slot_size, "count", "samples per forward pass"),
            tile("Slots per rank", "slots_per_rank", choice.slots_per_rank, "count", "in an optimizer step"),
            tile("Loader processes", "num_workers", choice.num_workers, "count", "per rank"),
            tile("Measured", "samples_per_s", rate, "number", "samples/s, slowest rank"),
            *(tile(unit.capitalize(), f"{unit}_per_s", value, "number", f"{unit}/s") for unit, value in units.items()),
            tile("Data time", "data_time_fraction", data_time, "percent", "of a step"),
        ]
    )


def heat_map(report: ProfileReport, limit: int) -> Html:
    """Return the heat map: at most `limit` rows and columns, those around the choice."""
    points = {(point.slot_size, point.num_workers): point for point in report.points}
    rows = _around({slot_size for slot_size, _ in points}, report.choice.slot_size, limit)
    columns = _around({workers for _, workers in points}, report.choice.num_workers, limit)
    rates = [point.samples_per_s for point in report.points if point.samples_per_s is not None]
    low, high = min(rates, default=0.0), max(rates, default=0.0)

    def cell(point: ProfilePoint | None) -> tuple[ProfilePoint | None, str, bool]:
        shade = "failed"
        if point is not None and point.samples_per_s is not None:
            share = (point.samples_per_s - low) / (high - low) if high > low else 1.0
            shade = f"h{round(share * (SHADES - 1))}"
        return point, shade, point is not None and point.settings() == report.choice.settings()

    cells = [(slot_size, [cell(points.get((slot_size, workers))) for workers in columns]) for slot_size in rows]
    return render(HeatMap(columns, cells))


def _around(values: set[int], centre: int, limit: int) -> list[int]:
    return sorted(sorted(values, key=lambda value: (abs(value - centre), value))[:limit])


def _findings(subject: Subject, findings: Sequence[Finding]) -> Iterator[Part]:
    if not findings:
        yield Text("No rule of the diagnosis fired.", "calm", data={"absent": "findings"})
    for place, finding in enumerate(findings):
        share = Figure(f"findings.{place}.time_share", finding.time_share, "percent", "not a matter of time")
        rows: list[tuple[str, Cell]] = [("Evidence", tuple(subject.reason(line) for line in finding.evidence[:12]))]
        rows += [("Why it matters", subject.reason(finding.why))] if finding.why else []
        rows += [("Change", subject.reason(finding.change)), ("Saves at most, of a step", share)]
        title: list[Cell] = [Words(finding.rule, style="rule"), subject.reason(finding.title)]
        yield Notice("warning", title, [Pairs(rows)], data={"rule": finding.rule})


def _breakdown(values: Indicators, summaries: Sequence[TraceSummary]) -> Iterator[Part]:
    """Yield the breakdown of a step by rank, and every indicator; those with a target first."""
    yield Title("Where the time goes")
    yield Tiles(
        [
            _target("GPU busy", "gpu_busy_fraction", values.gpu_busy_fraction, GPU_BUSY_TARGET, ">"),
            _target("Data time", "data_time_fraction", values.data_time_fraction, DATA_TIME_TARGET, "<"),
            _target("Model FLOPs utilisation", "mfu", values.mfu, MFU_TARGET, ">"),
        ],
        style="wide",
    )
    shown = [summary for summary in summaries[:RANKS_SHOWN] if summary.breakdown_s]
    longest = max((sum(summary.breakdown_s.values()) for summary in shown), default=0.0) or 1.0
    if shown:
        yield Stack("Time of a step by part, as in the table", [_bar(summary, longest) for summary in shown])
        yield Table(
            "breakdown",
            "Mean traced step by part, in milliseconds and % of the step",
            ("Part", *(f"rank {summary.rank} (ms)" for summary in shown)),
            [_part(name, shown) for name in dict.fromkeys(name for each in shown for name in each.breakdown_s)],
            note=left_out(len(shown), len(summaries), "ranks"),
        )
    else:
        yield absent("breakdown", "Breakdown of a step: not measured, there is no trace")
    figures = [(title, Figure(f"indicators.{name}", getattr(values, name), unit)) for name, title, unit in INDICATORS]
    yield Fold("All indicators", [Table("indicators", "At the chosen settings", ("Indicator", "Value"), figures)])


def _target(title: str, name: str, value: float | None, target: float, sign: str) -> Tile:
    words = f"target {sign} {target:.0%}"
    if value is not None:
        words += ": met" if (value > target) == (sign == ">") else ": missed"
    figure = Figure(f"indicators.{name}", value, "percent", bar=value, mark=target)
    return Tile(title, figure, Words(words, name=f"target.{name}"))


def _bar(summary: TraceSummary, longest: float) -> tuple[str, list[Piece]]:
    whole = sum(summary.breakdown_s.values()) or 1.0
    pieces = [
        Piece(name, f"c-{name}", value / longest, f"{milliseconds(value)} ms, {percent(value / whole)}", name)
        for name, value in summary.breakdown_s.items()
        if value > 0
    ]
    return f"rank {summary.rank}", pieces


def _part(name: str, shown: Sequence[TraceSummary]) -> list[Cell]:
    cells: list[Cell] = [Words(name, swatch=f"c-{name}")]
    for summary in shown:
        value, whole = summary.breakdown_s.get(name, 0.0), sum(summary.breakdown_s.values()) or 1.0
        cells.append(Figure(f"breakdown.{summary.rank}.{name}", value, "milliseconds", note=percent(value / whole)))
    return cells


def _tables(subject: Subject, summaries: Sequence[TraceSummary]) -> Iterator[Part]:
    """Yield kernels, memory and operators of the ranks given."""
    limit = subject.limits.rows
    for summary in summaries:
        rank = f"rank {summary.rank}"
        if summary.kernels:
            total_s = sum(row.total_s for row in summary.kernels) or 1.0
            rows: list[tuple[Cell, ...]] = [
                (
                    Words(subject.name(row.name), style="code long"),
                    row.category,
                    Figure(f"kernels.{place}.total_s", row.total_s, "milliseconds"),
                    Figure(f"kernels.{place}.share", row.total_s / total_s, "percent", bar=row.total_s / total_s),
                    Figure(f"kernels.{place}.calls", row.calls, "count"),
                    Figure(f"kernels.{place}.mean_s", row.total_s / max(1, row.calls), "milliseconds"),
                )
                for place, row in enumerate(summary.kernels[:limit])
            ]
            head = ("Kernel", "Kind", "Time (ms)", "% of GPU time", "Calls", "Mean (ms)")
            caption = f"Kernels of {rank} in {summary.steps} traced steps, by time"
            more = left_out(limit, len(summary.kernels), "kernels")
            yield Fold("Kernels", [Table("kernels", caption, head, rows, words=2, note=more)])
        if summary.memory:
            yield Fold("Memory", [_memory(summary)])
        if summary.operators:
            on_gpu = summary.device == "gpu"
            rows = [
                (
                    Words(subject.name(row.name), style="code long"),
                    Figure(f"operators.{place}.calls", row.calls, "count"),
                    Figure(f"operators.{place}.self_s", row.self_s, "milliseconds"),
                    *([Figure(f"operators.{place}.device_s", row.device_s, "milliseconds")] if on_gpu else []),
                )
                for place, row in enumerate(summary.operators[:limit])
            ]
            caption = f"Operators of {rank} in {summary.steps} traced steps, without the operators that they call"
            more = left_out(limit, len(summary.operators), "operators")
            columns = ("Operator", "Calls", "Host (ms)", *(["GPU (ms)"] if on_gpu else []))
            yield Fold("Operators", [Table("operators", caption, columns, rows, note=more)])


def _memory(summary: TraceSummary) -> Drawing:
    begin = summary.memory[0].at_s
    times = [sample.at_s - begin for sample in summary.memory]
    values = [float(sample.allocated_bytes) for sample in summary.memory]
    end, peak = times[-1] or 1e-9, max(values) or 1.0
    caption = f"Memory of rank {summary.rank} over the traced steps; "
    caption += "allocated" if summary.device == "gpu" else "allocated since the profiler began"
    return Drawing(
        make_plot(
            [Line("", times, values, 0)],
            Axis(0.0, end, [(end * k / 4, seconds(end * k / 4)) for k in range(5)]),
            Axis(min(0.0, *values), peak, [(0.0, "0"), (peak / 2, size(peak / 2)), (peak, size(peak))]),
            label=caption,
        ),
        [f"{caption}; at most ", Figure("memory.peak", max(values), "size")],
    )


def _traces(subject: Subject, report: ProfileReport) -> Iterator[Part]:
    """Yield links to the traces, which ui.perfetto.dev and HolisticTraceAnalysis open."""
    stage = subject.view.stage("profile")
    traces = [entry for entry in report.files if entry.name.startswith("traces/")]
    if stage is None or stage.uri is None or not traces:
        return
    yield Title("Traces, for ui.perfetto.dev and HolisticTraceAnalysis")
    uris = [storage.join(stage.uri, *entry.name.split("/")) for entry in traces[: subject.limits.rows]]
    yield Listing([[make_link(subject.href, uri, uri.rpartition("/")[2])] for uri in uris], "traces")
