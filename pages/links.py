"""A link as a page shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """Words that lead somewhere, where there is an address."""

    words: str
    address: str = ""
    """Empty: the words are text."""
    shown: str = ""
    """The URI beside them; empty: none is shown."""
