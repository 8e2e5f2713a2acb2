"""What was tried: slot size by loader processes as a heat map, and tables of it all."""

from __future__ import annotations

from pages.heat_map import heat_map, is_failed
from pages.markup import Html
from pages.parts import Figure, Fold, Text, Title, section
from pages.profile.points import failed_table, part_tables, point_table
from pages.profile.subject import Subject
from pages.quantities import seconds

_WAYS = {
    "sweep": "parts measured, whole predicted, the best measured end to end",
    "grid": "every combination measured",
    "off": "nothing measured",
}


def sweep(subject: Subject) -> Html:
    """Return the heat map with predicted and measured rates, and tables of all that was measured."""
    report = subject.report
    measured = sum(point.samples_per_s is not None for point in report.points)
    failed = sum(is_failed(point) for point in report.points)
    predicted = len(report.points) - measured - failed
    took = "" if report.wall_s is None else f" in {seconds(report.wall_s)}"
    # What the sweep predicts from; none where none was measured, as in a full grid.
    parts, failures = part_tables(subject), failed_table(subject)
    return section(
        "sweep",
        "Sweep",
        Text(
            [
                f"Method {report.method} ({_WAYS[report.method]}){took}. Configurations end to end: ",
                Figure("sweep.measured", measured, "number"),
                " measured, ",
                Figure("sweep.predicted", predicted, "number"),
                " only predicted, ",
                Figure("sweep.failed", failed, "number"),
                " failed. Rates are samples per second of one rank, the slowest.",
            ]
        ),
        Title("Slot size by loader processes"),
        heat_map(report, subject.limits.cells),
        Text(
            [
                "Prediction error (median of |predicted ÷ measured - 1|): ",
                Figure("sweep.predictor_error", report.predictor_error, "percent"),
                ". Overlap (share of the shorter of loading and computing that hides behind the longer): ",
                Figure("sweep.overlap", report.overlap, "percent"),
                ".",
            ]
        ),
        Fold(f"All {measured + predicted} configurations with a rate", [point_table(subject)]),
        Title("Failed") if failures.rows else None,
        failures if failures.rows else None,
        Fold("The parts: loader alone, steps alone", parts) if parts else None,
    )
