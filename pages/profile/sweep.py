"""What was tried: slot size by loader processes as a heat map, predicted against measured, and tables of it all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from contracts.artifacts import ProfileReport
from pages.heat_map import heat_map, is_failed
from pages.markup import Html
from pages.profile.points import failed_table, part_tables, point_table
from pages.profile.scatter import scatter
from pages.profile.subject import Subject
from pages.profile.table import Table
from pages.rendering import View, render


@dataclass(frozen=True)
class SweepView(View):
    """The section on the sweep."""

    template: ClassVar[str] = "profile/sweep.html.j2"
    report: ProfileReport
    measured: int
    predicted: int
    """Only predicted."""
    failed: int
    heat_map: Html
    scatter: Html
    points: Table
    failed_points: Table
    parts: tuple[Table, ...]
    """What the sweep predicts from; none where none was measured, as in a full grid."""


def sweep(subject: Subject) -> SweepView:
    """Return the heat map, the scatter of predictions, and tables of all that was measured."""
    report = subject.report
    measured = sum(point.samples_per_s is not None for point in report.points)
    failed = sum(is_failed(point) for point in report.points)
    return SweepView(
        report,
        measured=measured,
        predicted=len(report.points) - measured - failed,
        failed=failed,
        heat_map=heat_map(report, subject.limits.cells),
        scatter=render(scatter(subject)),
        points=point_table(subject),
        failed_points=failed_table(subject),
        parts=part_tables(subject),
    )
