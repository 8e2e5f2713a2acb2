"""Escaping of pages and of Markdown; the size of a part's picture."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

import inspection.pages
from inspection.pages.parts import Chip, Figure, Link, Notice, Sheet, Table, Text, Tiles, picture, section
from inspection.pages.rendering import Html, cell, document, plain_page, render_markdown

TEMPLATES = Path(inspection.pages.__file__).parent / "templates"
HOSTILE = "a|b\n# <b> [x](y) `c`\x00\u202e"
ESCAPED = "a&#124;b &#35; &#60;b&#62; &#91;x&#93;(y) &#96;c&#96;\ufffd\ufffd"


@pytest.mark.parametrize("file", sorted(TEMPLATES.rglob("*.j2")), ids=lambda file: file.name)
def test_no_template_turns_escaping_off(file: Path) -> None:
    assert re.search(r"\|\s*safe\b|autoescape|Markup", file.read_text()) is None


def test_text_in_markdown_is_text() -> None:
    values = {"stage": HOSTILE, "warnings": [HOSTILE], "metrics": [(HOSTILE, 1.0)], "omitted": ""}
    summary = render_markdown("summary.md.j2", uri=HOSTILE, hashes=[(HOSTILE, "ab")], **values)
    assert (
        summary.startswith(f"# {ESCAPED}\n\n- warning: {ESCAPED}\n\n| metric") and "- " + ESCAPED + " `ab`" in summary
    )
    assert f"| {ESCAPED} | 1 |" in summary and f"- folder {ESCAPED}" in summary
    with pytest.raises(TypeError, match="shows None"):
        render_markdown("summary.md.j2", uri="", hashes=[], **(values | {"stage": None}))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b c", "a_b c"),
        ("_a_", "&#95;a&#95;"),
        ("a\n\tb", "a b"),
        ("x: http://a.b/c", "x: http&#58;//a.b/c"),
        ("a" * 400, "a" * 299 + "…"),
    ],
)
def test_text_of_a_cell(text: str, shown: str) -> None:
    assert cell(text) == shown


def test_text_of_every_part_is_text() -> None:
    evil, safe = '"><img src=x>&\x00', "&#34;&gt;&lt;img src=x&gt;&amp;\ufffd"
    cells = (
        Text(evil, evil, evil),
        Chip(evil, evil),
        Link(evil, evil, evil),
        Figure(evil, 1.0, shown=evil),
    )
    parts = [
        Text([evil, *cells]),
        Text(evil, "pre"),
        Tiles([(evil, evil, evil)]),
        Table(evil, evil, (evil,), [(evil, cells)], 1, evil, evil, [[evil]]),
        Notice("bad", evil, [Text(evil, "title")], evil),
        Sheet(evil, [(evil, [evil]), (picture(evil, (1, 1), alt=evil, tooltip=evil), [])], evil),
    ]
    page = document(
        evil,
        heading=evil,
        facts=[evil],
        state=evil,
        navigation=[(evil, evil)],
        footer=evil,
        sections=[section(evil, evil, *parts)],
    )
    assert "<img src=x>" not in page and page.count(safe) > 40
    assert "<p>kept</p>" in str(section("a", "b", Html("<p>kept</p>"))) and safe in plain_page("a", evil)
    with pytest.raises(TypeError, match="shows None"):
        document("a", heading=None, facts=[], state="", navigation=[], footer="", sections=[])


def test_a_picture_has_a_limited_height() -> None:
    jpeg = base64.b64encode(b"jpeg").decode()
    assert 'width="72" height="216"' in picture(jpeg, (1, 1000), alt="a", tooltip="b")
    assert "no picture" in picture("javascript:", (1, 1), alt="a", tooltip="b")
