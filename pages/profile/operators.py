"""The operators of torch in the traced steps: time on the host and on the GPU."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.artifacts.trace import OperatorRow, TraceSummary
from pages.markup import Html, absent, bar, element, figure, join, section, shorten, table
from pages.profile.subject import NO_TRACE, Subject
from pages.quantities import count, milliseconds, percent, seconds


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
    whole = _Whole(sum(row.self_s for row in rows) or 1.0, sum(row.device_s or 0.0 for row in rows))
    limit = subject.share(subject.limits.rows)
    more = len(rows) - limit
    name = f"operators.{summary.rank}"
    head = ["Operator", "Calls"]
    head += ["GPU (ms), its own kernels", "% of GPU time"] if on_gpu else []
    head += ["Host, itself (ms)", "% of host time", "Host, with what it calls (ms)"]
    order = "time on the GPU" if on_gpu else "own time on the host"
    busy = figure(f"{name}.device_s", whole.device_s if on_gpu else None, seconds, subject.missing("device_s"))
    return element(
        "details",
        element("summary", f"rank {summary.rank}, {summary.gpu_name or summary.device}"),
        element("p", "Time of kernels that operators launched: ", busy, "."),
        table(
            f"Operators of rank {summary.rank} in {summary.steps} traced steps, by {order}",
            head,
            [_row(subject, f"{name}.{position}", row, whole) for position, row in enumerate(rows[:limit])],
            id_=f"operators-{summary.rank}",
            note=f"{more:,} more operators are left out here." if more > 0 else "",
        ),
        open=opened,
        data_rank=summary.rank,
    )


@dataclass(frozen=True)
class _Whole:
    """What all operators took together."""

    self_s: float
    device_s: float


def _row(subject: Subject, name: str, row: OperatorRow, whole: _Whole) -> list[str]:
    own = row.self_s / whole.self_s
    cells = [
        element("span", shorten(row.name, subject.limits.name), class_="code"),
        figure(f"{name}.calls", row.calls, count),
    ]
    if whole.device_s:
        share = row.device_s / whole.device_s if row.device_s is not None else None
        cells += [
            figure(f"{name}.device_s", row.device_s, milliseconds),
            join([figure(f"{name}.device_share", share, percent), bar(share)]),
        ]
    return [
        *cells,
        figure(f"{name}.self_s", row.self_s, milliseconds),
        join([figure(f"{name}.self_share", own, percent), bar(own)]),
        figure(f"{name}.total_s", row.total_s, milliseconds),
    ]
