"""A stage's summary as a whole, and the page of one whose page cannot be made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.document import Document
from pages.markdown import Markdown
from pages.markup import Html
from pages.rendering import View, render
from pages.stage import First
from pages.style import STYLE


@dataclass(frozen=True)
class StageSummary(View):
    """What a stage says of its output, and the way back to it."""

    template: ClassVar[str] = "stage/summary.md.j2"
    stage: str
    is_reused: bool
    body: Markdown
    uri: str
    manifest_sha256: str
    fingerprint: str
    hashes: First[tuple[str, str]]
    """Of what it made, by name."""
    made_from: First[tuple[str, str]]
    metrics_left_out: int
    """That are in the file of the metrics alone."""


@dataclass(frozen=True)
class PlainPage(View):
    """A heading and a paragraph."""

    template: ClassVar[str] = "stage/plain.html.j2"
    title: str
    words: str


def plain_page(title: str, said: str) -> str:
    """Return an HTML document with a heading and a paragraph; it runs nothing and asks for nothing."""
    return render(Document(title, render(PlainPage(title, said)), style=Html(STYLE)))
