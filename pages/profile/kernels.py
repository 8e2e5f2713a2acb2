"""The kernels that the GPU ran in the traced steps, and what they are spent on."""

from __future__ import annotations

from contracts.artifacts.trace import KernelRow, TraceSummary
from pages.markup import (
    NOT_MEASURED,
    Html,
    absent,
    bar,
    element,
    figure,
    join,
    section,
    shorten,
    table,
)
from pages.profile.subject import NO_GPU, NO_TRACE, Subject
from pages.quantities import count, milliseconds, number, percent


def kernels(subject: Subject) -> Html:
    """Return the view on kernels, of each rank shown that has some."""
    shown = [summary for summary in subject.shown if summary.kernels]
    if not shown:
        if not subject.has_gpu:
            reason = NO_GPU
        else:
            reason = "not measured: the trace holds no kernels" if subject.summaries else NO_TRACE
        return section("kernels", "Kernels", absent("kernels", reason))
    parts = [_of_rank(subject, summary, opened=position == 0) for position, summary in enumerate(shown)]
    return section("kernels", "Kernels", *parts)


def _of_rank(subject: Subject, summary: TraceSummary, *, opened: bool) -> Html:
    rows = sorted(summary.kernels, key=lambda row: -row.total_s)
    whole = sum(row.total_s for row in rows) or 1.0
    limit = subject.share(subject.limits.rows)
    name = f"kernels.{summary.rank}"
    more, rest = len(rows) - limit, sum(row.total_s for row in rows[limit:])
    facts = element(
        "p",
        "Kernels a step: ",
        figure(f"{name}.per_step", summary.kernels_per_step, count),
        "; mean duration ",
        figure(f"{name}.mean_us", summary.mean_kernel_us, number),
        " µs; the ten that take most: ",
        figure(f"{name}.top10", summary.top10_kernel_fraction, percent),
        " of kernel time; on tensor cores, by their names: ",
        figure(f"{name}.tensor_core", summary.tensor_core_fraction, percent),
        " of it; copies and changes of layout: ",
        figure(f"{name}.copy", summary.copy_kernel_fraction, percent),
        " of it.",
    )
    head = [
        "Kernel",
        "Kind",
        "Time in all traced steps (ms)",
        "% of kernel time",
        "Calls",
        "Mean (µs)",
        "Occupancy (% of warps, estimated)",
        "Blocks per SM",
    ]
    table_ = table(
        f"Kernels of rank {summary.rank} in {summary.steps} traced steps, by time",
        head,
        [_row(subject, f"{name}.{position}", row, whole) for position, row in enumerate(rows[:limit])],
        id_=f"kernels-{summary.rank}",
        words=2,
        note=f"{more:,} more kernels are left out here: {percent(rest / whole)} of kernel time." if more > 0 else "",
    )
    return element(
        "details",
        element("summary", f"rank {summary.rank}, {summary.gpu_name or summary.device}"),
        facts,
        _kinds(rows, whole, name),
        table_,
        open=opened,
        data_rank=summary.rank,
    )


def _kinds(rows: list[KernelRow], whole: float, name: str) -> Html:
    kinds: dict[str, float] = {}
    for row in rows:
        kinds[row.category] = kinds.get(row.category, 0.0) + row.total_s
    parts: list[str] = []
    for kind, spent in sorted(kinds.items(), key=lambda pair: -pair[1]):
        parts += ["; " if parts else "Kernel time by kind: ", f"{kind} "]
        parts.append(figure(f"{name}.kind.{kind}", spent / whole, percent))
    return element("p", *parts, ".")


def _row(subject: Subject, name: str, row: KernelRow, whole: float) -> list[str]:
    share = row.total_s / whole
    # A copy has no warps.
    missing = NOT_MEASURED if row.category == "compute" else "\u2013"
    return [
        element("span", shorten(row.name, subject.limits.name), class_="code"),
        row.category,
        figure(f"{name}.total_s", row.total_s, milliseconds),
        join([figure(f"{name}.share", share, percent), bar(share)]),
        figure(f"{name}.calls", row.calls, count),
        figure(f"{name}.mean_us", row.mean_us if row.calls else None, number),
        figure(f"{name}.occupancy", row.occupancy_fraction, percent, missing),
        figure(f"{name}.blocks_per_sm", row.blocks_per_sm, number, missing),
    ]
