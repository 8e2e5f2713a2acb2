"""What could not be read of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.rendering import View


@dataclass(frozen=True)
class MissingSection(View):
    """What could not be read."""

    template: ClassVar[str] = "run/missing.html.j2"
    title: str
    rows: tuple[tuple[str, str], ...]
    """What, and why."""
    left_out: str = ""
