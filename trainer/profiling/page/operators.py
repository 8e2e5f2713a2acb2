"""The operators of torch in the traced steps: time on the host, on the GPU, and floating point operations."""

from __future__ import annotations

from trainer.profiling.page.markup import Html, absent, bar, element, figure, join, section, shorten, table
from trainer.profiling.page.quantities import count, flops, milliseconds, percent
from trainer.profiling.page.subject import NO_TRACE, Subject
from trainer.profiling.summary import OperatorRow, TraceSummary


def operators(subject: Subject) -> Html:
    """Return the view on operators, of each rank shown."""
    shown = [summary for summary in subject.shown if summary.operators]
    if not shown:
        reason = "not measured: the trace holds no operators" if subject.summaries else NO_TRACE
        return section("operators", "Operators", absent("operators", reason))
    parts = [_of_rank(subject, summary, opened=position == 0) for position, summary in enumerate(shown)]
    return section("operators", "Operators", *parts)


def _of_rank(subject: Subject, summary: TraceSummary, *, opened: bool) -> Html:
    on_gpu = any(row.device_s for row in summary.operators)
    rows = sorted(summary.operators, key=lambda row: -(row.device_s or 0.0 if on_gpu else row.self_s))
    whole_self = sum(row.self_s for row in rows) or 1.0
    whole_device = sum(row.device_s or 0.0 for row in rows) or 1.0
    limit = subject.share(subject.limits.rows)
    more = len(rows) - limit
    head = [
        "Operator",
        "Calls",
        "GPU (ms), its own kernels",
        "% of GPU time",
        "Host, itself (ms)",
        "% of host time",
        "Host, with what it calls (ms)",
        "Operations",
    ]
    order = "time on the GPU" if on_gpu else "own time on the host"
    cells = [
        _row(subject, f"operators.{summary.rank}.{position}", row, whole_self, whole_device)
        for position, row in enumerate(rows[:limit])
    ]
    return element(
        "details",
        element("summary", f"rank {summary.rank}, {summary.gpu_name or summary.device}"),
        table(
            f"Operators of rank {summary.rank} in {summary.steps} traced steps, by {order}",
            head,
            cells,
            id_=f"operators-{summary.rank}",
            note=f"{more:,} more operators are left out here." if more > 0 else "",
        ),
        open=opened,
        data_rank=summary.rank,
    )


def _row(subject: Subject, name: str, row: OperatorRow, whole_self: float, whole_device: float) -> list[str]:
    share = row.device_s / whole_device if row.device_s is not None else None
    own = row.self_s / whole_self
    missing = subject.missing("device_s")
    return [
        element("span", shorten(row.name, subject.limits.name), class_="code"),
        figure(f"{name}.calls", row.calls, count),
        figure(f"{name}.device_s", row.device_s, milliseconds, missing),
        join([figure(f"{name}.device_share", share, percent, missing), bar(share)]),
        figure(f"{name}.self_s", row.self_s, milliseconds),
        join([figure(f"{name}.self_share", own, percent), bar(own)]),
        figure(f"{name}.total_s", row.total_s, milliseconds),
        figure(f"{name}.flops", row.flops, flops, "\u2013"),
    ]
