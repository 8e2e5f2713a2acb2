"""Statistics over the values of fields: numbers by column, categories by value, texts by length.

They are added up shard by shard, in the order of the shards, so that the sums of floats are the same on every runner.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from contracts.config import FieldKind
from records.sample import Value

# Kinds that are counted.
NUMBER_KINDS: tuple[FieldKind, ...] = ("number", "numbers")
COUNTED_KINDS: tuple[FieldKind, ...] = (*NUMBER_KINDS, "category", "text")
# Numbers that are held before they are summed up.
_BLOCK_NUMBERS = 1 << 16
# Longer lists, such as signals, have no statistics by place: each place takes 150 bytes of the manifest.
MAX_COLUMNS = 10_000


@dataclass(frozen=True)
class ColumnSums:
    """Numbers of one column; missing ones are only counted."""

    count: int = 0
    missing: int = 0
    mean: float = 0.0
    std: float = 0.0
    """Of the population; exactly 0 where all are alike."""
    least: float = math.inf
    most: float = -math.inf

    def __add__(self, other: ColumnSums) -> ColumnSums:
        """Return the sums over both: Chan, Golub and LeVeque (1979), "Updating formulae", with roots for the squares.

        `math.hypot` scales what it squares, so numbers near the end of the range of float64 do no harm.
        """
        missing = self.missing + other.missing
        if not self.count or not other.count:
            one = self if self.count else other
            return ColumnSums(one.count, missing, one.mean, one.std, one.least, one.most)
        count = self.count + other.count
        here, there = self.count / count, other.count / count
        apart = other.mean - self.mean
        std = math.hypot(self.std * math.sqrt(here), other.std * math.sqrt(there), apart * math.sqrt(here * there))
        least, most = min(self.least, other.least), max(self.most, other.most)
        if math.isinf(apart):
            # Both means are near the ends of the range.
            return ColumnSums(count, missing, self.mean * here + other.mean * there, sys.float_info.max, least, most)
        return ColumnSums(count, missing, self.mean + apart * there, std, least, most)._settled()

    def _settled(self) -> ColumnSums:
        """Return sums without the rounding of equal numbers: who divides by the deviation must see that it is 0."""
        if self.least != self.most:
            return self
        return ColumnSums(self.count, self.missing, self.least, 0.0, self.least, self.most)


@dataclass(frozen=True)
class FieldSums:
    """What is known about the values of one field."""

    columns: tuple[ColumnSums, ...] | None = ()
    """Of numbers, one for each; empty: none was seen; None: lists of different lengths, or long ones."""
    values: Mapping[str, int] = field(default_factory=dict)
    """Of a category, samples by value; an empty value is one that is missing."""
    lengths: tuple[int, ...] = ()
    """Of a text, samples by the number of bits that its length in bytes takes."""

    def __add__(self, other: FieldSums) -> FieldSums:
        return FieldSums(
            _add_columns(self.columns, other.columns),
            _add_counts(self.values, other.values),
            _add_lengths(self.lengths, other.lengths),
        )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> FieldSums:
        """Return what `dataclasses.asdict` has made a dictionary of."""
        columns = values["columns"]
        made = None if columns is None else tuple(ColumnSums(**one) for one in columns)
        return cls(made, values["values"], values["lengths"])


def add_fields(one: Mapping[str, FieldSums], other: Mapping[str, FieldSums]) -> dict[str, FieldSums]:
    """Return the sums of all fields of both, in their order."""
    return {name: one.get(name, FieldSums()) + other.get(name, FieldSums()) for name in {**one, **other}}


class FieldCounter:
    """Counts the values of samples, one sample after another.

    Args:
        is_training: Whether they are of the training split: numbers of others are left out.
    """

    def __init__(self, *, is_training: bool) -> None:
        self._is_training = is_training
        self._numbers: dict[str, list[float]] = defaultdict(list)
        self._lists: dict[str, list[bytes]] = defaultdict(list)
        self._held = 0
        self._columns: dict[str, tuple[ColumnSums, ...] | None] = {}
        self._values: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._lengths: dict[str, Counter[int]] = defaultdict(Counter)

    def add(self, values: Iterable[Value]) -> None:
        """Take in the fields of a sample."""
        for name, kind, value, _ in values:
            if kind == "category":
                self._values[name][value] += 1
            elif kind == "text":
                length = len(value) if value.isascii() else len(value.encode())
                self._lengths[name][length.bit_length()] += 1
            elif kind == "number":
                if self._is_training:
                    self._numbers[name].append(value)
                    self._held += 1
            elif kind == "numbers" and self._is_training:
                self._lists[name].append(value)
                self._held += len(value) // 8
        if self._held >= _BLOCK_NUMBERS:
            self._sum_up()

    def _sum_up(self) -> None:
        found = {name: sum_columns(np.array(own)[:, None]) for name, own in self._numbers.items()}
        for name, columns in {**found, **{name: sum_rows(rows) for name, rows in self._lists.items()}}.items():
            self._columns[name] = _add_columns(self._columns.get(name, ()), columns)
        self._numbers.clear()
        self._lists.clear()
        self._held = 0

    def total(self) -> dict[str, FieldSums]:
        """Return what was counted; equal samples in one order give equal sums."""
        self._sum_up()
        found = {name: FieldSums(columns=columns) for name, columns in self._columns.items()}
        found |= {name: FieldSums(values=dict(sorted(values.items()))) for name, values in self._values.items()}
        for name, lengths in self._lengths.items():
            found[name] = FieldSums(lengths=tuple(lengths[bits] for bits in range(max(lengths) + 1)))
        return dict(sorted(found.items()))


def sum_rows(rows: Sequence[bytes]) -> tuple[ColumnSums, ...] | None:
    """Return the sums of each column of at least one row; None where rows differ in length, or are long.

    Args:
        rows: Packed float64, little-endian.
    """
    sizes = {*map(len, rows)}
    if len(sizes) > 1 or max(sizes) > 8 * MAX_COLUMNS:
        return None
    return sum_columns(np.frombuffer(b"".join(rows), "<f8").reshape(len(rows), -1))


def sum_columns(values: npt.NDArray[np.float64]) -> tuple[ColumnSums, ...]:
    """Return the sums of each column of [rows, columns]; NaN is missing."""
    missing = np.isnan(values)
    counts = len(values) - missing.sum(axis=0)
    least = np.where(missing, np.inf, values).min(axis=0)
    most = np.where(missing, -np.inf, values).max(axis=0)
    # Powers of two change no digit, and keep squares within the range.
    largest = np.where(counts > 0, np.maximum(np.abs(least), np.abs(most)), 1.0)
    exponents = np.frexp(largest)[1]
    scaled = np.where(missing, 0.0, np.ldexp(values, -exponents))
    divisor = np.maximum(counts, 1)
    means = scaled.sum(axis=0) / divisor
    apart = np.where(missing, 0.0, scaled - means)
    # What rounding left of the first sum.
    shift = apart.sum(axis=0) / divisor
    means, apart = means + shift, np.where(missing, 0.0, apart - shift)
    stds = np.sqrt((apart * apart).sum(axis=0) / divisor)
    means, stds = np.ldexp(means, exponents), np.ldexp(stds, exponents)
    columns = (counts, missing.sum(axis=0), means, stds, least, most)
    return tuple(ColumnSums(*one)._settled() for one in zip(*(own.tolist() for own in columns), strict=True))


def _add_columns(
    one: tuple[ColumnSums, ...] | None, other: tuple[ColumnSums, ...] | None
) -> tuple[ColumnSums, ...] | None:
    if one is None or other is None:
        return None
    if not one or not other:
        return one or other
    if len(one) != len(other):
        return None
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _add_counts(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    total = dict(one)
    for name, count in other.items():
        total[name] = total.get(name, 0) + count
    return total


def _add_lengths(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    short, long = sorted((one, other), key=len)
    return tuple(count + (short[at] if at < len(short) else 0) for at, count in enumerate(long))
