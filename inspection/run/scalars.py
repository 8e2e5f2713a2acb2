"""The rows of one file of scalars (contracts/scalars.py), whatever state the file is in.

Nothing here raises for what is in a file: what could not be read is said in words.
"""

from __future__ import annotations

import operator
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pydantic_core import from_json

from contracts.scalars import scalar_of

# What is read at a time; a longer line is none of ours.
BLOCK_BYTES = 2 << 20
# Scalars of a training; it writes some twenty.
MOST_NAMES = 200
_LONGEST_NAME = 300
# Lines that have the same names in the same order share a table.
_MOST_TABLES = 1_000


class Rows:
    """Values of scalars by step, in the order of the lines; those of a line lie one behind the other.

    Args:
        names: Of the scalars of a line.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.steps = array("q")
        self.times = array("d")
        self.values = array("d")
        self.ordered = True

    def add(self, step: int, time: float, values: Iterable[float]) -> None:
        """Append a line.

        Raises:
            TypeError, ValueError, OverflowError: Something in it is no number, or too large.
        """
        rows = len(self.steps)
        try:
            self.steps.append(step)
            self.times.append(time)
            self.values.extend(values)
        except (TypeError, ValueError, OverflowError):
            del self.steps[rows:], self.times[rows:], self.values[rows * len(self.names) :]
            raise
        if rows and step < self.steps[rows - 1]:
            self.ordered = False

    def columns(self, until: int | None) -> Iterator[tuple[str, array[int], array[float], array[float]]]:
        """Yield name, steps, times and values of each scalar, up to a step where one is given."""
        kept = self
        if until is not None and not self.ordered:
            kept = Rows(self.names)
            width = len(self.names)
            for place, (step, time) in enumerate(zip(self.steps, self.times, strict=True)):
                if step <= until:
                    kept.add(step, time, self.values[place * width : (place + 1) * width])
        end = len(kept.steps) if until is None or not self.ordered else bisect_right(kept.steps, until)
        width = len(self.names)
        for column, name in enumerate(self.names):
            yield name, kept.steps[:end], kept.times[:end], kept.values[column : end * width : width]


class ScalarFile:
    """What has been read of one part.

    Attributes:
        start: The step that an attempt went on from which began in this file: rows of earlier attempts beyond it are
            void. None: none began.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.start: int | None = None
        self._tables: dict[tuple[str, ...], Rows] = {}
        self._names: set[str] = set()
        self._damaged = self._refused = 0

    @property
    def rows(self) -> Iterable[Rows]:
        """Lines that have the same names."""
        return self._tables.values()

    @property
    def num_values(self) -> int:
        """Values that are held."""
        return sum(len(table.values) for table in self._tables.values())

    def missing(self) -> list[str]:
        """Return what could not be read, in words; the last line may not be whole yet."""
        said = []
        if self._damaged:
            said.append(f"{self.name}: {self._damaged} damaged lines are left out")
        if self._refused:
            limits = f"{MOST_NAMES} scalars with names of up to {_LONGEST_NAME} characters are kept"
            said.append(f"{self.name}: {self._refused} lines are left out: {limits}")
        return said

    def read(self, read_range: Callable[[int, int], bytes], size: int, *, most_values: int) -> bool:
        """Read the lines of the file.

        Args:
            read_range: Returns the bytes from a place on: so many, or fewer at the end.
            size: Bytes of the file.
            most_values: Stop behind the block with which the file has so many.

        Returns:
            Whether all was read that can be.
        """
        position = 0
        while position < size:
            if self.num_values >= most_values:
                return False
            block = read_range(position, min(BLOCK_BYTES, size - position))
            whole = block.rfind(b"\n") + 1
            if whole:
                self._take(block[:whole])
            elif len(block) < BLOCK_BYTES:
                # The last line is not whole yet.
                return True
            else:
                # No line of ours is so long.
                whole, self._damaged = len(block), self._damaged + 1
            position += whole
        return True

    def _take(self, lines: bytes) -> None:
        """Take in whole lines: all at once, which is faster; one by one where one of them is damaged."""
        try:
            found = from_json(b"[" + lines[:-1].replace(b"\n", b",") + b"]", cache_strings="keys")
        except ValueError:
            found = map(_parse, lines[:-1].split(b"\n"))
        for line in found:
            try:
                if "start" in line:
                    start = operator.index(line["start"])
                    self.start = start if self.start is None else min(start, self.start)
                    continue
                scalars: dict[str, Any] = line["scalars"]
                table = self._tables.get(names := tuple(scalars))
                if table is None and (table := self._table(names)) is None:
                    self._refused += 1
                    continue
                try:
                    table.add(line["step"], line["time"], scalars.values())
                except TypeError:
                    # NaN and infinities are words.
                    table.add(line["step"], line["time"], map(_number, scalars.values()))
            except (TypeError, KeyError, AttributeError, OverflowError, ValueError):
                self._damaged += 1

    def _table(self, names: tuple[str, ...]) -> Rows | None:
        more = self._names.union(names)
        if (
            len(more) > MOST_NAMES
            or len(self._tables) >= _MOST_TABLES
            or max(map(len, names), default=0) > _LONGEST_NAME
        ):
            return None
        self._names = more
        return self._tables.setdefault(names, Rows(names))


def _parse(line: bytes) -> Any:
    try:
        return from_json(line)
    except ValueError:
        return None


def _number(value: object) -> float:
    number = scalar_of(value)
    if number is None:
        raise ValueError(f"{value!r} is no number")
    return number
