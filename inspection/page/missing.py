"""What could not be read, and why."""

from __future__ import annotations

from inspection.page.subject import Subject, left_out
from pages.markup import Html
from pages.rendering import render
from pages.run.absent import AbsentSection
from pages.run.missing import MissingSection

TITLE = "Completeness"


def missing(subject: Subject) -> Html:
    """Return what could not be read."""
    found = subject.view.missing
    if not found:
        why = "All that this run has left so far could be read."
        return render(AbsentSection("missing", TITLE, why, calm=True))
    shown = found[: subject.limits.rows * 2]
    rows = tuple((subject.name(each.what), subject.reason(each.reason)) for each in shown)
    return render(MissingSection(TITLE, rows, left_out(len(shown), len(found), "of them")))
