"""HTML as text that cannot forget to escape: only what `element` has made is markup, every other string becomes text.

Names of kernels and operators, reasons and messages come from traces and from processes that died: none is trusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

# Controls, halves of surrogate pairs (UTF-8 has none) and marks that turn the direction of what follows.
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
VOID = frozenset({"meta", "link", "input", "br", "img", "line", "circle", "rect", "path", "polyline"})
NOT_MEASURED = "not measured"


class Html(str):
    """Markup: goes into a page as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        """Tell templates not to escape it."""
        return self


NO_MARKUP = Html("")


def text(value: str) -> Html:
    """Return a string as text of a page."""
    return Html(escape(UNPRINTABLE.sub("\ufffd", value), quote=True))


def shorten(value: str, limit: int) -> str:
    """Return a string cut to a number of characters, with an ellipsis where something was cut."""
    return value if len(value) <= limit else value[: limit - 1] + "…"


def join(parts: Iterable[str]) -> Html:
    """Return parts one after the other; those that are not markup are escaped."""
    return Html("".join(part if isinstance(part, Html) else text(part) for part in parts))


def element(tag: str, *children: str, **attributes: str | int | float | bool | None) -> Html:
    """Return an element. `class_` and `data_x` stand for class and data-x; None and False leave an attribute out."""
    parts = [f"<{tag}"]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        parts.append(f" {name}" if value is True else f' {name}="{text(str(value))}"')
    if tag in VOID:
        # In SVG an element that is not closed would hold all that follows.
        return Html("".join((*parts, "/>")))
    return Html("".join((*parts, ">", join(children), f"</{tag}>")))


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, id_: str, words: int = 1, note: str = ""
) -> Html:
    """Return a table that scrolls sideways in itself; the first cell of a row is its header.

    Args:
        caption: What it shows.
        head: A header a column, with the unit.
        rows: Cells, as text or markup.
        id_: The element's id.
        words: How many columns from the left are text; the others are numbers, set to the right.
        note: What was left out, below it.
    """
    sides = ["words" if column < words else None for column in range(len(head))]
    body = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(element("td", cell, class_=side) for cell, side in zip(row[1:], sides[1:], strict=True)),
        )
        for row in rows
    ]
    whole = element(
        "table",
        element("caption", caption),
        element(
            "thead",
            element("tr", *(element("th", t, scope="col", class_=side) for t, side in zip(head, sides, strict=True))),
        ),
        element("tbody", *body),
        id=id_,
    )
    # Focusable, so that the keyboard scrolls it.
    scroller = element("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)
    return join([scroller, element("p", note, class_="note")]) if note else scroller


def section(name: str, title: str, *children: str) -> Html:
    """Return one of the page's parts, with its heading; `name` is where the navigation goes."""
    return element(
        "section",
        element("h2", title, id=f"{name}-title"),
        *children,
        id=name,
        data_section=name,
        aria_labelledby=f"{name}-title",
    )


def absent(view: str, reason: str) -> Html:
    """Return what a view says that has no data."""
    return element("p", reason, class_="missing block", data_absent=view)
