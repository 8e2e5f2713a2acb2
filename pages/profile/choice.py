"""What was chosen, how fast it is, and why it was chosen."""

from __future__ import annotations

from collections.abc import Callable

from contracts.artifacts import ProfilePoint, Settings
from pages.markup import NOT_MEASURED, Html, element, figure, join, section, shorten
from pages.profile.subject import Subject, name_flags
from pages.quantities import count, hours, number, percent, rate, seconds, usd

NO_PRICE = "resources.price_usd_per_h is not set"


def choice(subject: Subject) -> Html:
    """Return the chosen settings, their rate, the reason, and the estimate of the whole training."""
    report, chosen = subject.report, subject.report.choice
    point = subject.chosen_point() or ProfilePoint(**chosen.model_dump(include=set(Settings.model_fields)))
    settings: list[tuple[str, str, float, str]] = [
        ("slot_size", "Slot size", chosen.slot_size, "samples a forward pass"),
        ("slots_per_rank", "Slots a rank", chosen.slots_per_rank, "in an optimizer step"),
        ("num_workers", "Loader processes", chosen.num_workers, "of a rank; 0: the rank loads itself"),
        ("prefetch_factor", "Prefetch", chosen.prefetch_factor, "slots a loader process prepares ahead"),
        ("threads", "Threads", chosen.threads, "intra-op, of a rank"),
    ]
    tiles = [_tile(title, figure(f"choice.{name}", value, count), note) for name, title, value, note in settings]
    tiles.append(
        _tile("Computing", element("span", name_flags(chosen.flags), class_="words", data_text="choice.flags"), "flags")
    )
    rates: list[tuple[str, str, float | None, Callable[[float], str], str, str]] = [
        ("samples_per_s", "Measured rate", point.samples_per_s, rate, NOT_MEASURED, _spread(subject)),
        *(
            (f"{unit}_per_s", f"Measured {unit}/s", value, number, NOT_MEASURED, "of the slowest rank")
            for unit, value in point.units_per_s.items()
        ),
        (
            "predicted_samples_per_s",
            "Predicted rate",
            point.predicted_samples_per_s,
            rate,
            "not predicted",
            "before it",
        ),
        ("data_time_fraction", "Data time", point.data_time_fraction, percent, NOT_MEASURED, "of a step, waiting"),
        (
            "usd_per_million_samples",
            "Price",
            point.usd_per_million_samples,
            usd,
            NO_PRICE,
            "a million samples, all ranks",
        ),
    ]
    parts = [
        element(
            "p",
            element("strong", "Why: "),
            shorten(chosen.reason, subject.limits.reason),
            class_="reason",
            data_text="choice.reason",
        ),
        element("p", chosen.describe_certainty(), class_="note", data_text="choice.clear"),
        element("h3", "Configuration"),
        element("div", *tiles, class_="tiles"),
        element(
            "p",
            f"Global batch {report.global_batch_size:,} samples, as configured: {chosen.slot_size} a slot \u00d7 "
            f"{chosen.slots_per_rank} {'slot' if chosen.slots_per_rank == 1 else 'slots'} a rank \u00d7 the ranks of "
            "all machines; the last slot may be smaller.",
            class_="note",
        ),
        element("h3", "End to end, real loader and real steps"),
        element(
            "div", *(_tile(t, figure(f"choice.{n}", v, s, m), o) for n, t, v, s, m, o in rates), class_="tiles wide"
        ),
        _estimate(subject),
        _warnings(subject),
    ]
    return section("choice", "Choice", *parts)


def _tile(title: str, value: Html, note: str) -> Html:
    return element(
        "div",
        element("span", title, class_="title"),
        element("span", value, class_="value"),
        element("span", note, class_="of"),
        class_="tile",
    )


def _spread(subject: Subject) -> str:
    point = subject.chosen_point()
    if point is None or point.samples_per_s_min is None or point.samples_per_s_max is None:
        return "of the slowest rank"
    return (
        f"slowest rank; {rate(point.samples_per_s_min)} to {rate(point.samples_per_s_max)} in {point.windows} windows"
    )


def _estimate(subject: Subject) -> Html:
    estimate = subject.report.estimate
    if estimate is None:
        return Html("")
    price = figure("estimate.usd", estimate.usd, usd, NO_PRICE)
    return element(
        "p",
        "The whole training, steps only: ",
        figure("estimate.hours", estimate.hours, hours),
        *(
            (" (at best ", figure("estimate.least_hours", estimate.least_hours, hours), ": machines were not measured)")
            if estimate.least_hours is not None
            else ()
        ),
        " for ",
        figure("estimate.samples", estimate.samples, count),
        " samples; cost: ",
        price,
        ".",
        id="estimate",
    )


def _warnings(subject: Subject) -> Html:
    found = subject.report.warnings
    if not found:
        return Html("")
    items = [element("li", shorten(line, subject.limits.reason)) for line in found[:40]]
    if len(found) > 40:
        items.append(element("li", f"{len(found) - 40} more in the report."))
    return join([element("h3", "Warnings"), element("ul", *items, id="warnings")])


def measured_in(subject: Subject) -> str:
    """Return how the choice was made, in a sentence."""
    report = subject.report
    way = {
        "sweep": "parts measured, whole predicted, the best measured end to end",
        "grid": "every combination measured",
        "off": "nothing measured",
    }
    took = f" in {seconds(report.wall_s)}" if report.wall_s is not None else ""
    return f"Method {report.method} ({way[report.method]}){took}."
