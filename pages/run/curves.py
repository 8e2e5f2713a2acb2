"""What happened to a training over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.rendering import View


@dataclass(frozen=True)
class MarkStrip(View):
    """Rows of marks over the time axis; shares are of the axis, places from the top in pixels."""

    template: ClassVar[str] = "run/marks.html.j2"
    label: str
    rows: tuple[tuple[str, float], ...]
    """Name, and middle."""
    height: int
    gaps: tuple[tuple[float, float], ...]
    """Left end and width of what is shaded."""
    marks: tuple[tuple[str, str, float, float, str], ...]
    """Kind, path, left, top, and what it is in words."""
    ticks: tuple[tuple[str, float], ...]
    counts: tuple[tuple[str, str, str], ...]
    """Of each kind: its name, path, and how many there were, in words."""
