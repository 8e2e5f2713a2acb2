"""Section on the profile: choice, heat map, findings, breakdown of a step, kernels, memory, operators, traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from contracts import storage
from contracts.artifacts import Indicators, ProfilePoint, ProfileReport, TraceSummary
from inspection.pages.chart import line_chart, value_axis
from inspection.pages.parts import Cell, Drawing, Figure, Notice, Part, Table, Text, Tiles, absent, note, pairs, section
from inspection.pages.quantities import percent, seconds, several, size
from inspection.pages.rendering import Html
from inspection.report.context import NO_VALUE, Context, first, omitted

# Maximum number of ranks with a breakdown; files beside the report have the traces of all.
_MOST_RANKS = 4
_SHADES = 5
# Of indicators: title, unit, and target with its direction (docs/profiling.md).
_INDICATORS: dict[str, tuple[str, str, str]] = {
    "gpu_busy_fraction": ("GPU busy, of a step", "percent", "> 0.80"),
    "data_time_fraction": ("Data time, of a step", "percent", "< 0.20"),
    "mfu": ("Model FLOPs utilisation", "percent", "> 0.25"),
    "step_s": ("Optimizer step, without the profiler", "seconds", ""),
    "communication_fraction": ("Exchange between ranks with no kernel beside it, of a step", "percent", ""),
    "exposed_copy_fraction": ("Copies between host and device with no kernel beside them, of a step", "percent", ""),
    "pageable_copies": ("Copies per step from memory that is not page-locked", "count", ""),
    "copy_kernel_fraction": ("Copies and layout changes, of kernel time (no GPU: of operator time)", "percent", ""),
    "tensor_core_fraction": ("Kernels on tensor cores, of kernel time", "percent", ""),
    "kernels_per_step": ("Kernels per step", "count", ""),
    "mean_kernel_us": ("Mean duration of a kernel, µs", "number", ""),
    "flops_per_sample": ("Operations of the model per sample", "flops", ""),
    "peak_flops": ("Peak of the GPU per second, at this precision", "flops", ""),
    "memory_peak_bytes": ("Peak memory of a rank", "size", ""),
    "memory_limit_bytes": ("Memory available to a rank", "size", ""),
}


def profile(context: Context) -> Html:
    """Return the section."""
    report, limits = context.view.profile, context.limits
    if report is None:
        return section("profile", "Profile", context.why_absent("profile", "profile", "The profile"))
    if report.method == "off":
        text = "The profile is off: training uses the default slot size and number of workers."
        return section("profile", "Profile", absent("profile", text))
    failed = [
        f"{point.slot_size} x {several(point.num_workers, 'worker')}: {point.outcome} {context.name(point.reason)}"
        for point in report.points
        if point.samples_per_s is None
    ]
    lines = Text(first(failed, limits.rows, "configurations"), "list")
    warnings = [context.message(warning) for warning in report.warnings]
    return section(
        "profile",
        "Profile",
        Text(context.message(report.choice.reason)),
        _choice(report),
        _heat_map(report, limits.cells),
        Notice("fold", f"{several(len(failed), 'configuration')} failed", [lines]) if failed else None,
        Text(first(warnings, limits.rows, "warnings"), "list") if warnings else None,
        *_findings(context, report),
        *_breakdown(report.indicators, context.view.trace_summaries),
        *_tables(context, context.view.trace_summaries[:1]),
        *_traces(context, report),
    )


def _choice(report: ProfileReport) -> Tiles:
    choice = report.choice
    point = next((point for point in report.points if point.settings() == choice.settings()), None)

    spread = "of one rank"
    if point is not None and point.samples_per_s_min is not None and point.samples_per_s_max is not None:
        spread += f", windows {point.samples_per_s_min:,.1f} to {point.samples_per_s_max:,.1f}"
    tiles: list[tuple[str, Cell, Cell]] = [
        ("Slot size", Figure("profile.slot_size", choice.slot_size, "count"), "samples per forward pass"),
        ("Slots per rank", Figure("profile.slots_per_rank", choice.slots_per_rank, "count"), "per optimizer step"),
        ("Workers", Figure("profile.num_workers", choice.num_workers, "count"), "loader processes per rank"),
    ]
    rates = {"samples": None} if point is None else {"samples": point.samples_per_s, **point.units_per_s}
    for unit, rate in rates.items():
        remark = spread if unit == "samples" else "of one rank"
        tiles.append((f"{unit.capitalize()} per second", Figure(f"profile.{unit}_per_s", rate, "number"), remark))
    return Tiles(tiles)


def _heat_map(report: ProfileReport, limit: int) -> Table:
    """Return measured rates by slot size and workers: at most `limit` rows and columns, those around the choice."""
    points = {(point.slot_size, point.num_workers): point for point in report.points}
    sizes = _around({slot_size for slot_size, _ in points}, report.choice.slot_size, limit)
    workers = _around({num_workers for _, num_workers in points}, report.choice.num_workers, limit)
    rates = [point.samples_per_s for point in report.points if point.samples_per_s is not None]
    low, high = min(rates, default=0.0), max(rates, default=0.0)

    def shade(point: ProfilePoint | None) -> str:
        if point is None or point.samples_per_s is None:
            return "empty"
        fraction = (point.samples_per_s - low) / (high - low) if high > low else 1.0
        chosen = " chosen" if point.settings() == report.choice.settings() else ""
        return f"h{round(fraction * (_SHADES - 1))}{chosen}"

    def cell(slot_size: int, num_workers: int) -> Cell:
        point = points.get((slot_size, num_workers))
        if point is None or point.samples_per_s is None:
            return point.outcome if point is not None else ""
        rate = Figure(f"map.{slot_size}.{num_workers}", point.samples_per_s, "number")
        return (rate, Text("\u2605 chosen", "small")) if "chosen" in shade(point) else rate

    measured = sum(point.samples_per_s is not None for point in report.points)
    effort = f"{several(measured, 'configuration')} measured end to end, "
    effort += f"{several(len(report.loader), 'measurement')} of the loader alone, {len(report.compute)} of steps alone"
    return Table(
        "heat-map",
        "Samples per second of one rank, end to end, by slot size and workers; empty: not measured",
        ("slot size", *(several(each, "worker") for each in workers)),
        [(str(slot_size), *(cell(slot_size, each) for each in workers)) for slot_size in sizes],
        note=effort + (f", in {seconds(report.wall_s)}." if report.wall_s is not None else "."),
        style="heat",
        classes=[[shade(points.get((slot_size, each))) for each in workers] for slot_size in sizes],
    )


def _around(values: set[int], centre: int, limit: int) -> list[int]:
    return sorted(sorted(values, key=lambda value: (abs(value - centre), value))[:limit])


def _findings(context: Context, report: ProfileReport) -> Iterator[Part | None]:
    yield Text("Findings", "title")
    if not report.findings:
        yield absent("findings", "No rule of the diagnosis fired.")
    for place, finding in enumerate(report.findings[: context.limits.rows]):
        evidence = first([context.message(line) for line in finding.evidence], 12, "lines")
        rows: list[tuple[str, Cell]] = [("Evidence", tuple(evidence))]
        rows += [("Why it matters", context.message(finding.why))] if finding.why else []
        rows += [("Change", Text(context.message(finding.change), "strong"))]
        if finding.time_share is not None:
            share = Figure(f"findings.{place}.time_share", finding.time_share, "percent", note="of a step")
            rows.append(("Saves at most", share))
        title = f"{finding.rule} {context.message(finding.title)}"
        yield Notice("warning", title, [pairs(f"finding-{place}-change", title, rows)], f"finding-{place}")
    yield note(omitted(context.limits.rows, len(report.findings), "findings"))


def _breakdown(values: Indicators, summaries: Sequence[TraceSummary]) -> Iterator[Part]:
    """Yield the breakdown of a step by rank, and the indicators, with a list of those not measured."""
    yield Text("Time of a step", "title")
    shown = [summary for summary in summaries[:_MOST_RANKS] if summary.breakdown_s]
    if shown:
        names = list(dict.fromkeys(name for summary in shown for name in summary.breakdown_s))
        yield Table(
            "breakdown",
            "Mean traced step by part, in ms and % of the step",
            ("Part", *(f"rank {summary.rank} (ms)" for summary in shown)),
            [[name, *(_share(summary, name) for summary in shown)] for name in names],
            note=omitted(len(shown), len(summaries), "ranks"),
        )
    rows = [_indicator(name, value) for name in _INDICATORS if (value := getattr(values, name)) is not None]
    if rows:
        yield Table("indicators", "At the chosen settings", ("Indicator", "Value", "Target"), rows)
    missing = [title.partition(",")[0] for name, (title, *_) in _INDICATORS.items() if getattr(values, name) is None]
    missing = ["breakdown of a step (no trace)", *missing] if not shown else missing
    if missing:
        yield absent("indicators", f"Not measured: {'; '.join(missing)}.")


def _indicator(name: str, value: float) -> tuple[Cell, ...]:
    title, unit, target = _INDICATORS[name]
    if not target:
        return title, Figure(f"indicators.{name}", value, unit), ""
    limit = float(target[2:])
    outcome = "met" if (value > limit) == (target[0] == ">") else "missed"
    figure = Figure(f"indicators.{name}", value, unit, bar=value, target=limit)
    return title, figure, Text(f"{target[0]} {limit:.0%}: {outcome}")


def _share(summary: TraceSummary, name: str) -> Figure:
    value, total = summary.breakdown_s.get(name, 0.0), sum(summary.breakdown_s.values()) or 1.0
    key, share = f"breakdown.{summary.rank}.{name}", value / total
    return Figure(key, value, "milliseconds", note=percent(share), bar=share)


def _tables(context: Context, summaries: Sequence[TraceSummary]) -> Iterator[Part]:
    """Yield kernels, memory and operators of the first rank."""
    limit = context.limits.rows
    for summary in summaries:
        of = f"of rank {summary.rank} in {summary.steps} traced steps"
        total_s = sum(row.total_s for row in summary.kernels) or 1.0
        kernels: list[tuple[Cell, ...]] = [
            (
                Text(context.name(row.name), "code"),
                row.category,
                Figure(f"kernels.{place}.total_s", row.total_s, "milliseconds", note=percent(row.total_s / total_s)),
                Figure(f"kernels.{place}.calls", row.calls, "count"),
            )
            for place, row in enumerate(summary.kernels[:limit])
        ]
        operators: list[tuple[Cell, ...]] = [
            (
                Text(context.name(row.name), "code"),
                Figure(f"operators.{place}.calls", row.calls, "count"),
                Figure(f"operators.{place}.self_s", row.self_s, "milliseconds"),
                Figure(f"operators.{place}.device_s", row.device_s, "milliseconds", NO_VALUE),
            )
            for place, row in enumerate(summary.operators[:limit])
        ]
        head = ("Kernel", "Kind", "Time (ms), of GPU time", "Calls")
        remark = omitted(limit, len(summary.kernels), "kernels")
        if kernels:
            yield Notice("fold", "Kernels", [Table("kernels", f"Kernels {of}", head, kernels, 2, remark)])
        if summary.memory:
            yield Notice("fold", "Memory", [_memory(summary)])
        head = ("Operator", "Calls", "Host (ms)", "GPU (ms)")
        caption = f"Operators {of}, without operators that they call"
        remark = omitted(limit, len(summary.operators), "operators")
        if operators:
            yield Notice("fold", "Operators", [Table("operators", caption, head, operators, note=remark)])


def _memory(summary: TraceSummary) -> Drawing:
    times = [sample.at_s - summary.memory[0].at_s for sample in summary.memory]
    values = [float(sample.allocated_bytes) for sample in summary.memory]
    since = "" if summary.device == "gpu" else " since the profiler began"
    caption = f"Memory of rank {summary.rank} allocated{since} over the traced steps"
    plot = line_chart([(times, values)], value_axis(times), value_axis(values, "size"), label=caption, x_unit="s")
    return Drawing(plot, f"{caption}, at most {size(max(values))}")


def _traces(context: Context, report: ProfileReport) -> Iterator[Part]:
    stage = context.view.stage("profile")
    traces = [entry.name for entry in report.files if entry.name.startswith("traces/")]
    if stage is not None and stage.uri is not None and traces:
        uris = [storage.join(stage.uri, *name.split("/")) for name in traces]
        yield Text("Traces, for ui.perfetto.dev and HolisticTraceAnalysis", "title")
        links = [context.link(uri, uri.rpartition("/")[2]) for uri in uris]
        yield Text(first(links, context.limits.rows, "traces"), "list")
