"""What is slow: the findings of the diagnosis, worst first, each with its evidence, what to do, and the gain."""

from __future__ import annotations

from pages.findings import finding_article, recommendation_list
from pages.markup import Html, element, section
from pages.profile.subject import Subject

MOST_FINDINGS = 30


def findings(subject: Subject) -> Html:
    """Return the findings, or that there are none."""
    found = subject.report.findings
    parts = [finding_article(number, each, subject.limits.reason) for number, each in enumerate(found[:MOST_FINDINGS])]
    if not found:
        parts = [element("p", _why_none(subject), class_="calm", data_absent="findings")]
    if len(found) > MOST_FINDINGS:
        parts.append(element("p", f"{len(found) - MOST_FINDINGS} more in the report.", class_="note"))
    wanted = recommendation_list(subject.report.recommendations[:MOST_FINDINGS], subject.limits.reason)
    return section("findings", "Findings", *parts, wanted)


def _why_none(subject: Subject) -> str:
    if subject.summaries:
        return "No rule of the diagnosis fired on the chosen configuration."
    return "No rule of the diagnosis fired. No trace was recorded: rules that need one had nothing to look at."
