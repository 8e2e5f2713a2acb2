"""Arithmetic on sets of points in time, written as sorted lists of disjoint (start, end) intervals.

Any unit; functions take intervals in any order where they say so, and return them sorted and disjoint.
"""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the points that lie in any of the intervals, which may come in any order and overlap."""
    joined: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def intersect(one: list[Interval], other: list[Interval]) -> list[Interval]:
    """Return the points that lie in both sets; both sorted and disjoint."""
    found = []
    i = j = 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if end > start:
            found.append((start, end))
        if one[i][1] <= other[j][1]:
            i += 1
        else:
            j += 1
    return found


def subtract(one: list[Interval], other: list[Interval]) -> list[Interval]:
    """Return the points of the first set that do not lie in the second; both sorted and disjoint."""
    left = []
    j = 0
    for start, end in one:
        while j < len(other) and other[j][1] <= start:
            j += 1
        at, k = start, j
        while k < len(other) and other[k][0] < end:
            if other[k][0] > at:
                left.append((at, other[k][0]))
            at = max(at, other[k][1])
            k += 1
        if end > at:
            left.append((at, end))
    return left


def length(intervals: Iterable[Interval]) -> float:
    """Return the length of a set: sorted and disjoint."""
    return sum(end - start for start, end in intervals)
