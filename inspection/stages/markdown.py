"""The size of a summary: consoles show no more."""

from __future__ import annotations

from collections.abc import Sequence


def cut(lines: Sequence[str], most_bytes: int) -> list[str]:
    """Return as many of the lines as fit into a number of bytes of UTF-8, and a line about those that do not."""
    note = "The summary is cut here: {:,} of {:,} lines are left out, as more is not shown. The manifest has all."
    left = most_bytes - len(note) - 40
    for number, line in enumerate(lines):
        left -= len(line.encode()) + 1
        if left < 0:
            return [*lines[:number], "", note.format(len(lines) - number, len(lines))]
    return list(lines)
