"""What is slow: the findings of the diagnosis, worst first, each with its evidence, what to do, and the gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.findings import NONE_FIRED, finding_list, recommendation_list
from pages.markup import Html
from pages.profile.subject import Subject
from pages.rendering import View

MOST_FINDINGS = 30


@dataclass(frozen=True)
class FindingsView(View):
    """The section on findings."""

    template: ClassVar[str] = "profile/findings_section.html.j2"
    findings: Html
    recommendations: Html
    more: int = 0
    """Findings that are left out."""


def findings(subject: Subject) -> FindingsView:
    """Return the findings, or that there are none."""
    report, limit = subject.report, subject.limits.reason
    calm = f"{NONE_FIRED} on the chosen configuration."
    if not subject.summaries and not subject.unread:
        calm = f"{NONE_FIRED}. No trace was recorded: rules that need one had nothing to look at."
    return FindingsView(
        finding_list(report.findings[:MOST_FINDINGS], limit, calm),
        recommendation_list(report.recommendations[:MOST_FINDINGS], limit),
        more=max(0, len(report.findings) - MOST_FINDINGS),
    )
