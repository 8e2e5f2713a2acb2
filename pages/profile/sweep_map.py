"""What was tried: slot size by loader processes as a heat map, and predicted against measured."""

from __future__ import annotations

from pages.heat_map import heat_map, is_failed
from pages.markup import Html, element, figure, section
from pages.profile.choice import measured_in
from pages.profile.parts import parts
from pages.profile.points import failed_points, point_table
from pages.profile.scatter import scatter
from pages.profile.subject import Subject
from pages.quantities import number, percent


def sweep_map(subject: Subject) -> Html:
    """Return the heat map, the scatter of predictions, and tables of all that was measured."""
    report = subject.report
    measured = [point for point in report.points if point.samples_per_s is not None]
    failed = [point for point in report.points if is_failed(point)]
    predicted = len(report.points) - len(measured) - len(failed)
    summary = element(
        "p",
        measured_in(subject),
        " Configurations end to end: ",
        figure("sweep.measured", len(measured), number),
        " measured, ",
        figure("sweep.predicted", predicted, number),
        " only predicted, ",
        figure("sweep.failed", len(failed), number),
        " failed. Rates are samples per second of one rank, the slowest.",
    )
    quality = element(
        "p",
        "Prediction error (median of |predicted ÷ measured - 1|): ",
        figure("sweep.predictor_error", report.predictor_error, percent),
        ". Overlap (share of the shorter of loading and computing that hides behind the longer): ",
        figure("sweep.overlap", report.overlap, percent),
        ".",
    )
    return section(
        "sweep",
        "Sweep",
        summary,
        element(
            "div",
            element(
                "div", element("h3", "Slot size by loader processes"), heat_map(subject.report, subject.limits.cells)
            ),
            element("div", element("h3", "Predicted against measured"), scatter(subject), quality),
            class_="beside",
        ),
        point_table(subject),
        failed_points(subject),
        parts(subject),
    )
