"""The page of a stage whose page cannot be made: it says why."""

from __future__ import annotations

from pages.markup import Html, element, join
from pages.style import STYLE


def plain_page(title: str, said: str) -> str:
    """Return an HTML document with a heading and a paragraph; it runs nothing and asks for nothing."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width,initial-scale=1"),
        element("title", title),
        # An icon of its own: else browsers ask for one.
        element("link", rel="icon", href="data:,"),
        element("style", Html(STYLE)),
    )
    body = element("body", element("header", element("h1", title)), element("main", element("p", said)))
    return join([Html("<!doctype html>\n"), element("html", head, body, lang="en"), "\n"])
