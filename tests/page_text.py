"""What a page says, read from its HTML: figures by their names, texts, and parts without data."""

from __future__ import annotations

import re
from html import unescape

_FIGURE = re.compile(r'<(\w+)([^<>]*\bdata-figure="([^"]*)"[^<>]*)>(.*?)</\1>', re.DOTALL)


def said(markup: str) -> str:
    """Return the text of markup, on one line."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", "", markup))).replace("\xa0", " ")


def part(page: str, name: str) -> str:
    """Return the text and tags of the section or element of this id, to the end of its section."""
    return page.partition(f'id="{name}"')[2].partition("</section>")[0]


def figures(page: str) -> dict[str, float | None]:
    """Return the exact value of every figure by its name; None: it reads as not measured."""
    found = _FIGURE.findall(page)
    names = [name for _, _, name, _ in found]
    assert len(set(names)) == len(names), f"twice: {[name for name in names if names.count(name) > 1]}"
    values = ((name, re.search(r'value="([^"]*)"', attributes)) for _, attributes, name, _ in found)
    return {unescape(name): float(value[1]) if value else None for name, value in values}


def texts(page: str) -> dict[str, str]:
    """Return what every figure reads, by its name."""
    return {unescape(name): said(text) for _, _, name, text in _FIGURE.findall(page)}


def absent(page: str) -> dict[str, str]:
    """Return the parts that have no data, with the reason that they show."""
    found = re.findall(r'<(\w+)[^<>]*\bid="absent-([^"]*)"[^<>]*>(.*?)</\1>', page, re.DOTALL)
    return {name: said(text) for _, name, text in found}
