"""The findings of the sweep: what was chosen, how fast it is, what is slow, and what would do better."""

from __future__ import annotations

from contracts.artifacts import Finding, ProfilePoint, ProfileReport
from inspection.profile import (
    describe_cut,
    describe_effort,
    describe_rate,
    describe_reason,
    describe_recommendation,
    finding_lines,
)
from inspection.stages.told import Told, known
from pages.markdown import Markdown, cell
from pages.markup import NOT_MEASURED
from pages.quantities import count as show_count
from pages.rendering import write
from pages.stage import Block, Summary, first, listed

# The fastest points; the page has the map of all.
MAX_POINTS = 12
# Lines below one finding: its evidence.
MAX_EVIDENCE = 12


def count(report: ProfileReport) -> dict[str, float]:
    """Return the metrics of a profile report.

    Raises:
        DataError: The choice is said to be measured, and is none of its points.
    """
    if report.method == "off":
        return {}
    choice, point = report.choice, report.chosen_point()
    measured = {
        "profile_samples_per_s": point.samples_per_s,
        **{f"profile_{unit}_per_s": value for unit, value in point.units_per_s.items()},
        "profile_data_time_fraction": point.data_time_fraction,
        "profile_usd_per_million_samples": point.usd_per_million_samples,
        "profile_gpu_busy_fraction": report.indicators.gpu_busy_fraction,
        "profile_mfu": report.indicators.mfu,
        "profile_predictor_error": report.predictor_error,
        "profile_wall_s": report.wall_s,
        "profile_estimated_hours": report.estimate.hours if report.estimate else None,
        "profile_estimated_usd": report.estimate.usd if report.estimate else None,
    }
    numbers: dict[str, float | None] = {
        "profile_slot_size": choice.slot_size,
        "profile_slots_per_rank": choice.slots_per_rank,
        "profile_num_workers": choice.num_workers,
        "profile_prefetch_factor": choice.prefetch_factor,
        "profile_threads": choice.threads,
        "profile_points": sum(entry.samples_per_s is not None for entry in report.points),
        "profile_findings": len(report.findings),
        "profile_findings_bad": sum(finding.severity == "bad" for finding in report.findings),
        **measured,
    }
    return known(numbers)


def tell(report: ProfileReport) -> Told:
    """Return what a profile report says.

    Raises:
        DataError: The choice is said to be measured, and is none of its points.
    """
    return Told(count(report), lambda: write(_summary(report, report.chosen_point())))


def _summary(report: ProfileReport, point: ProfilePoint) -> Summary:
    said = (
        ("Chosen", f"{describe_cut(report)}."),
        ("Measured", f"{describe_rate(point)}."),
        ("Why", describe_reason(report.choice)),
    )
    chosen = Block(text=[Markdown(f"**{name}:** {cell(text)}") for name, text in said])
    if report.method == "off":
        return Summary([chosen])
    fastest = sorted(report.points, key=lambda point: -(point.samples_per_s or 0.0))
    more = f"The fastest {MAX_POINTS} of {show_count(len(fastest))}; the page has all."
    points = Block(
        "Configurations, end to end",
        head=("slot size", "workers", "computes in", "samples/s per rank", "waiting for data"),
        words=3,
        rows=first([_row(one) for one in fastest[:MAX_POINTS]]),
        notes=[more] if len(fastest) > MAX_POINTS else [],
    )
    found = [_found(finding) for finding in report.findings]
    findings = Block("Findings", [] if found else ["No rule has found anything slow."], rows=first(found))
    better = listed("What would do better", [describe_recommendation(entry) for entry in report.recommendations])
    warnings = listed("Warnings", report.warnings)
    return Summary([chosen, findings, *better, points, *warnings, Block("Effort", [describe_effort(report)])])


def _row(point: ProfilePoint) -> tuple[str, ...]:
    rate, waiting = point.samples_per_s, point.data_time_fraction
    return (
        str(point.slot_size),
        str(point.num_workers),
        point.flags.in_words(),
        point.outcome if rate is None else f"{rate:,.1f}",
        NOT_MEASURED if waiting is None else f"{waiting:.0%}",
    )


def _found(finding: Finding) -> tuple[str, ...]:
    """Return a finding as an item of a list, with its evidence and what to do below it."""
    title, *lines = finding_lines(finding)
    more = len(lines) - MAX_EVIDENCE
    rest = [f"and {more:,} more lines; the manifest has all"] if more > 0 else []
    return (Markdown(f"**{cell(finding.rule)}, {cell(title)}**"), *lines[:MAX_EVIDENCE], *rest)
