"""No template can forget to escape, and what is compiled is kept by this user alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from jinja2 import UndefinedError

import pages
from inspection.metrics import StageSummary
from pages import rendering
from pages.document import Document
from pages.markdown import Markdown
from pages.markup import Html
from pages.rendering import render, write
from tests.inspection.test_summary import DOCUMENTS

TEMPLATES = Path(pages.__file__).parent / "templates"


@pytest.mark.parametrize("file", sorted(TEMPLATES.rglob("*.j2")), ids=lambda file: file.name)
def test_no_template_turns_escaping_off(file: Path) -> None:
    assert re.search(r"\|\s*safe\b|autoescape|Markup", file.read_text()) is None


@pytest.mark.parametrize("file", sorted(TEMPLATES.rglob("*.md.j2")), ids=lambda file: file.name)
def test_markdown_is_put_together_by_no_operator(file: Path) -> None:
    """Of parts that are put together only those that are printed are escaped for Markdown."""
    assert re.search(r"[{%][^}]*(~|\|\s*join)", re.sub(r"\{#.*?#\}", "", file.read_text(), flags=re.S)) is None


def test_compiled_templates_are_kept_and_are_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDLINE_CACHE_DIR", str(tmp_path))
    view = Document("Run 1", Html("<main>all</main>"))

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


def summary_of(stage: Any, warnings: list[str]) -> str:
    return write(StageSummary(stage, "", "", DOCUMENTS["shard"], {}, {}, warnings))


def test_what_is_no_markdown_is_text() -> None:
    hostile = "a|b\n# <b> [x](y) `c`\x00\u202e"
    escaped = "a&#124;b &#35; &#60;b&#62; &#91;x&#93;(y) &#96;c&#96;\ufffd\ufffd"
    page = summary_of(hostile, [hostile, Markdown("**kept**")])
    assert page.startswith(f"# {escaped}\n\n- warning: {escaped}\n- warning: **kept**\n")
    # Markup of HTML is none of Markdown.
    assert "&#60;p&#62;" in summary_of(Html("<p>"), [])
    with pytest.raises(TypeError, match="shows None"):
        summary_of(None, [])


def test_what_is_no_markup_is_text() -> None:
    page = render(Document("<b>\x00\u202e", Html("<p>kept</p>")))
    assert "<title>&lt;b&gt;\ufffd\ufffd</title>" in page and "<p>kept</p>" in page


def test_a_template_shows_nothing_that_its_view_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="shows None"):
        render(Document("title", None))  # type: ignore[arg-type]
    monkeypatch.delitem(Document.__dataclass_fields__, "title")
    with pytest.raises(UndefinedError):
        render(Document("title", Html("")))
