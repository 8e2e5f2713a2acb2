"""The findings of the sweep: what was chosen, how fast it is, what is slow, and what would do better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from contracts.artifacts import ProfilePoint
from pages.rendering import View
from pages.stage import First


@dataclass(frozen=True)
class FoundSlow:
    """A finding of a rule."""

    rule: str
    title: str
    lines: First[str]
    """Evidence, what to do, and the gain."""


@dataclass(frozen=True)
class ProfileSummary(View):
    """The summary of a profile."""

    template: ClassVar[str] = "stage/profile.md.j2"
    chosen: str
    measured: str
    why: str
    is_off: bool
    """Whether there was no sweep: nothing of it is shown then."""
    findings: First[FoundSlow]
    recommendations: First[str]
    points: First[ProfilePoint]
    warnings: First[str]
    effort: str
