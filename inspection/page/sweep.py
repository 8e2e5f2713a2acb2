"""What the profiling run tried and chose, and what it found slow."""

from __future__ import annotations

from contracts.artifacts import ProfileReport
from inspection.page.links import make_link
from inspection.page.subject import Subject, left_out
from inspection.profile import OFF, describe_choice, describe_cut
from pages.findings import finding_list, recommendation_list
from pages.heat_map import heat_map, is_chosen, is_failed
from pages.markup import Html
from pages.parts import Cell, Figure, Fold, Listing, Text, Tile, Tiles, Title, Words, absent, note, section
from pages.quantities import seconds, several

TITLE = "Sweep"


def sweep(subject: Subject) -> Html:
    """Return the section on the profiling run."""
    report, limits = subject.view.profile, subject.limits
    if report is None:
        return section("sweep", TITLE, absent("sweep", subject.why_absent("profile", "The sweep")))
    if report.method == "off":
        return section("sweep", TITLE, absent("sweep", f"Profile {OFF}.", calm=True))
    failed = [point for point in report.points if is_failed(point)]
    lines: list[list[Cell]] = [
        [f"{describe_choice(one)}: ", Words(one.outcome, style="strong"), f" {subject.name(one.reason)}"]
        for one in failed[: limits.rows]
    ]
    more = note(left_out(len(lines), len(failed), "configurations"))
    failures = Fold(
        f"{several(len(failed), 'configuration')} failed", [Listing(lines), *([more] if more else [])], "sweep-failed"
    )
    page = subject.view.profile_page
    return section(
        "sweep",
        TITLE,
        Text([Words("Why: ", style="strong"), subject.reason(report.choice.reason)], "reason", "sweep.why"),
        _chosen(report),
        Text(f"{describe_cut(report)}. {report.choice.describe_certainty()}", "note"),
        Title("Slot size by loader processes"),
        heat_map(report, limits.cells),
        _method(report, len(failed)),
        failures if failed else None,
        Title("Findings"),
        *finding_list(report.findings[: limits.rows], limits.reason),
        note(left_out(limits.rows, len(report.findings), "findings")),
        *recommendation_list(report.recommendations[: limits.rows], limits.reason),
        None if page is None else Text([make_link(subject.href, page, "The whole profile, with traces")]),
    )


def _method(report: ProfileReport, failed: int) -> Text:
    measured = sum(point.samples_per_s is not None for point in report.points)
    took = "" if report.wall_s is None else f" in {seconds(report.wall_s)}"
    return Text(
        [
            f"Method {report.method}{took}: ",
            Figure("sweep.measured", measured, "count"),
            " configurations measured end to end, ",
            Figure("sweep.predicted", len(report.points) - measured - failed, "count"),
            " only predicted, ",
            Figure("sweep.failed", failed, "count"),
            " failed. Prediction error (median): ",
            Figure("sweep.predictor_error", report.predictor_error, "percent"),
            ".",
        ]
    )


def _chosen(report: ProfileReport) -> Tiles:
    """Return the configuration that was chosen, and what was measured with it."""
    choice = report.choice
    point = next((point for point in report.points if is_chosen(report, point)), None)

    def tile(title: str, name: str, value: float | None, unit: str, about: str) -> Tile:
        return Tile(title, Figure(f"sweep.{name}", value, unit), about)

    return Tiles(
        [
            tile("Slot size", "slot_size", choice.slot_size, "count", "samples per forward pass"),
            tile("Slots per rank", "slots_per_rank", choice.slots_per_rank, "count", "in an optimizer step"),
            tile("Loader processes", "num_workers", choice.num_workers, "count", "per rank"),
            Tile("Computing", Words(choice.flags.in_words(), style="words"), "precision and flags"),
            tile(
                "Measured",
                "samples_per_s",
                point.samples_per_s if point else None,
                "number",
                "samples/s, slowest rank",
            ),
            *(
                tile(unit.capitalize(), f"{unit}_per_s", value, "number", f"{unit}/s, slowest rank")
                for unit, value in (point.units_per_s.items() if point else ())
            ),
            tile(
                "Data time", "data_time_fraction", point.data_time_fraction if point else None, "percent", "of a step"
            ),
        ]
    )
