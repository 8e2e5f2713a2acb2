"""The statistics of the data report, beside SciPy's, and how often they are wrong."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import jensenshannon

from records.report.statistics import compare_counts, compare_named, compare_numbers, upper_chi_square


@pytest.mark.parametrize("degrees", [1, 2, 9, 99, 999])
def test_the_tail_of_chi_square_is_scipys(degrees: int) -> None:
    for value in (0.0, 0.01, 1.0, degrees * 0.5, degrees * 1.0, degrees + 1.0, degrees * 2.0, degrees * 5.0 + 50):
        assert upper_chi_square(value, degrees) == pytest.approx(stats.chi2.sf(value, degrees), rel=1e-9, abs=1e-300)


def test_counts_are_compared_as_scipy_compares_them() -> None:
    random = np.random.default_rng(7)
    for cells in (2, 5, 40):
        # So large that no cell is pooled.
        before, now = (random.multinomial(20_000, random.dirichlet(np.full(cells, 20.0))).astype(float) for _ in "ab")
        found = compare_counts(before, now)
        expected = stats.chi2_contingency(np.array([before, now]), correction=False)
        assert found.cells == cells
        assert found.p == pytest.approx(expected.pvalue, rel=1e-8, abs=1e-300)
        shares = [(side + 0.5) / (side + 0.5).sum() for side in (before, now)]
        psi = stats.entropy(shares[1], shares[0]) + stats.entropy(shares[0], shares[1])
        assert found.psi == pytest.approx(psi, rel=1e-9)
        assert found.excess == pytest.approx(psi - (cells - 1) * (2 / 20_000))
        assert found.distance == pytest.approx(jensenshannon(before, now, base=2), rel=1e-9)


def test_small_cells_are_pooled() -> None:
    found = compare_named({"a": 500, "b": 400, "c": 3, "d": 2, "e": 1}, {"a": 480, "b": 420, "c": 1, "f": 4})
    # c to f expect 5.5 together.
    assert found.cells == 3
    found = compare_named({"a": 500, "b": 400, "c": 1}, {"a": 480, "b": 420})
    assert found.cells == 2


def test_few_values_and_missing_ones_are_cells() -> None:
    before = np.repeat([0.0, 1.0, np.nan], [600, 400, 0])
    now = np.repeat([0.0, 1.0, np.nan], [500, 300, 200])
    found = compare_numbers(before, now)
    assert (found.cells, found.before, found.now) == (3, 1000, 1000)
    assert found.excess > 0.25 and found.p < 1e-9
    # Half of the values are one value: the others are between deciles that differ.
    many = np.concatenate([np.zeros(5000), np.random.default_rng(1).normal(size=5000)])
    found = compare_numbers(many, many + np.where(many == 0, 0, 1))
    assert found.excess > 0.25 and found.p < 1e-9


def test_equal_distributions_are_not_told_apart_and_a_shift_is() -> None:
    """20 fields of 1,000 samples, 100 runs: no alarm; a shift by one standard deviation is found each time."""
    random = np.random.default_rng(11)
    fields, alarms = 20, 0
    for run in range(100):
        for number in range(fields):
            if number % 2:
                pair = [random.normal(size=1000) for _ in "ab"]
                found = compare_numbers(*pair)
            else:
                classes = 100 if number % 4 else 10
                counts = [random.multinomial(1000, np.full(classes, 1 / classes)).astype(float) for _ in "ab"]
                found = compare_counts(*counts)
            alarms += found.excess > 0.1 and found.p * fields < 0.001
        shifted = compare_numbers(random.normal(size=1000), random.normal(1.0, size=1000))
        assert shifted.excess > 0.25 and shifted.p * fields < 0.001, run
    assert alarms == 0
