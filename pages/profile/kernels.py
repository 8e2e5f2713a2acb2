"""The kernels that the GPU ran in the traced steps, and what they are spent on."""

from __future__ import annotations

from collections import defaultdict

from contracts.artifacts.trace import KernelRow, TraceSummary
from pages.markup import NOT_MEASURED, Html, shorten
from pages.parts import Cell, Figure, Table, Text, Words, absent, section
from pages.profile.subject import NO_GPU, Subject
from pages.quantities import percent


def kernels(subject: Subject) -> Html:
    """Return the view on kernels, of each rank shown that has some."""
    folds = subject.folds(lambda summary: _rank(subject, summary) if summary.kernels else [])
    why = "not measured: the trace holds no kernels" if subject.summaries else subject.no_trace
    return section("kernels", "Kernels", *(folds or [absent("kernels", why if subject.has_gpu else NO_GPU)]))


def _rank(subject: Subject, summary: TraceSummary) -> list[Text | Table]:
    rows = sorted(summary.kernels, key=lambda row: -row.total_s)
    whole = sum(row.total_s for row in rows) or 1.0
    limit = subject.share(subject.limits.rows)
    name = f"kernels.{summary.rank}"
    more, rest = len(rows) - limit, sum(row.total_s for row in rows[limit:])
    spent: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        spent[row.category] += row.total_s
    kinds: list[Cell] = []
    for kind, time in sorted(spent.items(), key=lambda pair: -pair[1]):
        kinds += [f"{'; ' if kinds else ''}{kind} ", Figure(f"{name}.kind.{kind}", time / whole, "percent")]
    return [
        Text(
            [
                "Kernels per step: ",
                Figure(f"{name}.per_step", summary.kernels_per_step, "count"),
                "; mean duration ",
                Figure(f"{name}.mean_us", summary.mean_kernel_us, "number"),
                " µs; the ten that take most: ",
                Figure(f"{name}.top10", summary.top10_kernel_fraction, "percent"),
                " of kernel time; on tensor cores, by their names: ",
                Figure(f"{name}.tensor_core", summary.tensor_core_fraction, "percent"),
                " of it; copies and changes of layout: ",
                Figure(f"{name}.copy", summary.copy_kernel_fraction, "percent"),
                " of it.",
            ]
        ),
        Text(["Kernel time by kind: ", *kinds, "."]),
        Table(
            f"kernels-{summary.rank}",
            f"Kernels of rank {summary.rank} in {summary.steps} traced steps, by time",
            (
                "Kernel",
                "Kind",
                "Time in all traced steps (ms)",
                "% of kernel time",
                "Calls",
                "Mean (µs)",
                "Occupancy (% of warps, estimated)",
                "Blocks per SM",
            ),
            [_row(subject, f"{name}.{position}", row, whole) for position, row in enumerate(rows[:limit])],
            words=2,
            note=f"{more:,} more kernels are left out here: {percent(rest / whole)} of kernel time."
            if more > 0
            else "",
        ),
    ]


def _row(subject: Subject, name: str, row: KernelRow, whole: float) -> tuple[Cell, ...]:
    share = row.total_s / whole
    # A copy has no warps.
    missing = NOT_MEASURED if row.category == "compute" else "\u2013"
    return (
        Words(shorten(row.name, subject.limits.name), style="code long"),
        row.category,
        Figure(f"{name}.total_s", row.total_s, "milliseconds"),
        Figure(f"{name}.share", share, "percent", bar=share),
        Figure(f"{name}.calls", row.calls, "count"),
        Figure(f"{name}.mean_us", row.mean_us if row.calls else None, "number"),
        Figure(f"{name}.occupancy", row.occupancy_fraction, "percent", missing),
        Figure(f"{name}.blocks_per_sm", row.blocks_per_sm, "number", missing),
    )
