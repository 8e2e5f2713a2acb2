"""The findings of the sweep: what was chosen, how fast it is, what is slow, and what would do better."""

from __future__ import annotations

from collections.abc import Iterator

from contracts.artifacts import Finding, ProfilePoint, ProfileReport
from inspection.profile import (
    describe_cut,
    describe_effort,
    describe_flags,
    describe_rate,
    describe_reason,
    describe_recommendation,
    finding_lines,
)
from inspection.stages.markdown import cell, first, section, table
from inspection.stages.told import Told, finite

# The fastest points; the page has the map of all.
MAX_POINTS = 12
# Lines below one finding: its evidence.
MAX_EVIDENCE = 12
_NOT_MEASURED = "not measured"


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
    return finite(numbers)


def tell(report: ProfileReport) -> Told:
    """Return what a profile report says.

    Raises:
        DataError: The choice is said to be measured, and is none of its points.
    """
    return Told(count(report), lambda: list(_lines(report, report.chosen_point())))


def _lines(report: ProfileReport, point: ProfilePoint) -> Iterator[str]:
    yield f"**Chosen:** {cell(describe_cut(report))}."
    yield ""
    yield f"**Measured:** {cell(describe_rate(point))}."
    yield ""
    yield f"**Why:** {cell(describe_reason(report.choice))}"
    if report.method == "off":
        return
    yield from section("Findings", list(_findings(report.findings)))
    shown, note = first(report.recommendations)
    better = [f"- {cell(describe_recommendation(entry))}" for entry in shown]
    yield from section("What would do better", [*better, *note])
    yield from section("Configurations, end to end", list(_points(report)))
    warnings, note = first(report.warnings)
    yield from section("Warnings", [*(f"- {cell(warning)}" for warning in warnings), *note])
    yield from section("Effort", [cell(describe_effort(report))])


def _findings(findings: list[Finding]) -> Iterator[str]:
    if not findings:
        yield "No rule has found anything slow."
    shown, note = first(findings)
    for finding in shown:
        title, *rest = finding_lines(finding)
        yield f"- **{cell(finding.rule)}, {cell(title)}**"
        yield from (f"    - {cell(line)}" for line in rest[:MAX_EVIDENCE])
        if len(rest) > MAX_EVIDENCE:
            yield f"    - and {len(rest) - MAX_EVIDENCE:,} more lines; the manifest has all"
    yield from note


def _points(report: ProfileReport) -> Iterator[str]:
    fastest = sorted(report.points, key=lambda point: -(point.samples_per_s or 0.0))
    rows = (
        (
            str(point.slot_size),
            str(point.num_workers),
            cell(describe_flags(point.flags)),
            _rate(point),
            _NOT_MEASURED if point.data_time_fraction is None else f"{point.data_time_fraction:.0%}",
        )
        for point in fastest[:MAX_POINTS]
    )
    yield from table(["slot size", "workers", "computes in", "samples/s a rank", "waiting for data"], rows, words=3)
    if len(fastest) > MAX_POINTS:
        yield ""
        yield f"The fastest {MAX_POINTS} of {len(fastest)}; the page has all."


def _rate(point: ProfilePoint) -> str:
    return cell(point.outcome) if point.samples_per_s is None else f"{point.samples_per_s:,.1f}"
