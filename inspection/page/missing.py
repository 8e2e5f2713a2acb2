"""What could not be read, and why."""

from __future__ import annotations

from inspection.page.subject import Subject, left_out
from pages.markup import Html, element, section, table

TITLE = "Missing"


def missing(subject: Subject) -> Html:
    """Return what could not be read."""
    found = [(each.what, each.reason) for each in subject.view.missing]
    if not found:
        why = "All that this run has left so far could be read."
        return section("missing", TITLE, element("p", why, class_="calm", data_absent="missing"))
    shown = found[: subject.limits.rows * 2]
    rows = [[subject.name(what), subject.reason(reason)] for what, reason in shown]
    note = left_out(len(shown), len(found), "of them")
    return section(
        "missing", TITLE, table("What could not be read", ["What", "Why"], rows, id_="missing-list", words=2, note=note)
    )
