"""One statistic per field: how far two samples of it are apart, beyond what chance makes.

Counts in cells are compared by the population stability index, sum of (q - p) ln(q / p) over shares p and q. Of two
samples of one distribution it is about (K - 1)(1/n + 1/m) with K cells: the excess is what it has above that. The usual
limit of 0.1 without this correction is passed by chance alone at 100 classes. Whether chance explains the difference
is said by Pearson's chi-square test of two samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.float64]
# Cells of numbers: between the deciles of the earlier sample. With no more values than that each is a cell.
_CELLS = 10
# A cell in which fewer are expected than this is pooled with others: the chi-square distribution holds from here on.
_LEAST_EXPECTED = 5
_ADDED = 0.5
# Relative error at which series and continued fraction end, and their most terms.
_PRECISION, _TERMS = 1e-14, 10_000
_TINY = 1e-300


@dataclass(frozen=True)
class Apart:
    """How far two samples are apart."""

    before: int
    """Size of the earlier sample."""
    now: int
    cells: int
    """Compared, after pooling."""
    psi: float
    excess: float
    """`psi` less what chance makes of it."""
    p: float
    """Probability of such a difference, or a larger one, between two samples of one distribution."""
    distance: float
    """Jensen-Shannon distance in [0, 1], base 2: shown, and not judged."""


def compare_counts(before: Counts, now: Counts) -> Apart:
    """Compare two samples by their counts.

    Args:
        before: [cells], of the earlier sample; at least one count is not zero.
        now: [cells], of the later one, likewise.
    """
    n, m = float(before.sum()), float(now.sum())
    before, now = _pool(before, now)
    cells = len(before)
    shares = [(counts + _ADDED) / (counts.sum() + _ADDED * cells) for counts in (before, now)]
    psi = float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())
    expected = (before + now) / (n + m)
    chi_square = sum(
        float(((counts - size * expected) ** 2 / (size * expected)).sum()) for counts, size in ((before, n), (now, m))
    )
    return Apart(
        before=int(n),
        now=int(m),
        cells=cells,
        psi=psi,
        excess=psi - (cells - 1) * (1 / n + 1 / m),
        p=upper_chi_square(chi_square, cells - 1),
        distance=_jensen_shannon(before / n, now / m),
    )


def compare_numbers(before: Counts, now: Counts) -> Apart:
    """Compare two samples of numbers; NaN, a missing value, is a cell of its own.

    Args:
        before: [rows] of the earlier sample, at least one.
        now: [rows] of the later one, likewise.
    """
    known, later = before[~np.isnan(before)], now[~np.isnan(now)]
    values = np.unique(np.concatenate([known, later]))
    if len(values) <= _CELLS:
        cells = [np.searchsorted(values, side) for side in (known, later)]
        size = len(values)
    else:
        edges = np.unique(np.quantile(known, np.arange(1, _CELLS) / _CELLS)) if len(known) else np.empty(0)
        # An edge that many values share is a cell: between edges are the odd numbers.
        cells = [
            np.searchsorted(edges, side, "left") + np.searchsorted(edges, side, "right") for side in (known, later)
        ]
        size = 2 * len(edges) + 1
    counts = [np.bincount(own, minlength=size).astype(np.float64) for own in cells]
    missing = [float(len(whole) - len(own)) for whole, own in ((before, known), (now, later))]
    return compare_counts(*(np.append(own, none) for own, none in zip(counts, missing, strict=True)))


def compare_named(before: Mapping[Any, int], now: Mapping[Any, int]) -> Apart:
    """Compare two samples of categories by the counts of their names."""
    names = sorted({*before, *now}, key=str)
    return compare_counts(*(np.array([side.get(name, 0) for name in names], np.float64) for side in (before, now)))


def upper_chi_square(value: float, degrees: int) -> float:
    """Return the probability that a chi-square variable is above a value; 1 without degrees of freedom.

    It is the regularised upper incomplete gamma function Q(degrees / 2, value / 2): by its series below the bend, by
    Lentz's continued fraction above it (DLMF 8.11.4 and 8.9.2).
    """
    a, x = degrees / 2, value / 2
    if degrees < 1 or x <= 0:
        return 1.0
    scale = math.exp(-x + a * math.log(x) - math.lgamma(a)) if x < 1e6 else 0.0
    if x < a + 1:
        total = term = 1 / a
        for number in range(1, _TERMS):
            term *= x / (a + number)
            total += term
            if term < total * _PRECISION:
                break
        return max(0.0, 1.0 - total * scale)
    b = x + 1 - a
    c, d = 1 / _TINY, 1 / b
    fraction = d
    for number in range(1, _TERMS):
        step = -number * (number - a)
        b += 2
        d = 1 / (step * d + b or _TINY)
        c = b + step / c or _TINY
        fraction *= d * c
        if abs(d * c - 1) < _PRECISION:
            break
    return min(1.0, fraction * scale)


def _pool(before: Counts, now: Counts) -> tuple[Counts, Counts]:
    """Return the counts without empty cells; cells too small for the test are one, or join another."""
    seen = before + now > 0
    before, now = before[seen], now[seen]
    n, m = before.sum(), now.sum()
    small = (before + now) * (min(n, m) / (n + m)) < _LEAST_EXPECTED
    if not small.any():
        return before, now
    sides = [np.append(side[~small], side[small].sum()) for side in (before, now)]
    together = sides[0] + sides[1]
    if len(together) > 1 and together[-1] * (min(n, m) / (n + m)) < _LEAST_EXPECTED:
        home = int(np.argmin(together[:-1]))
        for side in sides:
            side[home] += side[-1]
        sides = [side[:-1] for side in sides]
    return sides[0], sides[1]


def _jensen_shannon(p: Counts, q: Counts) -> float:
    middle = (p + q) / 2

    def divergence(side: Counts) -> float:
        some = side > 0
        return float((side[some] * np.log2(side[some] / middle[some])).sum())

    return math.sqrt(max(0.0, (divergence(p) + divergence(q)) / 2))
