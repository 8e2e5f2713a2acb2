"""What stands around every page of the server: head, navigation, and what the scripts say."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pages.document import Document
from pages.markup import Html, element, join, text
from pages.rendering import render


def document(title: str, *parts: str, scripts: Sequence[str] = ()) -> str:
    """Return a page.

    Args:
        title: Of the window.
        parts: Of the body: header, main and so on.
        scripts: Files of static/ that run in it.
    """
    body = join(
        [
            element("a", "Skip to the content", href="#content", class_="skip"),
            element(
                "div", element("a", "Shardline", href="/"), class_="brand", role="navigation", aria_label="All runs"
            ),
            *parts,
            # Read out when it changes; empty as long as all is well.
            element("p", "", id="notice", role="status", hidden=True),
        ]
    )
    return render(
        Document(
            f"{title} · Shardline",
            body,
            stylesheets=("/static/style.css", "/static/uPlot.min.css"),
            scripts=tuple(f"/static/{name}" for name in scripts),
        )
    )


def failure(title: str, reason: str) -> str:
    """Return the page that says why there is none."""
    return document(
        title,
        element("header", element("h1", title)),
        element("main", element("section", element("p", reason), element("p", _HOME)), id="content"),
    )


def moment(at: float | None) -> Html:
    """Return a moment, in UTC."""
    try:
        given = None if at is None else datetime.fromtimestamp(at, UTC)
    except (OverflowError, OSError, ValueError):
        given = None
    if given is None:
        return element("span", "unknown", class_="missing")
    return element("time", f"{given:%Y-%m-%d %H:%M:%S}", datetime=f"{given:%Y-%m-%dT%H:%M:%SZ}")


_HOME = Html(f'<a href="/">{text("All runs")}</a>')
