"""Markdown that shows text as it is: names of classes, paths and reasons come from data, and none is trusted.

What has a meaning in Markdown or HTML is written as a character reference: readers that know raw HTML, and readers that
do not, show the character and do nothing with it (CommonMark 0.31, section 2.5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from pages.markup import UNPRINTABLE, shorten

# Beside what HTML needs: code, emphasis, links, strike-through, formulas, headings, and what cuts a table into cells.
# An underscore within a word means nothing; an address would become a link.
_SPECIAL = re.compile(r"[&<>`*\[\]\\|~$#]|(?<!\w)_|_(?!\w)|:(?=//)")
# A bar cuts a table's row within code too, and not all readers keep HTML out of code.
_ENDS_CODE = re.compile("[`|<>&]")
# The longest text of a cell; a reason may be a whole traceback.
CELL_LIMIT = 300
# Of a path or a hash, which is worth nothing when it is cut: beyond what object stores allow for a name.
CODE_LIMIT = 1500
# Rows of one list: more are no summary.
MAX_ROWS = 100
_Row = TypeVar("_Row")


def cell(text: str) -> str:
    """Return text for a cell of a table, or a line: one line, with nothing in it that means something."""
    return _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", shorten(_one_line(text, CELL_LIMIT), CELL_LIMIT))


def code(text: str) -> str:
    """Return text that somebody may copy, as code: a path, a hash; as other text where code would not hold it."""
    line = shorten(_one_line(text, CODE_LIMIT), CODE_LIMIT)
    return f"`{line}`" if line and not _ENDS_CODE.search(line) else cell(line)


def _one_line(text: str, limit: int) -> str:
    # Somewhat more than the limit: what is cut is seen to be cut, and megabytes are not looked at.
    return " ".join(UNPRINTABLE.sub("\ufffd", text[: 4 * limit]).split())


def first(rows: Sequence[_Row], most: int = MAX_ROWS) -> tuple[Sequence[_Row], list[str]]:
    """Return the first rows of a list, and the lines that say how many it has; none where these are all."""
    if len(rows) <= most:
        return rows, []
    return rows[:most], ["", f"The first {most:,} of {len(rows):,}; the manifest has all."]


def inline(parts: Sequence[str], most: int, count: int) -> str:
    """Return the first parts in one line, and how many of `count` are left out; "none" for none."""
    more = [f"and {count - most:,} more"] if count > most else []
    return ", ".join([*parts[:most], *more]) or "none"


def cut(lines: Sequence[str], most_bytes: int) -> list[str]:
    """Return as many of the lines as fit into a number of bytes of UTF-8, and a line about those that do not."""
    note = "The summary is cut here: {:,} of {:,} lines are left out, as more is not shown. The manifest has all."
    left = most_bytes - len(note) - 40
    for number, line in enumerate(lines):
        left -= len(line.encode()) + 1
        if left < 0:
            return [*lines[:number], "", note.format(len(lines) - number, len(lines))]
    return list(lines)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> list[str]:
    """Return the lines of a table.

    Args:
        head: A header a column.
        rows: Cells, made by `cell` or `code`, or numbers.
        words: How many columns from the left are text; the others are numbers, set to the right.
    """
    sides = ["---" if column < words else "---:" for column in range(len(head))]
    lines = [head, sides, *rows]
    assert all(len(row) == len(head) for row in lines), "a row has other columns than the head"
    return [f"| {' | '.join(row)} |" for row in lines]


def section(title: str, lines: Sequence[str]) -> list[str]:
    """Return the lines of a section; one that has none is left out."""
    return ["", f"## {title}", "", *lines] if lines else []
