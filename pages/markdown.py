"""Markdown that shows text as it is: names of classes, paths and reasons come from data, and none is trusted.

What has a meaning in Markdown or HTML is written as a character reference: readers that know raw HTML, and readers that
do not, show the character and do nothing with it (CommonMark 0.31, section 2.5). Templates that end in `.md.j2` write
every value so (pages/rendering.py).
"""

from __future__ import annotations

import re

from pages.markup import UNPRINTABLE, shorten

# Beside what HTML needs: code, emphasis, links, strike-through, formulas, headings, and what cuts a table into cells.
# An underscore within a word means nothing; an address would become a link.
_SPECIAL = re.compile(r"[&<>`*\[\]\\|~$#]|(?<!\w)_|_(?!\w)|:(?=//)")
# A bar cuts a table's row within code too, and not all readers keep HTML out of code.
_ENDS_CODE = re.compile("[`|<>&]")
# White space, but for the space between a number and its unit.
_SPACES = re.compile(r"[^\S\u00a0]+")
# The longest text of a cell; a reason may be a whole traceback.
CELL_LIMIT = 300
# Of a path or a hash, which is worth nothing when it is cut: beyond what object stores allow for a name.
CODE_LIMIT = 1500


class Markdown(str):
    """Markdown: goes into a Markdown template as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        """Tell templates not to escape it."""
        return self


def cell(text: str) -> Markdown:
    """Return text for a cell of a table, or a line: one line, not too long, with nothing in it that means something."""
    return _escape(shorten(_one_line(text, CELL_LIMIT), CELL_LIMIT))


def whole(text: str) -> Markdown:
    """Return the same of text of any length."""
    return _escape(_one_line(text, len(text)))


def code(text: str) -> Markdown:
    """Return text that somebody may copy, as code: a path, a hash; as other text where code would not hold it."""
    line = shorten(_one_line(text, CODE_LIMIT), CODE_LIMIT)
    return Markdown(f"`{line}`") if line and not _ENDS_CODE.search(line) else cell(line)


def _escape(line: str) -> Markdown:
    return Markdown(_SPECIAL.sub(lambda found: f"&#{ord(found[0])};", line))


def _one_line(text: str, limit: int) -> str:
    # Somewhat more than the limit: what is cut is seen to be cut, and megabytes are not looked at.
    return _SPACES.sub(" ", UNPRINTABLE.sub("\ufffd", text[: 4 * limit])).strip()
