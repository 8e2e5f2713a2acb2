"""Summaries of stages in Markdown, as Vertex AI and Kubeflow show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from pages.rendering import View

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


@dataclass(frozen=True)
class Block:
    """A part of a summary. All of it is text, but for what is `Markdown` already."""

    title: str = ""
    text: Sequence[str] = ()
    """Paragraphs above the rows."""
    head: Sequence[str] = ()
    """Of the columns; none: the rows are items of a list, each with those of its own below it."""
    words: int = 1
    """Columns from the left that are text; the others are numbers, set to the right."""
    rows: First[Sequence[str]] = First()
    notes: Sequence[str] = ()
    """Paragraphs below the rows."""


@dataclass(frozen=True)
class Summary(View):
    """What is said of a stage, or of a part of it."""

    template: ClassVar[str] = "stage/blocks.md.j2"
    blocks: Sequence[Block]


def listed(title: str, lines: Sequence[str]) -> list[Block]:
    """Return the block of a list; no block where it is empty."""
    return [Block(title, rows=first([(line,) for line in lines]))] if lines else []
