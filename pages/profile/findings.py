"""What is slow: the findings of the diagnosis, worst first, each with its evidence, what to do, and the gain."""

from __future__ import annotations

from pages.findings import NONE_FIRED, finding_list, recommendation_list
from pages.markup import Html
from pages.parts import note, section
from pages.profile.subject import Subject

MOST_FINDINGS = 30


def findings(subject: Subject) -> Html:
    """Return the findings, or that there are none."""
    report, limit = subject.report, subject.limits.reason
    calm = f"{NONE_FIRED} on the chosen configuration."
    if not subject.summaries and not subject.unread:
        calm = f"{NONE_FIRED}. No trace was recorded: rules that need one had nothing to look at."
    more = len(report.findings) - MOST_FINDINGS
    return section(
        "findings",
        "Findings",
        *finding_list(report.findings[:MOST_FINDINGS], limit, calm),
        note(f"{more} more in the report." if more > 0 else ""),
        *recommendation_list(report.recommendations[:MOST_FINDINGS], limit),
    )
