"""Summaries of stages in Markdown, as Vertex AI and Kubeflow show them: one view and one template each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

# Rows of one list: more are no summary.
MAX_ROWS = 100
Row = TypeVar("Row")


@dataclass(frozen=True)
class First(Generic[Row]):
    """The first rows of a list."""

    rows: tuple[Row, ...] = ()
    total: int = 0
    """Of the whole list."""


def first(rows: Sequence[Row], most: int = MAX_ROWS) -> First[Row]:
    """Return the first rows of a list."""
    return First(tuple(rows[:most]), len(rows))
