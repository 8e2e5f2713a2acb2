"""The page of a run, and the page of a log."""

from __future__ import annotations

from inspection.page import navigation
from inspection.run.view import AttemptView, RunView
from inspection.ui.addresses import NotFoundError
from inspection.ui.files import Piece, plain_text
from inspection.ui.live import News, live_content
from inspection.ui.shell import document
from inspection.ui.store import Shown
from pages.markup import Html, shorten
from pages.rendering import render
from pages.ui.shell import LogPage

SCRIPTS = ("ask.js", "clocks.js", "place.js", "uPlot.iife.min.js", "draw.js", "charts.js", "live.js")


def run_page(shown: Shown) -> str:
    """Return the page around a run's sections."""
    key = shown.key
    return document(
        f"{key.line} {key.id}",
        live_content(
            news_of(shown),
            Html(shown.parts["header"] + navigation()),
            live=f"/api/run/{key.path}",
            curves=f"/api/curves/{key.path}",
        ),
        scripts=SCRIPTS,
    )


def news_of(shown: Shown) -> News:
    """Return what the page shows of a run."""
    return News(shown.parts, shown.curves_digest, shown.ended, shown.clocks())


def find_attempt(view: RunView, stage: str, attempt: str) -> AttemptView:
    """Return an attempt that has a log; NotFoundError where there is none."""
    found = view.stage(stage)
    for candidate in found.attempts if found is not None else []:
        if candidate.name == attempt and candidate.log is not None:
            return candidate
    raise NotFoundError(f"stage {stage} of this run has no attempt {attempt} with a log")


def log_page(shown: Shown, stage: str, attempt: AttemptView, piece: Piece) -> str:
    """Return a page with part of a log, and the ways to the rest."""
    page = LogPage(
        stage,
        f"/run/{shown.key.path}",
        attempt.name,
        shown.key.log_address(stage, attempt.name),
        piece.start,
        piece.end,
        piece.size,
        plain_text(piece),
    )
    return document(f"Log of {shorten(stage, 80)}", render(page))
