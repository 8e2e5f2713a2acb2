"""Ticks, scales and paths of charts."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inspection.pages import quantities
from inspection.pages.chart import Axis, line_path, round_ticks, value_axis

FINITE = st.floats(min_value=-1e12, max_value=1e12, allow_nan=False)
SQUARE = Axis(0.0, 1.0, [])


@given(FINITE, FINITE, st.integers(min_value=2, max_value=9))
@example(0.0, 0.0, 5)
@example(1.0, 1.0 + 1e-15, 5)
@example(-1e-300, 1e-300, 3)
def test_round_ticks_cover_what_is_drawn(one: float, other: float, most: int) -> None:
    low, high = min(one, other), max(one, other)
    ticks = round_ticks(low, high, most)
    assert 2 <= len(ticks) <= most
    assert all(before < after for before, after in pairwise(ticks))
    room = 1e-6 * max(abs(low), abs(high), 1e-300)
    assert ticks[0] <= low + room
    assert ticks[-1] >= high - room


@given(
    st.lists(st.floats(min_value=-1e9, max_value=1e9), min_size=1, max_size=20),
    st.sampled_from(["number", "percent", "size"]),
)
def test_all_values_are_on_their_axis(values: list[float], unit: str) -> None:
    axis = value_axis(values, unit)
    assert all(-1e-6 <= axis.fraction(value) <= 1 + 1e-6 for value in values)
    assert len({name for _, name in axis.ticks}) == len(axis.ticks), "each tick reads differently"


@pytest.mark.parametrize(
    ("values", "unit", "names"),
    [
        ([0.6, 0.97], "percent", ["60 %", "70 %", "80 %", "90 %", "100 %"]),
        ([0.0, 506e6], "size", ["0 MB", "200 MB", "400 MB", "600 MB"]),
    ],
)
def test_ticks_have_the_unit_of_the_legend(values: list[float], unit: str, names: list[str]) -> None:
    shown = [name.replace("\u00a0", " ") for _, name in value_axis(values, unit).ticks]
    assert shown == names
    legend = getattr(quantities, unit)(max(values))
    assert legend.rpartition("\u00a0")[2] == names[-1].rpartition(" ")[2]


def test_a_path_breaks_at_values_that_are_not_finite() -> None:
    path = line_path([0.0, 0.25, 0.5, 0.75, 1.0], [0.0, 1.0, math.nan, 0.5, 0.5], SQUARE, SQUARE)
    assert path == "M0 1000L0 1000L500 0M1500 500L1500 500L2000 500"
