"""What the profiling run tried and chose, and what it found slow."""

from __future__ import annotations

from contracts.artifacts import ProfileReport
from inspection.page.links import link
from inspection.page.subject import Subject, left_out, tile
from inspection.profile import OFF, describe_choice, describe_cut, describe_flags
from pages.findings import finding_list, recommendation_list
from pages.heat_map import heat_map, is_chosen, is_failed
from pages.markup import NOT_MEASURED, Html, element, figure, join, section
from pages.quantities import count, number, percent, seconds

TITLE = "Sweep"


def sweep(subject: Subject) -> Html:
    """Return the section on the profiling run."""
    report = subject.view.profile
    if report is None:
        return section("sweep", TITLE, subject.absent("sweep", "profile", "The sweep"))
    if report.method == "off":
        return section("sweep", TITLE, element("p", f"Profile {OFF}.", class_="note", data_text="sweep.off"))
    parts = [
        element(
            "p",
            element("strong", "Why: "),
            subject.reason(report.choice.reason),
            class_="reason",
            data_text="sweep.why",
        ),
        _choice(report),
        element("p", describe_cut(report), ". ", report.choice.describe_certainty(), class_="note"),
        element("h3", "Slot size by loader processes"),
        heat_map(report, subject.limits.cells),
        _tried(report),
        _failed(subject, report),
        element("h3", "Findings"),
        finding_list(report.findings[: subject.limits.rows], subject.limits.reason),
        element("p", left_out(subject.limits.rows, len(report.findings), "findings"), class_="note"),
        recommendation_list(report.recommendations[: subject.limits.rows], subject.limits.reason),
    ]
    if subject.view.profile_page is not None:
        parts.append(element("p", link(subject.href, subject.view.profile_page, "The whole profile, with traces")))
    return section("sweep", TITLE, *parts)


def _choice(report: ProfileReport) -> Html:
    chosen = report.choice
    point = next((point for point in report.points if is_chosen(report, point)), None)
    tiles = [
        tile("Slot size", figure("sweep.slot_size", chosen.slot_size, count), "samples a forward pass"),
        tile("Slots a rank", figure("sweep.slots_per_rank", chosen.slots_per_rank, count), "in an optimizer step"),
        tile("Loader processes", figure("sweep.num_workers", chosen.num_workers, count), "of a rank"),
        tile("Computing", element("span", describe_flags(chosen.flags), class_="words"), "precision and flags"),
        tile(
            "Measured",
            figure("sweep.samples_per_s", point.samples_per_s if point else None, number),
            "samples/s, slowest rank",
        ),
        *(
            tile(unit.capitalize(), figure(f"sweep.{unit}_per_s", value, number), f"{unit}/s, slowest rank")
            for unit, value in (point.units_per_s.items() if point else ())
        ),
        tile(
            "Data time",
            figure("sweep.data_time_fraction", point.data_time_fraction if point else None, percent),
            "of a step",
        ),
    ]
    return element("div", *tiles, class_="tiles")


def _tried(report: ProfileReport) -> Html:
    measured = sum(point.samples_per_s is not None for point in report.points)
    failed = sum(is_failed(point) for point in report.points)
    took = f" in {seconds(report.wall_s)}" if report.wall_s is not None else ""
    return element(
        "p",
        f"Method {report.method}{took}: ",
        figure("sweep.measured", measured, count),
        " configurations measured end to end, ",
        figure("sweep.predicted", len(report.points) - measured - failed, count),
        " only predicted, ",
        figure("sweep.failed", failed, count),
        " failed. Prediction error (median): ",
        figure("sweep.predictor_error", report.predictor_error, percent, NOT_MEASURED),
        ".",
    )


def _failed(subject: Subject, report: ProfileReport) -> Html:
    failed = [point for point in report.points if is_failed(point)]
    if not failed:
        return Html("")
    shown = failed[: subject.limits.rows]
    items = [
        element("li", f"{describe_choice(point)}: ", element("strong", point.outcome), f" {subject.name(point.reason)}")
        for point in shown
    ]
    more = left_out(len(shown), len(failed), "configurations")
    return element(
        "details",
        element("summary", f"{len(failed):,} configurations failed"),
        element("ul", *items),
        join([element("p", more, class_="note")] if more else []),
        id="sweep-failed",
    )
