"""What is drawn of a row of the timeline: all of it is accounted for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contracts.artifacts.trace import Span
from pages.profile.lanes import MOST_DEPTH, lay_out, share_out

SPANS = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 300)).map(
        lambda pair: Span("s", "kernel", pair[0] / 10, pair[1] / 10)
    ),
    min_size=1,
    max_size=200,
)


@given(spans=SPANS, most=st.integers(1, 60), most_blocks=st.integers(1, 20))
def test_every_span_is_drawn_or_in_a_block_or_counted(spans: list[Span], most: int, most_blocks: int) -> None:
    begin = min(span.start_s for span in spans)
    whole = max(span.start_s + span.duration_s for span in spans) - begin or 1.0
    row = lay_out(spans, begin=begin, whole=whole, most=most, most_blocks=most_blocks)
    assert len(row.spans) <= most
    assert len(row.blocks) <= most_blocks + 2
    assert row.left_out >= 0
    assert len(row.spans) + sum(block.number for block in row.blocks) + row.left_out == len(spans)
    assert all(depth < MOST_DEPTH for _, depth in row.spans)
    # Only what is too deep inside others may be left out before something shorter.
    drawn = [span.duration_s for span, _ in row.spans]
    outermost = [block.duration_s for block in row.blocks if block.number == 1]
    assert not drawn or not outermost or max(outermost) <= min(drawn)


def test_short_spans_in_a_row_are_one_block_with_the_time_they_took() -> None:
    spans = [Span("long", "kernel", 0.0, 1.0)] + [Span("short", "kernel", 2.0 + i * 0.01, 0.004) for i in range(100)]
    row = lay_out(spans, begin=0.0, whole=3.0, most=1, most_blocks=30)
    assert [span.name for span, _ in row.spans] == ["long"]
    assert len(row.blocks) == 1
    assert row.blocks[0].number == 100
    assert abs(row.blocks[0].busy_s - 0.4) < 1e-9
    assert row.left_out == 0


@given(wanted=st.lists(st.integers(0, 500), min_size=1, max_size=12), whole=st.integers(0, 2000))
def test_what_one_row_leaves_goes_to_the_others(wanted: list[int], whole: int) -> None:
    shares = share_out(wanted, whole)
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    assert sum(shares) == min(whole, sum(wanted))
