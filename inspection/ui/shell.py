"""What stands around every page of the server."""

from __future__ import annotations

from collections.abc import Sequence

from pages.document import Document
from pages.markup import Html
from pages.rendering import render
from pages.ui.shell import FailurePage, UiBody


def document(title: str, content: Html, *, scripts: Sequence[str] = ()) -> str:
    """Return a page.

    Args:
        title: Of the window.
        content: Header and main.
        scripts: Files of static/ that run in it.
    """
    return render(
        Document(
            f"{title} · Shardline",
            render(UiBody(content)),
            stylesheets=("/static/style.css", "/static/uPlot.min.css"),
            scripts=tuple(f"/static/{name}" for name in scripts),
        )
    )


def failure(title: str, reason: str) -> str:
    """Return the page that says why there is none."""
    return document(title, render(FailurePage(title, reason)))
