"""A section that has nothing to show, and says why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.rendering import View


@dataclass(frozen=True)
class AbsentSection(View):
    """A section that has nothing to show."""

    template: ClassVar[str] = "run/absent.html.j2"
    name: str
    """Where the navigation goes."""
    title: str
    reason: str
    calm: bool = False
    """Whether nothing is what one wants."""
