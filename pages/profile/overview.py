"""Where the time of a step goes: targets, the breakdown of a step, and every indicator with what it means."""

from __future__ import annotations

from contracts.artifacts.trace import TraceSummary
from pages.markup import Html, shorten
from pages.parts import Cell, Figure, Piece, Stack, Table, Tile, Tiles, Title, Words, absent, section
from pages.profile.subject import Subject
from pages.quantities import milliseconds, percent

GPU_BUSY_TARGET = 0.8
DATA_TIME_TARGET = 0.2

# What each indicator is, in the order of the table: name, title with what the fraction is of, unit.
INDICATORS: tuple[tuple[str, str, str], ...] = (
    ("step_s", "Optimizer step: median time, outside of the profiler", "seconds"),
    ("data_time_fraction", "Data time: waiting for the loader and the copy to the device, % of a step", "percent"),
    ("copy_wait_fraction", "Part of it that waits for the copy to the device, % of a step", "percent"),
    ("gpu_busy_fraction", "GPU busy: at least one kernel runs, % of a step", "percent"),
    ("occupancy_fraction", "Occupancy: kineto's estimate, weighted by kernel time, % of the GPU's warps", "percent"),
    ("mfu", "Model FLOPs utilisation: the model's operations, % of the GPU's peak", "percent"),
    ("flops_per_sample", "Floating point operations of the model per sample", "flops"),
    ("peak_flops", "Peak of the GPU at this precision, by its data sheet", "flops_per_s"),
    ("communication_fraction", "Exposed exchange between ranks: no kernel computes, % of a step", "percent"),
    ("exposed_copy_fraction", "Exposed copies between host and device: no kernel computes, % of a step", "percent"),
    ("pageable_copies", "Copies from host memory that is not page-locked, per step", "count"),
    ("sync_fraction", "The host waiting for the device, % of a step", "percent"),
    ("sync_calls", "Calls that wait for the device, per step", "count"),
    ("kernels_per_step", "Kernels per step", "count"),
    ("mean_kernel_us", "Mean duration of a kernel, µs", "number"),
    ("top10_kernel_fraction", "The ten kernels that take most, % of kernel time", "percent"),
    (
        "copy_kernel_fraction",
        "Copies and changes of layout, % of kernel time (no GPU: of operators' own time)",
        "percent",
    ),
    (
        "memory_bound_fraction",
        "Operators that the GPU's memory limits, estimated from shapes, % of kernel time",
        "percent",
    ),
    ("memory_peak_bytes", "Peak of a rank's memory", "size"),
    ("memory_reserved_bytes", "Reserved by the allocator at most", "size"),
    ("memory_limit_bytes", "What a rank may take", "size"),
    ("fragmentation_fraction", "Fragmentation: reserved but not allocated at the peak, % of reserved", "percent"),
    ("allocation_retries", "Allocations that only worked after a clean-up", "count"),
    ("slowest_rank_ratio", "Step of the slowest rank ÷ median of all ranks", "factor"),
    ("checkpoint_stall_fraction", "Standing still for checkpoints, % of training time", "percent"),
    ("nvml_utilisation_fraction", "What nvidia-smi shows: any kernel at all, however small, % of time", "percent"),
    ("profiler_ratio", "Step while the profiler records ÷ without", "factor"),
)
# Parts of a step, and what they are.
MEANINGS = {
    "kernels": "kernels compute",
    "communication": "exchange between ranks, nothing computes",
    "copies": "copies between host and device, nothing computes",
    "loader": "waiting for data",
    "forward": "forward pass",
    "backward": "backward pass",
    "optimizer": "update of the parameters",
    "other": "everything else",
}


def overview(subject: Subject) -> Html:
    """Return the view on where a step's time goes."""
    values, shown = subject.report.indicators, [summary for summary in subject.shown if summary.breakdown_s]
    longest = max((sum(summary.breakdown_s.values()) for summary in shown), default=0.0) or 1.0
    rows = [
        (title, Figure(f"indicators.{name}", getattr(values, name), unit, subject.missing(name)))
        for name, title, unit in INDICATORS
    ]
    why = "not measured: the trace holds no steps" if subject.summaries else subject.no_trace
    bars = [(f"rank {summary.rank}", _pieces(summary, longest)) for summary in shown]
    return section(
        "overview",
        "Overview and step-time breakdown",
        Title("Against the targets"),
        Tiles(
            [
                _target(subject, "GPU busy", "gpu_busy_fraction", GPU_BUSY_TARGET),
                _target(subject, "Data time", "data_time_fraction", DATA_TIME_TARGET, more=False),
                _target(subject, "Model FLOPs utilisation", "mfu"),
                _target(subject, "Occupancy", "occupancy_fraction"),
            ],
            style="wide",
        ),
        Title("Step time"),
        Stack("Step time by what it went to, as in the table", bars) if shown else None,
        _breakdown(subject, shown) if shown else absent("breakdown", why),
        Title("Indicators"),
        Table("indicators", "Of the chosen configuration", ("Indicator", "Value"), rows, words=2),
        _ranks(subject) if subject.summaries else None,
    )


def _target(subject: Subject, title: str, name: str, target: float | None = None, *, more: bool = True) -> Tile:
    """Return an indicator against what it should be: above its target, else below."""
    value: float | None = getattr(subject.report.indicators, name)
    said = "no target"
    if target is not None:
        said = f"target {'>' if more else '<'} {target * 100:.0f} %"
        if value is not None:
            said += ": met" if (value > target if more else value < target) else ": missed"
    figure = Figure(f"targets.{name}", value, "percent", subject.missing(name), bar=value, mark=target)
    return Tile(title, figure, Words(said, name=f"target.{name}"))


def _pieces(summary: TraceSummary, longest: float) -> list[Piece]:
    whole = sum(summary.breakdown_s.values()) or 1.0
    return [
        Piece(name, _colour(name), value / longest, f"{milliseconds(value)} ms, {percent(value / whole)}", name)
        for name, value in summary.breakdown_s.items()
        if value > 0
    ]


def _breakdown(subject: Subject, shown: list[TraceSummary]) -> Table:
    wholes = [sum(summary.breakdown_s.values()) for summary in shown]
    names = dict.fromkeys(name for summary in shown for name in summary.breakdown_s)
    rows: list[list[Cell]] = []
    for name in names:
        row: list[Cell] = [Words(name, MEANINGS.get(name, ""), swatch=_colour(name))]
        for summary, whole in zip(shown, wholes, strict=True):
            value = summary.breakdown_s.get(name, 0.0)
            share = percent(value / (whole or 1.0))
            row.append(Figure(f"breakdown.{summary.rank}.{name}", value, "milliseconds", note=share))
        rows.append(row)
    sums = zip(shown, wholes, strict=True)
    rows.append(["mean step", *(Figure(f"breakdown.{one.rank}.sum", whole, "milliseconds") for one, whole in sums)])
    left_out = len(subject.summaries) - len(shown)
    return Table(
        "breakdown",
        "Mean traced step by what it went to, in milliseconds and % of the step",
        ("Part", *(f"rank {summary.rank} (ms)" for summary in shown)),
        rows,
        note=f"{left_out} more ranks are left out here." if left_out else "",
    )


def _colour(part: str) -> str:
    return f"c-{part if part in MEANINGS else 'other'}"


def _ranks(subject: Subject) -> Table:
    limit = subject.limits.rows
    more = len(subject.summaries) - limit
    fractions = (("gpu_busy", "gpu_busy_fraction"), ("communication", "communication_fraction"))
    return Table(
        "ranks",
        "Traced ranks; the profiler slows steps down",
        ("Rank", "Device", "Steps traced", "Median step", "GPU busy (% of step)", "Exposed exchange (% of step)"),
        [
            (
                f"rank {each.rank}",
                each.device if each.gpu_name is None else shorten(each.gpu_name, subject.limits.name),
                Figure(f"ranks.{each.rank}.steps", each.steps, "count"),
                Figure(f"ranks.{each.rank}.step_s", each.step_s, "seconds"),
                *(
                    Figure(f"ranks.{each.rank}.{name}", getattr(each, field), "percent", subject.missing(field))
                    for name, field in fractions
                ),
            )
            for each in subject.summaries[:limit]
        ],
        words=2,
        note=f"{more} more ranks were traced." if more > 0 else "",
    )
