"""Every template is rendered with a view that has all and one that has nothing, and none can forget to escape."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import UndefinedError

import pages
from pages import rendering
from pages.document import Document
from pages.markdown import Markdown
from pages.markup import Html
from pages.rendering import View, render, write
from pages.stage import Block, Summary, first
from pages.stage.page import StageSummary
from tests.pages.views import EXAMPLES

TEMPLATES = Path(pages.__file__).parent / "templates"
# Imported by templates, rendered by none alone.
_SHARED = re.compile(r"(^|/)macros\.[a-z.0-9]+$")


def test_every_template_has_one_view_and_both_examples() -> None:
    names = {file.relative_to(TEMPLATES).as_posix() for file in TEMPLATES.rglob("*.j2")}
    views = list(_views(View))
    assert sorted(view.template for view in views) == sorted(name for name in names if not _SHARED.search(name))
    assert set(EXAMPLES) == set(views)


@pytest.mark.parametrize("view", EXAMPLES, ids=lambda view: view.template)
def test_a_template_is_rendered_full_and_empty(view: type[View]) -> None:
    full, empty = EXAMPLES[view]
    assert isinstance(full, view) and isinstance(empty, view) and full != empty
    show = write if view.template.endswith(".md.j2") else render
    assert show(full) != show(empty)


@pytest.mark.parametrize("file", sorted(TEMPLATES.rglob("*.j2")), ids=lambda file: file.name)
def test_no_template_turns_escaping_off(file: Path) -> None:
    assert re.search(r"\|\s*safe\b|autoescape|Markup", file.read_text()) is None


@pytest.mark.parametrize("file", sorted(TEMPLATES.rglob("*.md.j2")), ids=lambda file: file.name)
def test_markdown_is_put_together_by_no_operator(file: Path) -> None:
    """Of parts that are put together only those that are printed are escaped for Markdown."""
    assert re.search(r"[{%][^}]*(~|\|\s*join)", re.sub(r"\{#.*?#\}", "", file.read_text(), flags=re.S)) is None


def test_compiled_templates_are_kept_and_are_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDLINE_CACHE_DIR", str(tmp_path))
    view = next(full for full, _ in EXAMPLES.values() if full.template.endswith(".html.j2"))

    def rendered() -> str:
        rendering._environment.cache_clear()
        return render(view)

    try:
        first = rendered()
        kept = [path for path in tmp_path.rglob("*.cache") if path.is_file()]
        assert kept
        for path in kept:
            path.write_bytes(path.read_bytes()[:-20])
        assert rendered() == first, "a file that is cut short is compiled again"
        (folder,) = (tmp_path / "templates").iterdir()
        assert folder.stat().st_mode & 0o077 == 0
        folder.chmod(0o777)
        assert rendering._compiled() is None and rendered() == first
        monkeypatch.setenv("SHARDLINE_CACHE_DIR", "/dev/null")
        assert rendering._compiled() is None and rendered() == first
    finally:
        monkeypatch.undo()
        rendering._environment.cache_clear()


def test_what_is_no_markdown_is_text() -> None:
    hostile = "a|b\n# <b> [x](y) `c`\x00\u202e"
    page = write(StageSummary(hostile, True, Markdown("**kept**"), "", "", "", first([(hostile, "z")]), first([]), 0))
    escaped = "a&#124;b &#35; &#60;b&#62; &#91;x&#93;(y) &#96;c&#96;\ufffd\ufffd"
    assert page.startswith(f"# {escaped} (reused)\n\n**kept**\n") and f"- {escaped} `z`" in page
    # Markup of HTML is none of Markdown.
    assert "&#60;p&#62;" in write(Summary([Block(text=[Html("<p>")])]))
    with pytest.raises(TypeError, match="shows None"):
        write(Summary([Block(text=[None])]))  # type: ignore[list-item]


def test_what_is_no_markup_is_text() -> None:
    page = render(Document("<b>\x00\u202e", Html("<p>kept</p>")))
    assert "<title>&lt;b&gt;\ufffd\ufffd</title>" in page and "<p>kept</p>" in page


def test_a_template_shows_nothing_that_its_view_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="shows None"):
        render(Document("title", None))  # type: ignore[arg-type]
    monkeypatch.delitem(Document.__dataclass_fields__, "title")
    with pytest.raises(UndefinedError):
        render(Document("title", Html("")))


def _views(base: type[View]) -> Iterator[type[View]]:
    for each in base.__subclasses__():
        yield each
        yield from _views(each)
