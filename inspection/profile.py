"""A profile report in words: what was chosen, how fast it is, what is slow, and what would do better.

For the terminal, the report of a stage and that of a run; the page with the figures is made by profile_page.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from contracts.artifacts import (
    Finding,
    ProfileChoice,
    ProfilePoint,
    ProfileReport,
    Recommendation,
    Settings,
    TrainingEstimate,
)
from contracts.config import RunConfig
from pages.markup import NOT_MEASURED

OFF = "off: training cuts, loads and computes as without a profile"


def describe_choice(settings: Settings) -> str:
    """Say how the batch is cut and loaded, and what steps compute in."""
    ahead = f", {settings.prefetch_factor} slots ahead each" if settings.num_workers else ""
    return (
        f"slot size {settings.slot_size} x {settings.slots_per_rank} per rank, {settings.num_workers} workers{ahead}, "
        f"{settings.threads} threads, {settings.flags.in_words()}"
    )


def describe_cut(report: ProfileReport) -> str:
    """Say what was chosen, or that nothing was measured and training has its defaults."""
    if report.method == "off":
        return OFF
    said = describe_choice(report.choice)
    return said if report.choice.measured else f"the defaults, {NOT_MEASURED}: {said}"


def describe_reason(choice: ProfileChoice) -> str:
    """Say why the choice is what it is."""
    if choice.clear or not choice.measured:
        return choice.reason
    if choice.equals:
        return f"{choice.reason}; a choice between equals: {choice.equals} more not told apart by 3 %"
    return f"{choice.reason}; not clear of the next best"


def describe_rate(point: ProfilePoint) -> str:
    """Say how fast a point is; what was not measured is said to be so.

    Money is none of it: the price may have changed since the report was made.
    """
    if point.samples_per_s is None:
        return f"{NOT_MEASURED}: {point.reason or point.outcome}"
    words = f"{point.samples_per_s:.1f} samples/s per rank"
    if point.samples_per_s_min is not None and point.samples_per_s_max is not None:
        words += f" ({point.samples_per_s_min:.1f} to {point.samples_per_s_max:.1f})"
    words += "".join(f", {value:,.0f} {unit}/s" for unit, value in point.units_per_s.items())
    share = point.data_time_fraction
    words += f", data time {NOT_MEASURED}" if share is None else f", {share:.0%} of a step waiting for data"
    return words


def describe_finding(finding: Finding) -> str:
    """Say in one line what a rule found, on what, and what to do."""
    text = f"{finding.severity}: {finding.title} ({'; '.join(finding.evidence)}): {finding.change}"
    return f"{text} (predicted: {_gain(finding)})" if finding.gain is not None else text


def finding_lines(finding: Finding) -> Iterator[str]:
    """Yield the same, a line for each of it."""
    yield f"{finding.severity}: {finding.title}"
    yield from (f"seen: {evidence}" for evidence in finding.evidence)
    if finding.why:
        yield f"why: {finding.why}"
    yield f"to do: {finding.change}"
    if finding.command:
        yield f"try: {finding.command}"
    if finding.gain is not None:
        yield f"predicted: {_gain(finding)}"


def _gain(finding: Finding) -> str:
    return f"x {finding.gain:.2f}" + (f", {finding.gain_from}" if finding.gain_from else "")


def describe_recommendation(recommendation: Recommendation) -> str:
    """Say what another setting would bring."""
    return f"{recommendation.setting}: x {recommendation.gain:.2f} ({recommendation.evidence})"


def describe_effort(report: ProfileReport) -> str:
    """Say how much was measured."""
    if report.method == "off":
        return "off: nothing was measured"
    time = "" if report.wall_s is None else f" in {report.wall_s:.0f} s"
    outcomes = [point.outcome for point in report.points]
    outcomes += [point.outcome for point in report.loader] + [point.outcome for point in report.compute]
    failed = sum(outcome not in ("measured", "predicted") for outcome in outcomes)
    whole = sum(point.samples_per_s is not None for point in report.points)
    return (
        f"{report.method}: {whole} configurations end to end, {len(report.loader)} measurements of the loader and "
        f"{len(report.compute)} of steps alone{time}" + (f"; {failed} could not be made" if failed else "")
    )


def describe(report: ProfileReport) -> Iterator[tuple[str, str]]:
    """Yield names and texts, of a line or more, of everything there is to say, in the order of importance.

    Raises:
        DataError: The choice is said to be measured, and is none of the report's points.
    """
    yield "choice", describe_cut(report)
    yield "measured", describe_rate(report.chosen_point())
    yield "reason", describe_reason(report.choice)
    yield from ((f"finding {finding.rule}", "\n".join(finding_lines(finding))) for finding in report.findings)
    yield from describe_findings((), report.recommendations)
    for warning in report.warnings:
        yield "warning", warning
    yield "effort", describe_effort(report)


def describe_whole(report: ProfileReport, config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield what `describe` yields, and what training by a configuration takes.

    Raises:
        DataError: As `describe`.
    """
    yield from describe(report)
    if (training := describe_training(report, config)) is not None:
        yield "training", training


def describe_training(report: ProfileReport, config: RunConfig) -> str | None:
    """Say what training by this configuration takes; None where that was not measured.

    Epochs and price may have changed since the report was made: they are in no fingerprint of a profile.
    """
    epoch_samples = report.estimate.epoch_samples if report.estimate else None
    rate = report.chosen_point().samples_per_s
    nodes = max(config.resources.num_nodes, report.measured_nodes)
    if epoch_samples is None or rate is None or nodes != report.measured_nodes:
        return None
    ranks = report.ranks * nodes
    estimate = TrainingEstimate.of(config, epoch_samples=epoch_samples, samples_per_s=rate * ranks)
    cost = each = ""
    if estimate.usd is not None:
        cost = f", {estimate.usd:.2f} USD"
        each = f", {estimate.usd / estimate.samples * 1e6:.4f} USD per million samples"
    return (
        f"{_duration(estimate.hours * 3600)}{cost} for {estimate.samples} samples by {ranks} ranks{each}, steps only: "
        "no evaluation, checkpoint or start is in it"
    )


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.2f} h"


def describe_findings(
    findings: Iterable[Finding], recommendations: Iterable[Recommendation]
) -> Iterator[tuple[str, str]]:
    """Yield names and texts of what is slow, in the order given, and of what would do better than what is set."""
    for finding in findings:
        yield f"finding {finding.rule}", describe_finding(finding)
    for recommendation in recommendations:
        yield "recommended", describe_recommendation(recommendation)
