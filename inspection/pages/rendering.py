"""Jinja environment of pages: every value is escaped, for HTML or for Markdown by the name of the template.

Only strings of the types `Html` and `Markdown` are not escaped. In Markdown, special characters become references
(CommonMark 0.31, section 2.5).
"""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from inspection.pages import quantities
from inspection.pages.quantities import UNPRINTABLE, instant, several, shorten

_FOLDER = Path(__file__).parent
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
# By state: class of its colour, and path of its icon in a square of 16.
_CHECK, _CROSS, _EXCLAMATION, _DASH = "M4.5 8.3l2.4 2.4 4.6-5", "M5 5l6 6M11 5l-6 6", "M8 4.2v4.6M8 11.4h.01", "M5 8h6"
_STATES = {
    **dict.fromkeys(("succeeded", "done", "passed", "proven", "kept"), ("good", _CHECK)),
    "reused": ("good", "M11.2 6.2A3.7 3.7 0 1 0 11.7 8.6M11.6 3.6V6.4H8.8"),
    "running": ("live", "M6.2 4.8v6.4L11.4 8z"),
    "waiting": ("idle", "M8 4.4V8l2.4 1.6"),
    **dict.fromkeys(("silent", "unknown", "unreadable", "unproven", "warning"), ("warning", _EXCLAMATION)),
    "stopped": ("warning", "M5.6 5.6h4.8v4.8H5.6z"),
    "interrupted": ("warning", "M6.2 5v6M9.8 5v6"),
    "failed": ("bad", _CROSS),
}
# Special characters of Markdown or HTML, outside of words for underscores; `://` would become a link.
_SPECIAL = re.compile(r"[&<>`*\[\]\\|~$#]|(?<!\w)_|_(?!\w)|:(?=//)")
_SPACES = re.compile(r"[^\S\u00a0]+")
_CELL_LIMIT, _CODE_LIMIT = 300, 1500


class Html(Markup):
    """HTML that is not escaped."""

    __slots__ = ()


class Markdown(str):
    """Markdown that is not escaped."""

    __slots__ = ()


def cell(text: str, limit: int = _CELL_LIMIT) -> Markdown:
    """Return text as one line of Markdown without markup, cut to `limit` characters."""
    return Markdown(_SPECIAL.sub(lambda match: f"&#{ord(match[0])};", _one_line(text, limit)))


def code(text: str) -> Markdown:
    """Return a path or a hash as Markdown code; as escaped text if code cannot contain it."""
    line = _one_line(text, _CODE_LIMIT)
    return Markdown(f"`{line}`") if line and not re.search("[`|<>&]", line) else cell(text, _CODE_LIMIT)


def _one_line(text: str, limit: int) -> str:
    return shorten(_SPACES.sub(" ", UNPRINTABLE.sub("\ufffd", text[: 4 * limit])).strip(), limit)


def render_macro(name: str, *values: Any) -> Html:
    """Return the HTML of a macro of parts.html.j2.

    Raises:
        TypeError: A value is None, which has no text.
    """
    macros = _environment(markdown=False).get_template("parts.html.j2").module
    return Html(getattr(macros, name)(*values))


def render_markdown(template: str, **values: Any) -> str:
    """Return a template's Markdown; every value becomes one line of text without markup."""
    return re.sub(r"\n{3,}", "\n\n", _environment(markdown=True).get_template(template).render(values)).strip("\n")


def document(title: str, **values: Any) -> str:
    """Return a page as one HTML file without scripts and external resources.

    Args:
        title: Of the window.
        **values: Of the template page.html.j2.
    """
    style = Html((_FOLDER / "style.css").read_text(encoding="utf-8"))
    template = _environment(markdown=False).get_template("page.html.j2")
    return template.render(title=shorten(title, 200), policy=_POLICY, style=style, **values)


def plain_page(title: str, text: str) -> str:
    """Return an HTML file with a heading and a paragraph, in place of a page that cannot be rendered."""
    return document(title, heading=title, facts=(), state="", sections=(text,), footer="", navigation=())


@cache
def _environment(*, markdown: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=not markdown,
        undefined=StrictUndefined,
        finalize=_as_markdown if markdown else _printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "code": code,
        "kind": lambda part: type(part).__name__,
        "several": several,
        "instant": instant,
        "shown_as": lambda value, unit: getattr(quantities, unit)(value),
        "colour": lambda state: _STATES.get(state, ("idle", _DASH))[0],
        "sign": lambda state: _STATES.get(state, ("idle", _DASH))[1],
    }
    environment.tests["finite"] = lambda value: value is not None and math.isfinite(value)
    return environment


def _printable(value: Any) -> Any:
    if value is None:
        raise TypeError("a template shows None")
    return value if hasattr(value, "__html__") else UNPRINTABLE.sub("\ufffd", str(value))


def _as_markdown(value: Any) -> Any:
    if value is None:
        raise TypeError("a template shows None")
    return value if isinstance(value, Markdown) else cell(str(value))
