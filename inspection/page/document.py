"""Pages as a whole: one file each, that opens from a disk or a bucket, asks for nothing, and stays below a size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from inspection.page.account import account
from inspection.page.configuration import configuration, missing
from inspection.page.curves import curves
from inspection.page.data import data
from inspection.page.export import export
from inspection.page.lineage import lineage
from inspection.page.links import Href, beside, console, console_page, shown_uri
from inspection.page.overview import overview
from inspection.page.profile import profile
from inspection.page.results import results
from inspection.page.style import STYLE as OWN_STYLE
from inspection.page.subject import Limits, Subject
from inspection.run.door import HARM
from inspection.run.view import RunView
from pages.document import Document
from pages.markup import Html, shorten
from pages.parts import absent, section
from pages.quantities import instant
from pages.rendering import render
from pages.run.frame import Body, Header, Navigation
from pages.style import STYLE as SHARED_STYLE

MAX_REPORT_BYTES = 2_000_000
MAX_STAGE_BYTES = 1_000_000
MOST_HALVINGS = 6
STYLE = SHARED_STYLE + OWN_STYLE

_SECTIONS: dict[str, tuple[str, Callable[[Subject], Html]]] = {
    "overview": ("Overview", overview),
    "data": ("Data", data),
    "profile": ("Profile", profile),
    "curves": ("Curves", curves),
    "time": ("Time and money", account),
    "results": ("Results", results),
    "export": ("Export", export),
    "lineage": ("Lineage", lineage),
    "configuration": ("Configuration", configuration),
    "missing": ("Completeness", missing),
}
SECTIONS = tuple((name, title) for name, (title, _) in _SECTIONS.items())
"""Ids and titles, in their order."""
STAGE_TITLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "shard": ("Data card", ("data",)),
    "profile": ("Profile", ("profile",)),
    "train": ("Training", ("results", "curves", "time")),
    "export": ("Export", ("export",)),
}
"""Of each stage's own page: its title, and its sections."""


def render_report(view: RunView, *, href: Href | None = None) -> str:
    """Return the page of a run.

    Args:
        view: What is known of it.
        href: Where links to its files go; None: the page lies in LINE/runs/ID/, and they are relative to it.

    Returns:
        HTML, less than MAX_REPORT_BYTES in UTF-8. Of large runs parts are left out, which the page says.
    """

    def draw(view: RunView, limits: Limits) -> str:
        subject = Subject(view, limits, href or beside(view.line))
        sections = _sections(subject, list(_SECTIONS))
        body = Body(_header(view), sections, _footer(view), "overview", render(Navigation(SECTIONS)))
        return _page(f"{view.name} {view.id}", render(body))

    return _fit(draw, view, MAX_REPORT_BYTES)


def render_stage(view: RunView, stage: str) -> str:
    """Return the page of one stage, for services that show it beside the stage.

    Args:
        view: What is known of the run.
        stage: shard, profile, train or export.

    Returns:
        HTML, less than MAX_STAGE_BYTES in UTF-8.
    """
    title, names = STAGE_TITLES[stage]

    def draw(view: RunView, limits: Limits) -> str:
        # It lies where the service puts it: links to files are the console's, or none.
        subject = Subject(view, limits, console)
        found = view.stage(stage)
        made = (shorten(found.made, 300),) if found is not None and found.made else ()
        header = Header(
            f"{title} of {shorten(view.name, 80)}",
            (f"run {shorten(view.id, 120)}", *made),
            state=found.state if found is not None else "not started",
        )
        body = Body(render(header), _sections(subject, names), _footer(view))
        return _page(f"{title}: {view.name} {view.id}", render(body))

    return _fit(draw, view, MAX_STAGE_BYTES)


def _header(view: RunView) -> Html:
    """Return the page's head: which run it is, where, and how it stands."""
    facts = [{"local": "local run", "vertex": "run on Vertex AI Pipelines"}[view.place]]
    if view.started_at is not None:
        facts.append(f"started {instant(view.started_at)}")
    if view.last_word_at is not None and view.state in ("running", "silent"):
        facts.append(f"last event {instant(view.last_word_at)}")
    facts.append(f"page of {instant(view.seen_at)}")
    return render(
        Header(
            shorten(view.name, 80),
            tuple(facts),
            shorten(view.id, 120),
            view.state,
            shorten(shown_uri(view.line), 300),
            console_page(view.console) or "",
        )
    )


def _footer(view: RunView) -> str:
    about = "A value that could not be measured or read says so, and is never 0. Money is an estimate."
    return f"Run {shorten(view.id, 120)}, read {instant(view.seen_at)}. {about}"


def _sections(subject: Subject, names: Sequence[str]) -> tuple[Html, ...]:
    return tuple(_section(subject, name) for name in names)


def _section(subject: Subject, name: str) -> Html:
    """Return a section; one that cannot be drawn says so with the reason, and the others are drawn.

    What a document holds has passed its schema, which bounds no number: of a count of 400 digits nothing can be made.
    """
    try:
        return _SECTIONS[name][1](subject)
    except HARM as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        words = f"This part cannot be shown: what the run holds cannot be drawn ({shorten(why, 300)})."
        return section(name, _SECTIONS[name][0], absent(name, words))


def _page(title: str, body: Html) -> str:
    return render(Document(shorten(title, 200), body, style=Html(STYLE)))


def _fit(draw: Callable[[RunView, Limits], str], view: RunView, most: int) -> str:
    """Render; while the page is too large, cut very long texts first, then halve the limits, then cut all texts."""
    limits = Limits()
    page = draw(view, limits)
    if len(page.encode()) < most:
        return page
    view = _cut(view, limits.reason)
    for _ in range(MOST_HALVINGS):
        page = draw(view, limits)
        if len(page.encode()) < most:
            return page
        limits = limits.halved()
    return draw(_cut(view, 200), limits)


def _cut(view: RunView, length: int) -> RunView:
    """Return a run with every text cut: names of documents from elsewhere may have any length."""

    def cut(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {shorten(str(key), 80): cut(each, str(key)) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [cut(each) for each in value]
        # Half a picture is none; there are few, and all are small.
        return shorten(value, length) if isinstance(value, str) and name != "jpeg" else value

    return RunView.model_validate(cut(view.model_dump()))
