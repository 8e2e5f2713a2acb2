"""What the profiling run tried and chose, and what it found slow."""

from __future__ import annotations

from contracts.artifacts import ProfileReport
from inspection.page.links import make_link
from inspection.page.subject import Subject, left_out
from inspection.profile import OFF, describe_choice, describe_cut
from pages.findings import finding_list, recommendation_list
from pages.heat_map import heat_map, is_chosen, is_failed
from pages.markup import Html
from pages.rendering import render
from pages.run.absent import AbsentSection
from pages.run.sweep import Chosen, SweepSection

TITLE = "Sweep"


def sweep(subject: Subject) -> Html:
    """Return the section on the profiling run."""
    report, limits = subject.view.profile, subject.limits
    if report is None:
        return render(AbsentSection("sweep", TITLE, subject.why_absent("profile", "The sweep")))
    if report.method == "off":
        return render(AbsentSection("sweep", TITLE, f"Profile {OFF}.", calm=True))
    failed = [point for point in report.points if is_failed(point)]
    measured = sum(point.samples_per_s is not None for point in report.points)
    page = subject.view.profile_page
    return render(
        SweepSection(
            title=TITLE,
            reason=subject.reason(report.choice.reason),
            chosen=_chosen(report),
            certainty=f"{describe_cut(report)}. {report.choice.describe_certainty()}",
            heat_map=heat_map(report, limits.cells),
            method=report.method,
            wall_s=report.wall_s,
            measured=measured,
            predicted=len(report.points) - measured - len(failed),
            failed=len(failed),
            predictor_error=report.predictor_error,
            failures=tuple(
                (describe_choice(point), point.outcome, subject.name(point.reason)) for point in failed[: limits.rows]
            ),
            failures_left_out=left_out(min(limits.rows, len(failed)), len(failed), "configurations"),
            findings=finding_list(report.findings[: limits.rows], limits.reason),
            findings_left_out=left_out(limits.rows, len(report.findings), "findings"),
            recommendations=recommendation_list(report.recommendations[: limits.rows], limits.reason),
            page=None if page is None else make_link(subject.href, page, "The whole profile, with traces"),
        )
    )


def _chosen(report: ProfileReport) -> Chosen:
    choice = report.choice
    point = next((point for point in report.points if is_chosen(report, point)), None)
    return Chosen(
        choice.slot_size,
        choice.slots_per_rank,
        choice.num_workers,
        choice.flags.in_words(),
        point.samples_per_s if point else None,
        tuple(point.units_per_s.items()) if point else (),
        point.data_time_fraction if point else None,
    )
