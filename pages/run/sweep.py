"""What a profiling run tried and chose, and what it found slow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.links import Link
from pages.markup import Html
from pages.rendering import View


@dataclass(frozen=True)
class Chosen:
    """The configuration that was chosen, and what was measured with it."""

    slot_size: int
    slots_per_rank: int
    num_workers: int
    flags: str
    samples_per_s: float | None
    units_per_s: tuple[tuple[str, float], ...]
    """Of what a task counts besides samples."""
    data_time_fraction: float | None


@dataclass(frozen=True)
class SweepSection(View):
    """The section on the profiling run."""

    template: ClassVar[str] = "run/sweep.html.j2"
    title: str
    reason: str
    chosen: Chosen
    certainty: str
    heat_map: Html
    method: str
    wall_s: float | None
    measured: int
    """Configurations, end to end."""
    predicted: int
    failed: int
    predictor_error: float | None
    failures: tuple[tuple[str, str, str], ...]
    """Configuration, outcome and reason."""
    failures_left_out: str
    findings: Html
    findings_left_out: str
    recommendations: Html
    page: Link | None
    """Of the whole profile."""
