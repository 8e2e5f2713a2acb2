"""What is told of a stage, whichever it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from inspection.run.door import finite
from pages.markdown import Markdown


@dataclass(frozen=True)
class Told:
    """What a stage's report says."""

    numbers: Mapping[str, float]
    """Its metrics: the stage stands in front of each name, since a comparison of runs shows those of all stages."""
    write: Callable[[], Markdown]
    """Writes its summary, in Markdown, below the heading. What it raises, the numbers have nothing to do with."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """Of what it made, beside its document's own, by name."""

    @property
    def lines(self) -> list[str]:
        """The summary's lines."""
        return self.write().splitlines()


def known(numbers: Mapping[str, float | None]) -> dict[str, float]:
    """Return the numbers that are some: what was not measured is no metric, 0 would be one."""
    return {name: value for name, value in numbers.items() if value is not None and finite(value) is not None}


def cut(lines: Sequence[str], most_bytes: int) -> list[str]:
    """Return as many lines of a summary as fit into a number of bytes of UTF-8, and one about those that do not.

    Consoles show no more.
    """
    note = "The summary is cut here: {:,} of {:,} lines are left out, as more is not shown. The manifest has all."
    left = most_bytes - len(note) - 40
    for number, line in enumerate(lines):
        left -= len(line.encode()) + 1
        if left < 0:
            return [*lines[:number], "", note.format(len(lines) - number, len(lines))]
    return list(lines)
