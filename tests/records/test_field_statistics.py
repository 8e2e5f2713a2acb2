"""Statistics of fields: as numpy's over all values at once, whatever the shards."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from records.field_statistics import ColumnSums, FieldCounter, FieldSums, add_fields, sum_columns
from records.sample import Value


def numbers_of(row: Sequence[float]) -> Value:
    return Value("v", "numbers", np.array(row, "<f8").tobytes())


def count(rows: Sequence[Sequence[Value]], *, is_training: bool = True) -> dict[str, FieldSums]:
    counter = FieldCounter(is_training=is_training)
    for row in rows:
        counter.add(row)
    return counter.total()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1e308, 1e308) | st.just(math.nan), min_size=1, max_size=60),
    st.lists(st.integers(1, 59), max_size=3),
)
def test_sums_of_shards_are_those_of_all_values(values: list[float], cuts: list[int]) -> None:
    ends = sorted({*cuts, 0, len(values)})
    total: dict[str, FieldSums] = {}
    for begin, end in itertools.pairwise(ends):
        part = values[begin:end]
        if part:
            total = add_fields(total, count([[Value("x", "number", one)] for one in part]))
    ((column,),) = [one.columns or () for one in total.values()]
    known = np.array([one for one in values if one == one])
    assert (column.count, column.missing) == (len(known), len(values) - len(known))
    if len(known):
        assert (column.least, column.most) == (known.min(), known.max())
        scale = max(abs(known).max(), 1e-300)
        wanted = float((known / scale).mean()), float((known / scale).std())
        assert (column.mean / scale, column.std / scale) == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    again = {name: FieldSums.of(asdict(one)) for name, one in total.items()}
    assert again == total


def test_equal_numbers_have_no_deviation_at_all() -> None:
    (column,) = sum_columns(np.full((1000, 1), 0.1))
    assert (column.mean, column.std) == (0.1, 0.0)
    assert (column + column).std == 0.0 and (column + column).mean == 0.1
    assert (column + ColumnSums()).count == 1000


def test_blocks_are_added_up_and_kinds_are_told_apart() -> None:
    numbers = np.random.default_rng(0).normal(1e9, 1.0, (70_000, 3))
    rows = [
        [numbers_of(row), Value("c", "category", "ab"[at % 2]), Value("t", "text", "x" * (at % 5))]
        for at, row in enumerate(numbers.tolist())
    ]
    found = count(rows)
    assert found["v"].columns is not None
    # Exact sums: of numbers so far from 0, numpy's own are off by 1e-8.
    means = [math.fsum(own) / len(own) for own in numbers.T]
    stds = [math.sqrt(math.fsum((own - mean) ** 2) / len(own)) for own, mean in zip(numbers.T, means, strict=True)]
    assert [one.mean for one in found["v"].columns] == pytest.approx(means, rel=1e-15)
    assert [one.std for one in found["v"].columns] == pytest.approx(stds, rel=1e-9)
    assert found["c"].values == {"a": 35_000, "b": 35_000}
    assert found["t"].lengths == (14_000, 14_000, 28_000, 14_000)
    # Numbers are those of the training split alone.
    assert count(rows[:10], is_training=False).keys() == {"c", "t"}


def test_lists_of_different_lengths_have_no_statistics() -> None:
    one, other = (count([[numbers_of([1.0] * length)]]) for length in (2, 3))
    assert one["v"].columns and add_fields(one, other)["v"].columns is None
    assert count([[numbers_of([1.0])], [numbers_of([1.0, 2.0])]])["v"].columns is None
