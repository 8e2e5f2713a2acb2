"""The document of every page: one head, whatever the body."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import ClassVar

from pages.markup import NO_MARKUP, Html
from pages.rendering import View, render
from pages.style import STYLE


def policy_of(script: str = "") -> str:
    """Return the policy of a page that asks for nothing: of all scripts only this one runs, by its hash.

    What a trace or a name smuggles into a page would be dead even if it got through.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'; " if script else ""
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; {allowed}base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Document(View):
    """A page as a whole: one file."""

    template: ClassVar[str] = "document.html.j2"
    title: str
    """Of the window."""
    body: Html
    policy: str = policy_of()
    """Content security policy."""
    style: Html = NO_MARKUP
    """Style sheet in the page."""
    script: Html = NO_MARKUP
    """Script in the page, the last in the body; `policy` has to name its hash."""


@dataclass(frozen=True)
class PlainPage(View):
    """A heading and a paragraph."""

    template: ClassVar[str] = "plain.html.j2"
    title: str
    words: str


def plain_page(title: str, words: str) -> str:
    """Return an HTML document with a heading and a paragraph, for a page that cannot be made."""
    return render(Document(title, render(PlainPage(title, words)), style=Html(STYLE)))
