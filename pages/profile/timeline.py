"""The last traced step: what ran when, a row per thread of the host or stream of the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from contracts.artifacts.trace import Lane, Span, TraceSummary
from pages.markup import Html, shorten
from pages.parts import Figure, Listing, Part, Table, Text, Words, absent, note, section
from pages.profile.lanes import Block, lay_out, share_out
from pages.profile.subject import Subject
from pages.quantities import count, milliseconds, seconds
from pages.rendering import View, render

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


@dataclass(frozen=True)
class Box:
    """A span, or a run of short ones, at its place."""

    colour: str
    left: float
    """In percent of the whole width, as `width`."""
    width: float
    title: str
    label: str = ""
    top_px: int = 0
    many: bool = False


@dataclass(frozen=True)
class Drawn:
    """A row of the timeline."""

    name: str
    height_px: int
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class RankTimeline(View):
    """The last traced step of a rank, drawn."""

    template: ClassVar[str] = "profile/timeline.html.j2"
    rank: int
    rows: tuple[Drawn, ...]
    ticks: tuple[tuple[int, float, str], ...]
    """Marks of time: the least zoom that shows each, its share of the whole, and its name."""
    zooms: tuple[int, ...] = ZOOMS


def timeline(subject: Subject) -> Html:
    """Return the view on what ran when, of each rank shown."""
    folds = subject.folds(lambda one: _rank(subject, one) if any(lane.spans for lane in one.lanes) else [])
    if not folds:
        why = "not measured: the trace holds nothing that took time" if subject.summaries else subject.no_trace
        return section("timeline", "Timeline", absent("timeline", why))
    used = {span.category for summary in subject.shown for lane in summary.lanes for span in lane.spans}
    legend = [[Words(f"{name}: {is_}", swatch=f"c-{name}")] for name, is_ in CATEGORIES.items() if name in used]
    more = len(subject.summaries) - len(folds)
    left_out = f" {more} more ranks are left out here." if more else ""
    return section(
        "timeline",
        "Timeline",
        Listing(legend, style="legend"),
        *folds,
        note(f"The whole trace of each rank is a file in traces/ beside the report, which Perfetto opens.{left_out}"),
    )


def _rank(subject: Subject, summary: TraceSummary) -> list[Part]:
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
        boxes = [_box(span, depth, begin, whole) for span, depth in row.spans]
        boxes += [_block(block, begin, whole) for block in row.blocks]
        depth = max((depth for _, depth in row.spans), default=0) + 1
        rows.append(Drawn(shorten(lane.name, 80), depth * ROW_PX, tuple(boxes)))
    most = TICKS[ZOOMS[-1]]
    levels = [next(zoom for zoom in ZOOMS if tick % (most // TICKS[zoom]) == 0) for tick in range(most)]
    ticks = tuple((level, tick / most, seconds(whole * tick / most)) for tick, level in enumerate(levels))
    said = f"{seconds(whole)} of the trace, the last traced step."
    said += f" {count(left_out)} short ones are left out, inside others that are shown." if left_out else ""
    said += f" {len(lanes) - len(kept)} rows are left out." if len(lanes) > len(kept) else ""
    drawn = render(RankTimeline(summary.rank, tuple(rows), ticks))
    return [drawn, Text(said, "note"), _longest(subject, summary, kept, begin)]


def _box(span: Span, depth: int, begin: float, whole: float) -> Box:
    category = span.category if span.category in CATEGORIES else "other"
    at = f"{seconds(span.duration_s)}, from {milliseconds(span.start_s - begin)} ms"
    return Box(
        category,
        (span.start_s - begin) / whole * 100,
        span.duration_s / whole * 100,
        f"{shorten(span.name, 80)} ({category}): {at}",
        # A label where it may be read: at 16 times, 1/2000 of the width is about 8 pixels.
        label=shorten(span.name, 40) if span.duration_s / whole > 0.002 else "",
        top_px=depth * ROW_PX,
    )


def _block(block: Block, begin: float, whole: float) -> Box:
    category = block.category if block.category in CATEGORIES else "other"
    title = f"{block.number} short ones ({category}), {seconds(block.busy_s)} together"
    return Box(category, (block.start_s - begin) / whole * 100, block.duration_s / whole * 100, title, many=True)


def _longest(subject: Subject, summary: TraceSummary, lanes: list[Lane], begin: float) -> Table:
    everything = [(span, lane) for lane in lanes for span in lane.spans if span.category not in ("step", "annotation")]
    everything.sort(key=lambda pair: -pair[0].duration_s)
    rows = [
        (
            shorten(span.name, subject.limits.name),
            span.category,
            shorten(lane.name, 80),
            Figure(f"timeline.{summary.rank}.{position}.start_s", span.start_s - begin, "milliseconds"),
            Figure(f"timeline.{summary.rank}.{position}.duration_s", span.duration_s, "milliseconds"),
        )
        for position, (span, lane) in enumerate(everything[: min(LONGEST, subject.limits.rows)])
    ]
    return Table(
        f"longest-{summary.rank}",
        f"The longest operators, kernels, copies and waits of the last traced step of rank {summary.rank}",
        ("Name", "Kind", "Row", "Start (ms)", "Duration (ms)"),
        rows,
        words=3,
    )
