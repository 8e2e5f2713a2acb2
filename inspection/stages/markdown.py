"""Markdown that shows text as it is: names of classes, paths and reasons come from data, and none is trusted.

What has a meaning in Markdown or HTML is written as a character reference: readers that know raw HTML, and readers that
do not, show the character and do nothing with it (CommonMark 0.31, section 2.5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pages.markup import UNPRINTABLE, shorten

# Beside what HTML needs: code, emphasis, links, strike-through, formulas, headings, and what cuts a table into cells.
# An underscore within a word means nothing; an address would become a link.
_SPECIAL = re.compile(r"[&<>`*\[\]\\|~$#]|(?<!\w)_|_(?!\w)|:(?=//)")
# A bar cuts a table's row within code too, and not all readers keep HTML out of code.
_ENDS_CODE = re.compile("[`|<>&]")
# The longest text of a cell; a reason may be a whole traceback.
CELL_LIMIT = 300


def cell(text: str) -> str:
    """Return text for a cell of a table, or a line: one line, with nothing in it that means something."""
    line = " ".join(UNPRINTABLE.sub("\ufffd", text).split())
    return _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", shorten(line, CELL_LIMIT))


def code(text: str) -> str:
    """Return text that somebody may copy, as code: a path, a hash; as other text where code would not hold it."""
    line = " ".join(UNPRINTABLE.sub("\ufffd", text).split())
    return f"`{line}`" if line and not _ENDS_CODE.search(line) else cell(line)


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
