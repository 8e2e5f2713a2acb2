"""A profile report in words, for the terminal, the table of a run, and its page."""

from __future__ import annotations

from collections.abc import Iterator

from contracts.artifacts import Finding, ProfilePoint, ProfileReport, Settings, TrainingEstimate
from contracts.config import RunConfig
from pages.markup import NOT_MEASURED
from pages.quantities import several

OFF = "off: training cuts and loads as without a profile"


def describe_choice(settings: Settings) -> str:
    """Return how the batch is cut and loaded."""
    workers = several(settings.num_workers, "worker")
    return f"slot size {settings.slot_size} x {settings.slots_per_rank} per rank, {workers}"


def describe_cut(report: ProfileReport) -> str:
    """Return the choice in words, or that nothing was measured."""
    if report.method == "off":
        return OFF
    choice = describe_choice(report.choice)
    return choice if report.choice.measured else f"the defaults, {NOT_MEASURED}: {choice}"


def describe_rate(point: ProfilePoint) -> str:
    """Return the rate of a point in words; without money, since the price may have changed since."""
    if point.samples_per_s is None:
        return f"{NOT_MEASURED}: {point.reason or point.outcome}"
    words = f"{point.samples_per_s:.1f} samples/s per rank"
    if point.samples_per_s_min is not None and point.samples_per_s_max is not None:
        words += f" ({point.samples_per_s_min:.1f} to {point.samples_per_s_max:.1f})"
    words += "".join(f", {value:,.0f} {unit}/s" for unit, value in point.units_per_s.items())
    share = point.data_time_fraction
    return words + (f", data time {NOT_MEASURED}" if share is None else f", data time {share:.0%} of a step")


def describe_finding(finding: Finding) -> str:
    """Return a finding in one line."""
    text = f"{finding.title} ({'; '.join(finding.evidence)}): {finding.change}"
    return text if finding.time_share is None else f"{text} (saves at most {finding.time_share:.0%} of a step)"


def describe_effort(report: ProfileReport) -> str:
    """Return how much was measured."""
    if report.method == "off":
        return "off: nothing was measured"
    time = "" if report.wall_s is None else f" in {report.wall_s:.0f} s"
    outcomes = [point.outcome for point in report.points]
    outcomes += [point.outcome for point in report.loader] + [point.outcome for point in report.compute]
    failed = sum(outcome != "measured" for outcome in outcomes)
    measured = sum(point.samples_per_s is not None for point in report.points)
    alone = f"{several(len(report.loader), 'measurement')} of the loader, {len(report.compute)} of steps alone"
    more = f"; {failed} failed" if failed else ""
    return f"{report.method}: {several(measured, 'configuration')} end to end, {alone}{time}{more}"


def describe(report: ProfileReport) -> Iterator[tuple[str, str]]:
    """Yield names and texts of a report, the most important first; a finding has several lines.

    Raises:
        DataError: The choice is marked as measured and is none of the points.
    """
    yield "choice", describe_cut(report)
    yield "measured", describe_rate(report.chosen_point())
    yield "reason", report.choice.reason
    for finding in report.findings:
        lines = [finding.title, *finding.evidence, f"change: {finding.change}"]
        if finding.time_share is not None:
            lines.append(f"saves at most {finding.time_share:.0%} of a step")
        yield f"finding {finding.rule}", "\n".join(lines)
    yield from (("warning", warning) for warning in report.warnings)
    yield "effort", describe_effort(report)


def describe_training(report: ProfileReport, config: RunConfig) -> str | None:
    """Return time and cost of the training by this configuration; None where its rate was not measured.

    Epochs and price may have changed since the report was made.
    """
    epoch_samples = report.estimate.epoch_samples if report.estimate else None
    rate = report.chosen_point().samples_per_s
    nodes = max(config.resources.num_nodes, report.measured_nodes)
    if epoch_samples is None or rate is None or nodes != report.measured_nodes:
        return None
    ranks = report.ranks * nodes
    estimate = TrainingEstimate.of(config, epoch_samples=epoch_samples, samples_per_s=rate * ranks)
    cost = ""
    if estimate.usd is not None:
        per_million = estimate.usd / estimate.samples * 1e6
        cost = f", {estimate.usd:.2f} USD ({per_million:.4f} USD per million samples)"
    return (
        f"{_duration(estimate.hours * 3600)}{cost} for {estimate.samples} samples by {ranks} ranks; steps only, "
        "without evaluation, checkpoints and start"
    )


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.2f} h"
