"""Tables of configurations that were measured end to end, and of those that could not be."""

from __future__ import annotations

from contracts.artifacts import ProfilePoint
from pages.heat_map import is_failed
from pages.markup import Html, element, figure, join, shorten, table
from pages.profile.subject import Subject, name_flags, workers
from pages.quantities import count, number, percent, several

NO_RATE = "\u2013"


def point_table(subject: Subject) -> Html:
    """Return the configurations with a rate or a prediction, the fastest first."""
    points = [point for point in subject.report.points if not is_failed(point)]
    points.sort(key=lambda p: (-(p.samples_per_s or 0.0), -(p.predicted_samples_per_s or 0.0)))
    limit = subject.limits.points
    head = [
        "Configuration",
        "Predicted (samples/s)",
        "Measured (samples/s)",
        "Lowest to highest window",
        "Windows",
        "Predicted ÷ measured",
        "Data time (% of step)",
        "USD a million samples",
    ]
    shown = table(
        "Configurations end to end, fastest first; rates of one rank",
        head,
        [_row(subject, position, point) for position, point in enumerate(points[:limit])],
        id_="points",
        note=_left_out(len(points) - limit),
    )
    return element("details", element("summary", f"All {len(points)} configurations with a rate"), shown)


def failed_points(subject: Subject) -> Html:
    """Return the configurations that did not work, with their reasons; nothing where all did."""
    failed = [point for point in subject.report.points if is_failed(point)]
    if not failed:
        return Html("")
    limit = subject.limits.points
    rows = [[settings(point), point.outcome, shorten(point.reason, subject.limits.reason)] for point in failed[:limit]]
    note = _left_out(len(failed) - limit)
    caption = "Configurations that could not be measured"
    return join(
        [
            element("h3", "Failed"),
            table(caption, ["Configuration", "Outcome", "Reason"], rows, id_="failed-points", words=3, note=note),
        ]
    )


def settings(point: ProfilePoint) -> str:
    """Return a configuration in words."""
    return (
        f"slot size {point.slot_size} \u00d7 {point.slots_per_rank}, "
        f"{workers(point.num_workers, point.prefetch_factor)}, "
        f"{several(point.threads, 'thread')}, {name_flags(point.flags)}"
    )


def _left_out(more: int) -> str:
    return f"{more} more are left out here; the report holds them." if more > 0 else ""


def _row(subject: Subject, position: int, point: ProfilePoint) -> list[str]:
    name = f"points.{position}"
    predicted, measured = point.predicted_samples_per_s, point.samples_per_s
    ratio = predicted / measured if predicted is not None and measured else None
    spread = NO_RATE
    if point.samples_per_s_min is not None and point.samples_per_s_max is not None:
        spread = f"{number(point.samples_per_s_min)} to {number(point.samples_per_s_max)}"
    words = settings(point)
    return [
        join([words, element("small", " ★ chosen", class_="star")]) if subject.is_chosen(point) else words,
        figure(f"{name}.predicted", predicted, number, "not predicted"),
        figure(f"{name}.measured", measured, number),
        spread,
        count(point.windows) if point.windows else NO_RATE,
        figure(f"{name}.ratio", ratio, number, NO_RATE),
        figure(f"{name}.data_time_fraction", point.data_time_fraction, percent, NO_RATE),
        figure(f"{name}.usd", point.usd_per_million_samples, number, NO_RATE),
    ]
