"""The kernels that the GPU ran in the traced steps, and what they are spent on."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar

from contracts.artifacts.trace import KernelRow, TraceSummary
from pages.markup import NOT_MEASURED, shorten
from pages.profile.subject import NO_GPU, Subject
from pages.profile.table import Cell, Figure, Table, Words
from pages.quantities import percent
from pages.rendering import View


@dataclass(frozen=True)
class RankKernels:
    """The kernels of a rank."""

    summary: TraceSummary
    kinds: tuple[tuple[str, Figure], ...]
    """Shares of kernel time, the largest first."""
    table: Table


@dataclass(frozen=True)
class KernelsView(View):
    """The section on kernels."""

    template: ClassVar[str] = "profile/kernels.html.j2"
    ranks: tuple[RankKernels, ...]
    absent: str = ""
    """Why there are none."""


def kernels(subject: Subject) -> KernelsView:
    """Return the view on kernels, of each rank shown that has some."""
    ranks = tuple(_rank(subject, summary) for summary in subject.shown if summary.kernels)
    if not subject.has_gpu:
        return KernelsView(ranks, NO_GPU)
    return KernelsView(ranks, "not measured: the trace holds no kernels" if subject.summaries else subject.no_trace)


def _rank(subject: Subject, summary: TraceSummary) -> RankKernels:
    rows = sorted(summary.kernels, key=lambda row: -row.total_s)
    whole = sum(row.total_s for row in rows) or 1.0
    limit = subject.share(subject.limits.rows)
    name = f"kernels.{summary.rank}"
    more, rest = len(rows) - limit, sum(row.total_s for row in rows[limit:])
    kinds: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        kinds[row.category] += row.total_s
    table = Table(
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
        note=f"{more:,} more kernels are left out here: {percent(rest / whole)} of kernel time." if more > 0 else "",
    )
    spent = sorted(kinds.items(), key=lambda pair: -pair[1])
    return RankKernels(
        summary,
        tuple((kind, Figure(f"{name}.kind.{kind}", time / whole, "percent")) for kind, time in spent),
        table,
    )


def _row(subject: Subject, name: str, row: KernelRow, whole: float) -> tuple[Cell, ...]:
    share = row.total_s / whole
    # A copy has no warps.
    missing = NOT_MEASURED if row.category == "compute" else "\u2013"
    return (
        Words(shorten(row.name, subject.limits.name), code=True),
        row.category,
        Figure(f"{name}.total_s", row.total_s, "milliseconds"),
        Figure(f"{name}.share", share, "percent", bar=share),
        Figure(f"{name}.calls", row.calls, "count"),
        Figure(f"{name}.mean_us", row.mean_us if row.calls else None, "number"),
        Figure(f"{name}.occupancy", row.occupancy_fraction, "percent", missing),
        Figure(f"{name}.blocks_per_sm", row.blocks_per_sm, "number", missing),
    )
