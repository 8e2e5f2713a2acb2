"""Where links of a page go: beside the page, to Google's console, or nowhere. Only schemes that are known become links.

A URI comes from a run: `javascript:` and its like stay text.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote, unquote

from contracts import storage
from pages.parts import Link

Href = Callable[[str], str | None]
"""The address that opens a URI; None: it is shown as text."""

CONSOLE = "https://console.cloud.google.com/"
_KEPT = "/%:@!$&'()*+,;=~-._"


def beside(line: str) -> Href:
    """Return links of a page that lies in LINE/runs/ID/: what is below the line by its relative path.

    Args:
        line: URI of the line's folder.
    """

    def href(uri: str) -> str | None:
        below = line.rstrip("/") + "/"
        if storage.is_local(uri) and uri.startswith(below) and ".." not in uri.removeprefix(below).split("/"):
            return "../../" + quote(uri.removeprefix(below), safe=_KEPT)
        return elsewhere(uri)

    return href


def elsewhere(uri: str) -> str | None:
    """Return links of a page that may lie anywhere: absolute ones."""
    if storage.is_local(uri):
        return "file://" + quote(uri.removeprefix("file://"), safe=_KEPT)
    return console(uri)


def console(uri: str) -> str | None:
    """Return the page of an object in Google's console, or of a folder (a URI that ends in /); None: in no bucket."""
    if not uri.startswith("gs://"):
        return None
    if uri.endswith("/"):
        return f"{CONSOLE}storage/browser/{quote(uri.removeprefix('gs://').rstrip('/'), safe='/')}"
    return f"{CONSOLE}storage/browser/_details/{quote(uri.removeprefix('gs://'), safe='/')}"


def console_page(address: str | None) -> str | None:
    """Return an address in Google's console as it is; anything else is no link."""
    return address if address is not None and address.startswith(CONSOLE) else None


def make_link(href: Href, uri: str, words: str) -> Link:
    """Return a link to a URI, where there is an address for it; a bucket's objects show their URI beside it."""
    address = href(uri) or ""
    return Link(words, address, "" if address and not uri.startswith("gs://") else shown_uri(uri))


def shown_uri(uri: str) -> str:
    """Return a URI as a user would type it: a local file's path, in full, since a page may be read anywhere."""
    return unquote(uri.removeprefix("file://")) if storage.is_local(uri) else uri
