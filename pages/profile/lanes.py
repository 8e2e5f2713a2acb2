"""Which spans of a row are drawn, and where: nested ones below each other, runs of short ones as one block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.artifacts.trace import Span

MOST_DEPTH = 7
# Clocks of traces count microseconds with three decimals: ends that should be the same may differ by one of the last.
SAME_S = 2e-9


@dataclass(frozen=True)
class Block:
    """A run of short spans, drawn as one: left out, they would look like time in which nothing ran."""

    category: str
    start_s: float
    duration_s: float
    number: int
    busy_s: float


@dataclass(frozen=True)
class Row:
    """What is drawn of a row."""

    spans: list[tuple[Span, int]]
    """With how many others each is inside of."""
    blocks: list[Block]
    left_out: int
    """Spans that are in none of these; each of them is inside of one that is drawn."""


def share_out(wanted: Sequence[int], whole: int) -> list[int]:
    """Return how much of a whole each gets: all that it wants, or an equal part of what those leave who want less."""
    shares, left = [0] * len(wanted), whole
    for done, index in enumerate(sorted(range(len(wanted)), key=lambda each: wanted[each])):
        shares[index] = min(wanted[index], left // (len(wanted) - done))
        left -= shares[index]
    return shares


def lay_out(spans: Sequence[Span], *, begin: float, whole: float, most: int, most_blocks: int) -> Row:
    """Choose what is drawn of a row.

    Args:
        spans: In any order; overlapping ones that are not nested are drawn below each other too.
        begin: Start of the timeline, in seconds from the start of the trace.
        whole: Its length in seconds.
        most: Spans drawn one by one: the longest.
        most_blocks: Blocks of outermost short spans at most.
    """
    placed = _depths(spans)
    placed.sort(key=lambda pair: (-pair[0].duration_s, pair[1]))
    drawn = [pair for pair in placed[:most] if pair[1] < MOST_DEPTH]
    rest = [span for span, depth in placed[most:] if depth == 0]
    blocks = _blocks(sorted(rest, key=lambda span: span.start_s), gap=whole / most_blocks, most=most_blocks)
    drawn.sort(key=lambda pair: (pair[0].start_s, pair[1]))
    left_out = len(spans) - len(drawn) - sum(block.number for block in blocks)
    return Row(drawn, blocks, left_out)


def _depths(spans: Sequence[Span]) -> list[tuple[Span, int]]:
    placed: list[tuple[Span, int]] = []
    ends: list[float] = []
    for span in sorted(spans, key=lambda each: (each.start_s, -each.duration_s)):
        while ends and ends[-1] <= span.start_s + SAME_S:
            ends.pop()
        placed.append((span, len(ends)))
        ends.append(span.start_s + span.duration_s)
    return placed


def _blocks(spans: Sequence[Span], *, gap: float, most: int) -> list[Block]:
    """Join neighbours that are closer than `gap`: with a gap of whole / most there are at most `most` runs and one."""
    found: list[Block] = []
    for span in spans:
        end = span.start_s + span.duration_s
        last = found[-1] if found else None
        if last is not None and (span.start_s - (last.start_s + last.duration_s) < gap or len(found) > most):
            found[-1] = Block(
                last.category if last.category == span.category else "other",
                last.start_s,
                max(end, last.start_s + last.duration_s) - last.start_s,
                last.number + 1,
                last.busy_s + span.duration_s,
            )
        else:
            found.append(Block(span.category, span.start_s, span.duration_s, 1, span.duration_s))
    return found
