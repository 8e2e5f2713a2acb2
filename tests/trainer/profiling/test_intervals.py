"""Sets of points in time, against sets of whole numbers."""

from hypothesis import given
from hypothesis import strategies as st

from trainer.profiling.intervals import Interval, intersect, length, subtract, union

intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)).map(lambda pair: (pair[0], sum(pair))))


def points(of: list[Interval]) -> set[int]:
    return {point for start, end in of for point in range(int(start), int(end))}


@given(intervals, intervals)
def test_they_are_sets(one: list[Interval], other: list[Interval]) -> None:
    first, second = union(one), union(other)
    assert points(first) == points(one)
    assert points(intersect(first, second)) == points(one) & points(other)
    assert points(subtract(first, second)) == points(one) - points(other)
    for found in (first, intersect(first, second), subtract(first, second)):
        assert found == sorted(found)
        assert all(end > start for start, end in found)
        assert length(found) == len(points(found))
