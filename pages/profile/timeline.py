"""The last traced step: what ran when, a row a thread of the host or a stream of the GPU."""

from __future__ import annotations

from contracts.artifacts.trace import Lane, Span, TraceSummary
from pages.markup import Html, absent, element, figure, join, section, shorten, table
from pages.profile.lanes import Block, Row, lay_out, share_out
from pages.profile.subject import NO_TRACE, Subject
from pages.quantities import milliseconds, seconds

CATEGORIES = {
    "step": "optimizer step",
    "annotation": "part of the loop",
    "loader": "waiting for the loader",
    "operator": "operator of torch",
    "kernel": "kernel on the GPU",
    "copy": "copy between host and device",
    "communication": "exchange between ranks",
    "wait": "the host waits for the device",
}
ROW_PX = 20
ZOOMS = (1, 4, 16)
# Marks of time that each zoom shows, over the whole width.
TICKS = {1: 4, 4: 16, 16: 64}
LONGEST = 15


def timeline(subject: Subject) -> Html:
    """Return the view on what ran when, of each rank shown."""
    shown = [summary for summary in subject.shown if any(lane.spans for lane in summary.lanes)]
    if not shown:
        reason = NO_TRACE if not subject.summaries else "not measured: the trace holds nothing that took time"
        return section("timeline", "Timeline", absent("timeline", reason))
    used = {span.category for summary in shown for lane in summary.lanes for span in lane.spans}
    legend = [
        element("li", element("span", class_=f"swatch c-{name}", aria_hidden="true"), f"{name}: {meaning}")
        for name, meaning in CATEGORIES.items()
        if name in used
    ]
    parts = [_of_rank(subject, summary, opened=position == 0) for position, summary in enumerate(shown)]
    left_out = len(subject.summaries) - len(shown)
    more = f" {left_out} more ranks are left out here." if left_out else ""
    note = f"The whole trace of each rank is a file in traces/ beside this page, which Perfetto opens.{more}"
    return section(
        "timeline",
        "Timeline",
        element("ul", *legend, class_="legend"),
        *parts,
        element("p", note, class_="note"),
    )


def _of_rank(subject: Subject, summary: TraceSummary, *, opened: bool) -> Html:
    lanes = [lane for lane in summary.lanes if lane.spans]
    kept = lanes[: subject.limits.lanes]
    spans = [span for lane in kept for span in lane.spans]
    begin = min(span.start_s for span in spans)
    whole = max(span.start_s + span.duration_s for span in spans) - begin or 1e-9
    shares = share_out([len(lane.spans) for lane in kept], subject.share(subject.limits.spans))
    blocks = subject.share(subject.limits.blocks) // len(kept) or 1
    rows, left_out = [], 0
    for lane, share in zip(kept, shares, strict=True):
        row = lay_out(lane.spans, begin=begin, whole=whole, most=share, most_blocks=blocks)
        left_out += row.left_out
        rows.append(_lane(subject, lane, row, begin, whole))
    zooms = [
        element(
            "label",
            element("input", type="radio", name=f"zoom-{summary.rank}", value=zoom, checked=zoom == 1),
            f"{zoom}\u00d7",
        )
        for zoom in ZOOMS
    ]
    drawn = element(
        "div",
        element("div", _ticks(whole), *rows, class_="lanes"),
        class_="scroll time",
        tabindex=0,
        role="region",
        aria_label=f"Timeline of rank {summary.rank}; the longest of it are in the table below",
    )
    notes = [f"{seconds(whole)} of the trace, the last traced step."]
    if left_out:
        notes.append(f"{left_out:,} short ones are left out, inside others that are shown.")
    if len(lanes) > len(kept):
        notes.append(f"{len(lanes) - len(kept)} rows are left out.")
    return element(
        "details",
        element("summary", f"rank {summary.rank}, {summary.gpu_name or summary.device}"),
        element("fieldset", element("legend", "Zoom"), *zooms, class_="zoom"),
        drawn,
        element(
            "p", "Point at a box, or click it: what it is and how long it took.", class_="readout", aria_live="polite"
        ),
        element("p", " ".join(notes), class_="note", data_left_out=left_out),
        _longest(subject, summary, kept, begin),
        open=opened,
        data_rank=summary.rank,
    )


def _place(start: float, duration: float, begin: float, whole: float, depth: int) -> str:
    left, width = (start - begin) / whole * 100, duration / whole * 100
    top = f";top:{depth * ROW_PX}px" if depth else ""
    return f"left:{left:.3f}%;width:{width:.3f}%{top}"


def _lane(subject: Subject, lane: Lane, row: Row, begin: float, whole: float) -> Html:
    boxes = [_box(span, depth, begin, whole) for span, depth in row.spans]
    boxes += [_block(block, begin, whole) for block in row.blocks]
    height = (max((depth for _, depth in row.spans), default=0) + 1) * ROW_PX
    return join(
        [
            element("p", element("span", shorten(lane.name, 80)), class_="lane-name"),
            element("div", *boxes, class_="lane", style=f"height:{height}px"),
        ]
    )


def _box(span: Span, depth: int, begin: float, whole: float) -> Html:
    category = span.category if span.category in CATEGORIES else "other"
    name = shorten(span.name, 80)
    # A label where it may be read: at 16 times, 1/2000 of the width is about 8 pixels.
    label = shorten(span.name, 40) if span.duration_s / whole > 0.002 else ""
    at = f"{seconds(span.duration_s)}, from {milliseconds(span.start_s - begin)} ms"
    return element(
        "i",
        label,
        class_=f"c-{category}",
        style=_place(span.start_s, span.duration_s, begin, whole, depth),
        title=f"{name} ({category}): {at}",
    )


def _block(block: Block, begin: float, whole: float) -> Html:
    category = block.category if block.category in CATEGORIES else "other"
    return element(
        "i",
        class_=f"c-{category} many",
        style=_place(block.start_s, block.duration_s, begin, whole, 0),
        title=f"{block.number} short ones ({category}), {seconds(block.busy_s)} together",
    )


def _ticks(whole: float) -> Html:
    most = TICKS[ZOOMS[-1]]
    marks = []
    for tick in range(most):
        level = next(zoom for zoom in ZOOMS if tick % (most // TICKS[zoom]) == 0)
        marks.append(
            element(
                "b",
                seconds(whole * tick / most),
                class_=f"z{level}",
                style=f"left:{tick / most * 100:.3f}%",
            )
        )
    return element("div", *marks, class_="ticks", aria_hidden="true")


def _longest(subject: Subject, summary: TraceSummary, lanes: list[Lane], begin: float) -> Html:
    everything = [(span, lane) for lane in lanes for span in lane.spans if span.category not in ("step", "annotation")]
    everything.sort(key=lambda pair: -pair[0].duration_s)
    rows = [
        [
            shorten(span.name, subject.limits.name),
            span.category,
            shorten(lane.name, 80),
            figure(f"timeline.{summary.rank}.{position}.start_s", span.start_s - begin, milliseconds),
            figure(f"timeline.{summary.rank}.{position}.duration_s", span.duration_s, milliseconds),
        ]
        for position, (span, lane) in enumerate(everything[: min(LONGEST, subject.limits.rows)])
    ]
    caption = "The longest operators, kernels, copies and waits of this step"
    return table(
        caption, ["Name", "Kind", "Row", "Start (ms)", "Duration (ms)"], rows, id_=f"longest-{summary.rank}", words=3
    )
