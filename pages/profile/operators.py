"""The operators of torch in the traced steps: time on the host and on the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from contracts.artifacts.trace import OperatorRow, TraceSummary
from pages.markup import shorten
from pages.profile.subject import Subject
from pages.profile.table import Cell, Figure, Table, Words
from pages.rendering import View


@dataclass(frozen=True)
class RankOperators:
    """The operators of a rank."""

    summary: TraceSummary
    busy: Figure
    """Time of all kernels that they launched."""
    table: Table


@dataclass(frozen=True)
class OperatorsView(View):
    """The section on operators."""

    template: ClassVar[str] = "profile/operators.html.j2"
    ranks: tuple[RankOperators, ...]
    absent: str = ""
    """Why there are none."""


def operators(subject: Subject) -> OperatorsView:
    """Return the view on operators, of each rank shown."""
    ranks = tuple(_rank(subject, summary) for summary in subject.shown if summary.operators)
    reason = "not measured: the trace holds no operators" if subject.summaries else subject.no_trace
    return OperatorsView(ranks, reason)


def _rank(subject: Subject, summary: TraceSummary) -> RankOperators:
    device_s = sum(row.device_s or 0.0 for row in summary.operators)
    self_s = sum(row.self_s for row in summary.operators) or 1.0
    rows = sorted(summary.operators, key=lambda row: -(row.device_s or 0.0 if device_s else row.self_s))
    limit = subject.share(subject.limits.rows)
    more, name = len(rows) - limit, f"operators.{summary.rank}"
    on_gpu = ("GPU (ms), its own kernels", "% of GPU time") if device_s else ()
    table = Table(
        f"operators-{summary.rank}",
        f"Operators of rank {summary.rank} in {summary.steps} traced steps, by "
        f"{'time on the GPU' if device_s else 'own time on the host'}",
        ("Operator", "Calls", *on_gpu, "Host, itself (ms)", "% of host time", "Host, with what it calls (ms)"),
        [_row(subject, f"{name}.{i}", row, device_s, self_s) for i, row in enumerate(rows[:limit])],
        note=f"{more:,} more operators are left out here." if more > 0 else "",
    )
    busy = Figure(f"{name}.device_s", device_s or None, "seconds", subject.missing("device_s"))
    return RankOperators(summary, busy, table)


def _row(subject: Subject, name: str, row: OperatorRow, device_s: float, self_s: float) -> tuple[Cell, ...]:
    own, on_gpu = row.self_s / self_s, []
    if device_s:
        share = row.device_s / device_s if row.device_s is not None else None
        on_gpu = [
            Figure(f"{name}.device_s", row.device_s, "milliseconds"),
            Figure(f"{name}.device_share", share, "percent", bar=share),
        ]
    return (
        Words(shorten(row.name, subject.limits.name), code=True),
        Figure(f"{name}.calls", row.calls, "count"),
        *on_gpu,
        Figure(f"{name}.self_s", row.self_s, "milliseconds"),
        Figure(f"{name}.self_share", own, "percent", bar=own),
        Figure(f"{name}.total_s", row.total_s, "milliseconds"),
    )
