"""Pages that follow what runs: their sections travel only when they change, and clocks as numbers beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inspection.ui.store import digest_of
from pages.markup import Html
from pages.rendering import render
from pages.ui.shell import LiveContent


@dataclass(frozen=True)
class News:
    """What a page shows now."""

    parts: Mapping[str, Html]
    """Header and sections, by their ids."""
    curves: str
    """Digest of what the charts show."""
    ended: bool
    """Whether all of it goes on no more."""
    clocks: Mapping[str, float]
    """Figures that run, in seconds, by their names."""

    @property
    def digest(self) -> str:
        """Of each part in their order, and of the charts."""
        return ".".join([*map(digest_of, self.parts.values()), self.curves])

    def since(self, known: str) -> dict[str, Any]:
        """Return what a page with a digest lacks; all parts where it is of another form."""
        digest = self.digest
        now, before = digest.split("."), known.split(".")
        if len(before) != len(now):
            before = [""] * len(now)
        # The last is that of the charts: a page with an older one asks for them.
        changed = {
            name: html for (name, html), a, b in zip(self.parts.items(), now[:-1], before[:-1], strict=True) if a != b
        }
        return {"digest": digest, "ended": self.ended, "clocks": dict(self.clocks), "parts": changed}


def live_content(news: News, before: Html, *, live: str, curves: str) -> Html:
    """Return the element that scripts keep up to date.

    Args:
        news: What it shows.
        before: Header and navigation, before its sections.
        live: Address of what is new.
        curves: Addresses of what the charts show, separated by spaces.
    """
    sections = tuple(html for name, html in news.parts.items() if name != "header")
    return render(LiveContent(before, sections, live, news.digest, news.ended, json.dumps(dict(news.clocks)), curves))
