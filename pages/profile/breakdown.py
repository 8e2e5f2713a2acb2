"""The time of a mean step by what it went to, as a bar a rank and as a table."""

from __future__ import annotations

from pages.markup import Html, element, figure, join, table
from pages.profile.subject import NO_TRACE, Subject
from pages.quantities import milliseconds, percent

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


def breakdown(subject: Subject) -> Html:
    """Return a bar for each rank shown, with the same numbers as a table."""
    if not subject.summaries:
        return element("p", NO_TRACE, class_="missing block", data_absent="breakdown")
    shown = [summary for summary in subject.shown if summary.breakdown_s]
    if not shown:
        return element("p", "not measured: the trace holds no steps", class_="missing block", data_absent="breakdown")
    longest = max(sum(summary.breakdown_s.values()) for summary in shown) or 1.0
    keys = list(dict.fromkeys(key for summary in shown for key in summary.breakdown_s))
    bars, rows = [], []
    for summary in shown:
        whole = sum(summary.breakdown_s.values()) or 1.0
        pieces = [
            element(
                "i",
                element("span", key),
                class_=f"c-{key if key in MEANINGS else 'other'}",
                style=f"width:{value / longest * 100:.2f}%",
                title=f"{key}: {milliseconds(value)} ms, {percent(value / whole)}",
            )
            for key, value in summary.breakdown_s.items()
            if value > 0
        ]
        bars.append(element("p", f"rank {summary.rank}", class_="lane-name"))
        bars.append(element("div", *pieces, class_="stack"))
    for key in keys:
        row: list[str] = [_swatch(key)]
        for summary in shown:
            value = summary.breakdown_s.get(key, 0.0)
            whole = sum(summary.breakdown_s.values()) or 1.0
            row.append(figure(f"breakdown.{summary.rank}.{key}", value, milliseconds, note=percent(value / whole)))
        rows.append(row)
    totals = [
        figure(f"breakdown.{summary.rank}.sum", sum(summary.breakdown_s.values()), milliseconds) for summary in shown
    ]
    rows.append([element("strong", "mean step"), *totals])
    left_out = len(subject.summaries) - len(shown)
    return join(
        [
            element(
                "div", *bars, class_="stacks", role="img", aria_label="Step time by what it went to, as in the table"
            ),
            table(
                "Mean traced step by what it went to, in milliseconds and % of the step",
                ["Part", *(f"rank {summary.rank} (ms)" for summary in shown)],
                rows,
                id_="breakdown",
                note=f"{left_out} more ranks are left out here." if left_out else "",
            ),
        ]
    )


def _swatch(key: str) -> Html:
    known = key if key in MEANINGS else "other"
    meaning = MEANINGS.get(key, "")
    return join([element("span", class_=f"swatch c-{known}", aria_hidden="true"), key, element("small", f" {meaning}")])
