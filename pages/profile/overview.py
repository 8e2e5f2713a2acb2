"""Where the time of a step goes: targets, the breakdown of a step, and every indicator with what it means."""

from __future__ import annotations

from collections.abc import Callable

from pages.markup import Html, bar, element, figure, section, shorten, table
from pages.profile.breakdown import breakdown
from pages.profile.subject import Subject
from pages.quantities import count, factor, flops, flops_per_s, number, percent, seconds, size

GPU_BUSY_TARGET = 0.8
DATA_TIME_TARGET = 0.2

Shown = Callable[[float], str]

# What each indicator is, in the order of the table: name, title with what the fraction is of, text of a value.
INDICATORS: tuple[tuple[str, str, Shown], ...] = (
    ("step_s", "Optimizer step: median time, outside of the profiler", seconds),
    ("data_time_fraction", "Data time: waiting for the loader and the copy to the device, % of a step", percent),
    ("copy_wait_fraction", "Of it, waiting for the copy to the device, % of a step", percent),
    ("gpu_busy_fraction", "GPU busy: at least one kernel runs, % of a step", percent),
    ("occupancy_fraction", "Occupancy: kineto's estimate, weighted by kernel time, % of the GPU's warps", percent),
    ("mfu", "Model FLOPs utilisation: the model's operations, % of the GPU's peak", percent),
    ("flops_per_sample", "Floating point operations of the model a sample", flops),
    ("peak_flops", "Peak of the GPU at this precision, by its data sheet", flops_per_s),
    ("communication_fraction", "Exposed exchange between ranks: no kernel computes, % of a step", percent),
    ("exposed_copy_fraction", "Exposed copies between host and device: no kernel computes, % of a step", percent),
    ("pageable_copies", "Copies from host memory that is not page-locked, a step", count),
    ("sync_fraction", "The host waiting for the device, % of a step", percent),
    ("sync_calls", "Calls that wait for the device, a step", count),
    ("kernels_per_step", "Kernels a step", count),
    ("mean_kernel_us", "Mean duration of a kernel, µs", number),
    ("top10_kernel_fraction", "The ten kernels that take most, % of kernel time", percent),
    (
        "copy_kernel_fraction",
        "Copies and changes of layout, % of kernel time (no GPU: of operators' own time)",
        percent,
    ),
    (
        "memory_bound_fraction",
        "Operators that the GPU's memory limits, estimated from shapes, % of kernel time",
        percent,
    ),
    ("memory_peak_bytes", "Peak of a rank's memory", size),
    ("memory_reserved_bytes", "Reserved by the allocator at most", size),
    ("memory_limit_bytes", "What a rank may take", size),
    ("fragmentation_fraction", "Fragmentation: reserved but not allocated at the peak, % of reserved", percent),
    ("allocation_retries", "Allocations that only worked after a clean-up", count),
    ("slowest_rank_ratio", "Step of the slowest rank ÷ median of all ranks", factor),
    ("checkpoint_stall_fraction", "Standing still for checkpoints, % of training time", percent),
    ("nvml_utilisation_fraction", "What nvidia-smi shows: any kernel at all, however small, % of time", percent),
    ("profiler_ratio", "Step while the profiler records ÷ without", factor),
)


def overview(subject: Subject) -> Html:
    """Return the view on where a step's time goes."""
    return section(
        "overview",
        "Overview and step-time breakdown",
        element("h3", "Against the targets"),
        element("div", *_targets(subject), class_="tiles wide"),
        element("h3", "Step time"),
        breakdown(subject),
        element("h3", "Indicators"),
        _indicators(subject),
        _ranks(subject),
    )


def _targets(subject: Subject) -> list[Html]:
    values = subject.report.indicators
    return [
        _target(subject, "GPU busy", "gpu_busy_fraction", values.gpu_busy_fraction, GPU_BUSY_TARGET, more=True),
        _target(subject, "Data time", "data_time_fraction", values.data_time_fraction, DATA_TIME_TARGET, more=False),
        _target(subject, "Model FLOPs utilisation", "mfu", values.mfu, None, more=True),
        _target(subject, "Occupancy", "occupancy_fraction", values.occupancy_fraction, None, more=True),
    ]


def _target(subject: Subject, title: str, name: str, value: float | None, target: float | None, *, more: bool) -> Html:
    word = "no target"
    if target is not None:
        word = f"target {'>' if more else '<'} {target * 100:.0f} %"
        if value is not None:
            word += ": met" if (value > target if more else value < target) else ": missed"
    return element(
        "div",
        element("span", title, class_="title"),
        element("span", figure(f"targets.{name}", value, percent, subject.missing(name)), class_="value"),
        bar(value, mark=target),
        element("span", word, class_="of", data_target=name),
        class_="tile",
    )


def _indicators(subject: Subject) -> Html:
    values = subject.report.indicators
    rows = [
        [title, figure(f"indicators.{name}", getattr(values, name), shown, subject.missing(name))]
        for name, title, shown in INDICATORS
    ]
    return table("Of the chosen configuration", ["Indicator", "Value"], rows, id_="indicators", words=2)


def _ranks(subject: Subject) -> Html:
    if not subject.summaries:
        return Html("")
    limit = subject.limits.rows
    rows = [
        [
            f"rank {each.rank}",
            each.device if each.gpu_name is None else shorten(each.gpu_name, subject.limits.name),
            figure(f"ranks.{each.rank}.steps", each.steps, count),
            figure(f"ranks.{each.rank}.step_s", each.step_s, seconds),
            figure(
                f"ranks.{each.rank}.gpu_busy", each.gpu_busy_fraction, percent, subject.missing("gpu_busy_fraction")
            ),
            figure(
                f"ranks.{each.rank}.communication",
                each.communication_fraction,
                percent,
                subject.missing("communication_fraction"),
            ),
        ]
        for each in subject.summaries[:limit]
    ]
    more = len(subject.summaries) - limit
    return table(
        "Traced ranks; the profiler slows steps down",
        ["Rank", "Device", "Steps traced", "Median step", "GPU busy (% of step)", "Exposed exchange (% of step)"],
        rows,
        id_="ranks",
        words=2,
        note=f"{more} more ranks were traced." if more > 0 else "",
    )
