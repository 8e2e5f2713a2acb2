"""The findings of a profiling run, each with its evidence, what to do, and the gain; and what would do better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from contracts.artifacts import Finding, Recommendation
from pages.markup import Html
from pages.rendering import View, render

NONE_FIRED = "No rule of the diagnosis fired"


@dataclass(frozen=True)
class FindingList(View):
    """An article per finding, in their order."""

    template: ClassVar[str] = "profile/findings.html.j2"
    findings: Sequence[Finding]
    limit: int
    """Characters of a message at most."""
    calm: str
    """Text where there are none."""


@dataclass(frozen=True)
class RecommendationList(View):
    """Settings of the configuration that would be faster otherwise; nothing where there are none."""

    template: ClassVar[str] = "profile/recommendations.html.j2"
    wanted: Sequence[Recommendation]
    limit: int
    """Characters of a name or message at most."""


def finding_list(findings: Sequence[Finding], limit: int, calm: str = f"{NONE_FIRED}.") -> Html:
    """Return an article per finding.

    Args:
        findings: What rules found.
        limit: Characters of a message at most.
        calm: Text where there are none.
    """
    return render(FindingList(findings, limit, calm))


def recommendation_list(wanted: Sequence[Recommendation], limit: int) -> Html:
    """Return what is set in the configuration and would be faster otherwise; nothing where there is none.

    Args:
        wanted: Settings, each with what was measured.
        limit: Characters of a name or message at most.
    """
    return render(RecommendationList(wanted, limit))
