"""Markup as a type of its own: every other string is text, and becomes escaped text in a page (pages/rendering.py).

Names of kernels and operators, reasons and messages come from traces and from processes that died: none is trusted.
"""

from __future__ import annotations

import re

# Controls, halves of surrogate pairs (UTF-8 has none) and marks that turn the direction of what follows.
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
NOT_MEASURED = "not measured"


class Html(str):
    """Markup: goes into a page as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        """Tell templates not to escape it."""
        return self


NO_MARKUP = Html("")


def shorten(value: str, limit: int) -> str:
    """Return a string cut to a number of characters, with an ellipsis where something was cut."""
    return value if len(value) <= limit else value[: limit - 1] + "…"
