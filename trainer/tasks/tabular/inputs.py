"""Rows of a table as arrays: numbers with nan where one is missing, categories as places in a vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from contracts.artifacts import ShardManifest
from contracts.artifacts.shards import ColumnStatistics, FieldEntry
from contracts.artifacts.signature import TensorSpec
from contracts.errors import DataError
from records.columns import Columns
from trainer.tasks.needs import require_table_inputs
from trainer.tasks.protocol import Batch, RefusedSample, Sample

if TYPE_CHECKING:
    from trainer.report.first_rows import RowsSlot

NUMBERS, CATEGORIES, LABEL = "numbers", "categories", "label"
# float32 has 24 bits: a column whose values differ by less than this part of their mean is mostly rounding.
_LEAST_SPREAD = 1e-6
_LARGEST = float(np.finfo(np.float32).max)

Row = tuple[list[float], list[int]]
"""Numbers, nan where one is missing; and categories, 0 where one is missing or unseen, else 1 + its place."""


@dataclass(frozen=True)
class TableInputs:
    """The columns that a network learns from, in the order of the shards' fields."""

    fields: dict[str, FieldEntry]
    """By name; each of kind number, numbers or category."""

    @classmethod
    def of(cls, shards: ShardManifest, *, task: str) -> TableInputs:
        """Return the columns of shards.

        Args:
            shards: Their manifest.
            task: task.name, for messages.

        Raises:
            DataError: There is none, the shard stage has recorded nothing of one, or float32 cannot hold its values.
        """
        fields = shards.sample_fields
        found = cls({name: fields[name] for name in require_table_inputs(shards, task=task)})
        for name, entry in found.fields.items():
            if entry.kind != "category" and not entry.statistics:
                raise missing_statistics(name)
            for column in entry.statistics:
                require_float32(column)
        return found

    @cached_property
    def statistics(self) -> list[ColumnStatistics]:
        """Of each number, [N]."""
        return [column for entry in self.fields.values() for column in entry.statistics]

    @cached_property
    def vocabulary_sizes(self) -> list[int]:
        """Number of values in the vocabulary of each category, [K]."""
        return [len(entry.vocabulary) for entry in self.fields.values() if entry.kind == "category"]

    @cached_property
    def _readers(self) -> list[tuple[str, str, int, dict[str, int]]]:
        """Name, kind, number of numbers and places of the vocabulary of each field."""
        return [
            (name, entry.kind, len(entry.statistics), {value: n for n, value in enumerate(entry.vocabulary, start=1)})
            for name, entry in self.fields.items()
        ]

    @property
    def signature(self) -> dict[str, TensorSpec]:
        """`numbers` [batch, N] float32 and `categories` [batch, K] int64; one that would be empty is left out."""
        found = {}
        if self.statistics:
            found[NUMBERS] = TensorSpec(dtype="float32", shape=["batch", len(self.statistics)])
        if self.vocabulary_sizes:
            found[CATEGORIES] = TensorSpec(dtype="int64", shape=["batch", len(self.vocabulary_sizes)])
        return found

    def row_of(self, sample: Sample) -> Row:
        """Return numbers and categories of a sample.

        Raises:
            RefusedSample: A list has another number of numbers than those of the training split.
        """
        numbers: list[float] = []
        categories: list[int] = []
        for name, kind, count, places in self._readers:
            value: Any = sample[name]
            if kind == "category":
                categories.append(places.get(value, 0))
            elif kind == "number":
                numbers.append(value)
            elif len(value) == count:
                numbers += value
            else:
                raise RefusedSample(
                    f"field {name!r} has {len(value)} numbers",
                    allowed=f"{count}, as the training split has",
                    todo="correct the source, and shard again",
                )
        return numbers, categories

    def batch_of(self, rows: Sequence[Row]) -> Batch:
        """Return `numbers` [B, N] float32 and `categories` [B, K] int64 of rows; without one that would be empty.

        Raises:
            DataError: A number of the validation or test split is too large for float32.
        """
        found: Batch = {}
        if width := len(self.statistics):
            flat = np.fromiter(chain.from_iterable(numbers for numbers, _ in rows), np.float64, len(rows) * width)
            found[NUMBERS] = torch.from_numpy(self._narrow(flat.reshape(-1, width)))
        if width := len(self.vocabulary_sizes):
            places = np.fromiter(chain.from_iterable(places for _, places in rows), np.int64, len(rows) * width)
            found[CATEGORIES] = torch.from_numpy(places.reshape(-1, width))
        return found

    def batch_of_columns(self, columns: Columns) -> dict[str, torch.Tensor] | None:
        """Return what `batch_of` makes of the same rows; None where one of them cannot be used.

        Args:
            columns: Of the fields (records/columns.py).
        """
        numbers: list[npt.NDArray[np.float64]] = []
        places: list[list[int]] = []
        for name, kind, count, known in self._columns:
            if kind == "category":
                places.append([known.get(value, 0) for value in columns[name]])
                continue
            values = columns[name].reshape(len(columns[name]), -1)
            if values.shape[1] != count:
                return None
            numbers.append(values)
        found: dict[str, torch.Tensor] = {}
        if numbers:
            found[NUMBERS] = torch.from_numpy(self._narrow(np.concatenate(numbers, axis=1)))
        if places:
            found[CATEGORIES] = torch.from_numpy(np.array(places, np.int64).T.copy())
        return found

    @cached_property
    def _columns(self) -> list[tuple[str, str, int, dict[bytes, int]]]:
        """As `_readers`, with values as columns have them."""
        return [
            (name, kind, count, {value.encode(): place for value, place in places.items()})
            for name, kind, count, places in self._readers
        ]

    def _narrow(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)
        if np.isinf(narrow).any():
            row, column = np.argwhere(np.isinf(narrow))[0]
            raise _too_large(self.statistics[column].name, values[row, column])
        return narrow

    def example(self, size: int) -> Batch:
        """Return rows in which all is missing."""
        made: Batch = {
            NUMBERS: torch.full((size, len(self.statistics)), torch.nan),
            CATEGORIES: torch.zeros(size, len(self.vocabulary_sizes), dtype=torch.int64),
        }
        return {name: made[name] for name in self.signature}

    def first_slot(self, label: str, name_of: Callable[[float], str]) -> RowsSlot:
        """Return what keeps the first rows of training: numbers, and categories by their names.

        Args:
            label: What the label is called.
            name_of: Returns a label as text.
        """
        from trainer.report.first_rows import RowsSlot

        categories = {name: entry.vocabulary for name, entry in self.fields.items() if entry.kind == "category"}
        columns = [*(column.name for column in self.statistics), *categories, label]

        def describe(batch: Batch) -> list[list[str]]:
            numbers, places, labels = (batch.get(name) for name in (NUMBERS, CATEGORIES, LABEL))
            rows = []
            for row, own in enumerate([] if labels is None else labels.tolist()):
                told = [] if numbers is None else [_number(value) for value in numbers[row].tolist()]
                chosen = zip([] if places is None else places[row].tolist(), categories.values(), strict=True)
                told += [names[place - 1] if place else "missing or unseen" for place, names in chosen]
                rows.append([*told, name_of(own)])
            return rows

        return RowsSlot(columns, describe)

    def warnings(self) -> list[str]:
        """Return what training cannot learn from: columns without values or spread, and unseen categories."""
        found = []
        empty = [column.name for column in self.statistics if column.mean is None]
        same = [column.name for column in self.statistics if column.std == 0]
        flat = [column.name for column in self.statistics if 0 < (column.std or 0) < _LEAST_SPREAD * abs(_mean(column))]
        for names, said in (
            (empty, "no value in the training split: the network ignores it"),
            (same, "one value in the training split: the network ignores it"),
            (flat, "values that differ by less than float32 can tell: subtract something from them"),
        ):
            if names:
                found.append(f"{_shown(names)} {'has' if len(names) == 1 else 'have each'} {said}")
        for name, entry in self.fields.items():
            if entry.kind != "category":
                continue
            counted = [f"{count} of {split}" for split, count in sorted(entry.unseen.items()) if count]
            if counted:
                found.append(
                    f"category {name}: samples with a value that the training split lacks ({', '.join(counted)}) are "
                    "taken as missing"
                )
        return found

    def document(self) -> list[dict[str, Any]]:
        """Return the columns as a checkpoint and table.json have them: all that makes arrays of rows."""
        found = []
        for name, entry in self.fields.items():
            columns = columns_of(name, entry)
            described: dict[str, Any] = {"name": name, "kind": entry.kind, "columns": columns}
            if entry.kind == "category":
                described["vocabulary"] = entry.vocabulary
            else:
                # Else there is a column for each number.
                is_list = columns != [column.name for column in entry.statistics]
                described |= {"numbers": len(entry.statistics), "is_list": is_list}
            found.append(described)
        return found


def columns_of(name: str, entry: FieldEntry) -> list[str]:
    """Return the columns of the source that a field was read from: one, or of numbers one for each of them."""
    return entry.columns or [column.name for column in entry.statistics] or [name]


def missing_statistics(field: str) -> DataError:
    """Return the error of a field of numbers that the shard stage has measured nothing of."""
    return DataError(
        f"the shards have no statistics of field {field!r}",
        allowed="shards whose manifest has mean and standard deviation of every column of numbers",
        todo="shard the source again",
    )


def require_float32(column: ColumnStatistics) -> None:
    """Refuse a column with values that float32 cannot hold.

    Raises:
        DataError: It has such.
    """
    for value in (column.least, column.most):
        if value is not None and not abs(value) <= _LARGEST:
            raise _too_large(column.name, value)


def _too_large(column: str, value: float) -> DataError:
    return DataError(
        f"column {column!r} has the value {value:g}",
        allowed=f"sizes up to {_LARGEST:g}, the largest number of float32",
        todo="scale the column, for example by its logarithm, and shard again",
    )


def _number(value: float) -> str:
    return "missing" if math.isnan(value) else f"{value:.6g}"


def _mean(column: ColumnStatistics) -> float:
    return 0.0 if column.mean is None else column.mean


def _shown(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"column{'s' if len(names) > 1 else ''} {', '.join(map(repr, names[:most]))}{more}"
