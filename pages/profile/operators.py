"""The operators of torch in the traced steps: time on the host and on the GPU."""

from __future__ import annotations

from contracts.artifacts.trace import OperatorRow, TraceSummary
from pages.markup import Html, shorten
from pages.parts import Cell, Figure, Table, Text, Words, absent, section
from pages.profile.subject import Subject


def operators(subject: Subject) -> Html:
    """Return the view on operators, of each rank shown."""
    folds = subject.folds(lambda summary: _rank(subject, summary) if summary.operators else [])
    why = "not measured: the trace holds no operators" if subject.summaries else subject.no_trace
    return section("operators", "Operators", *(folds or [absent("operators", why)]))


def _rank(subject: Subject, summary: TraceSummary) -> list[Text | Table]:
    device_s = sum(row.device_s or 0.0 for row in summary.operators)
    self_s = sum(row.self_s for row in summary.operators) or 1.0
    rows = sorted(summary.operators, key=lambda row: -(row.device_s or 0.0 if device_s else row.self_s))
    limit = subject.share(subject.limits.rows)
    more, name = len(rows) - limit, f"operators.{summary.rank}"
    on_gpu = ("GPU (ms), its own kernels", "% of GPU time") if device_s else ()
    busy = Figure(f"{name}.device_s", device_s or None, "seconds", subject.missing("device_s"))
    return [
        Text(["Time of kernels that operators launched: ", busy, "."]),
        Table(
            f"operators-{summary.rank}",
            f"Operators of rank {summary.rank} in {summary.steps} traced steps, by "
            f"{'time on the GPU' if device_s else 'own time on the host'}",
            ("Operator", "Calls", *on_gpu, "Host, itself (ms)", "% of host time", "Host, with what it calls (ms)"),
            [_row(subject, f"{name}.{i}", row, device_s, self_s) for i, row in enumerate(rows[:limit])],
            note=f"{more:,} more operators are left out here." if more > 0 else "",
        ),
    ]


def _row(subject: Subject, name: str, row: OperatorRow, device_s: float, self_s: float) -> tuple[Cell, ...]:
    own, on_gpu = row.self_s / self_s, []
    if device_s:
        share = row.device_s / device_s if row.device_s is not None else None
        on_gpu = [
            Figure(f"{name}.device_s", row.device_s, "milliseconds"),
            Figure(f"{name}.device_share", share, "percent", bar=share),
        ]
    return (
        Words(shorten(row.name, subject.limits.name), style="code long"),
        Figure(f"{name}.calls", row.calls, "count"),
        *on_gpu,
        Figure(f"{name}.self_s", row.self_s, "milliseconds"),
        Figure(f"{name}.self_share", own, "percent", bar=own),
        Figure(f"{name}.total_s", row.total_s, "milliseconds"),
    )
