"""The page of a stage whose page cannot be made: it says why."""

from __future__ import annotations

from pages.document import Document, policy_of
from pages.markup import Html
from pages.rendering import render
from pages.stage.page import PlainPage
from pages.style import STYLE


def plain_page(title: str, said: str) -> str:
    """Return an HTML document with a heading and a paragraph; it runs nothing and asks for nothing."""
    return render(Document(title, render(PlainPage(title, said)), policy=policy_of(), style=Html(STYLE)))
