"""What stands around every page of the server: head, navigation, and what the scripts say."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from pages.markup import Html, element, join, text


def document(title: str, *parts: str, scripts: Sequence[str] = ()) -> str:
    """Return a page.

    Args:
        title: Of the window.
        parts: Of the body: header, main and so on.
        scripts: Files of static/ that run in it.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{title} · Shardline"),
        element("link", rel="icon", href="data:,"),
        *(element("link", rel="stylesheet", href=f"/static/{name}") for name in ("style.css", "uPlot.min.css")),
        *(element("script", src=f"/static/{name}", defer=True) for name in scripts),
    )
    body = element(
        "body",
        element("a", "Skip to the content", href="#content", class_="skip"),
        element("div", element("a", "Shardline", href="/"), class_="brand", role="navigation", aria_label="All runs"),
        *parts,
        # Read out when it changes; empty as long as all is well.
        element("p", "", id="notice", role="status", hidden=True),
    )
    return join([Html("<!DOCTYPE html>\n"), element("html", head, body, lang="en"), "\n"])


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
