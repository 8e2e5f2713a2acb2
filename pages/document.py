"""The document of every page: one head, whatever the body."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import ClassVar

from pages.markup import NO_MARKUP, Html
from pages.rendering import View


@dataclass(frozen=True)
class Document(View):
    """A page as a whole."""

    template: ClassVar[str] = "document.html.j2"
    title: str
    """Of the window."""
    body: Html
    policy: str = ""
    """Content security policy; empty where the server sends one."""
    style: Html = NO_MARKUP
    """Style sheet in the page: of a file that opens from a disk."""
    script: Html = NO_MARKUP
    """Script in the page, the last in the body; `policy` has to name its hash."""
    stylesheets: tuple[str, ...] = ()
    """Addresses of style sheets."""
    scripts: tuple[str, ...] = ()
    """Addresses of scripts, which run when the page is there."""


def policy_of(script: str = "") -> str:
    """Return the policy of a page that asks for nothing: of all scripts only this one runs, by its hash.

    What a trace or a name smuggles into a page would be dead even if it got through.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'; " if script else ""
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; {allowed}base-uri 'none'; form-action 'none'"


@cache
def static_file(name: str) -> str:
    """Return the text of a file of pages/static/."""
    return (resources.files("pages") / "static" / name).read_text()


def charts_script() -> str:
    """Return the script of a page in one file that draws its curves."""
    return static_file("uPlot.iife.min.js") + static_file("draw.js")
