"""What was chosen, how fast it is, and why it was chosen."""

from __future__ import annotations

from contracts.artifacts import ProfilePoint, Settings
from pages.markup import Html, shorten
from pages.parts import Figure, Listing, Text, Tile, Tiles, Title, Words, note, section
from pages.profile.subject import Subject
from pages.quantities import count, rate, several

NO_PRICE = "resources.price_usd_per_h is not set"
_MOST_WARNINGS = 40


def choice(subject: Subject) -> Html:
    """Return the chosen settings, their rate, the reason, and the estimate of the whole training."""
    report, chosen, limit = subject.report, subject.report.choice, subject.limits.reason
    slots = f"{chosen.slot_size} per slot \u00d7 {several(chosen.slots_per_rank, 'slot')} per rank"
    cut = (
        f"Global batch {count(report.global_batch_size)} samples, as configured: {slots} \u00d7 the ranks of all "
        "machines; the last slot may be smaller."
    )
    more = len(report.warnings) - _MOST_WARNINGS
    warnings = [shorten(line, limit) for line in report.warnings[:_MOST_WARNINGS]]
    warnings += [f"{more} more in the report."] if more > 0 else []
    return section(
        "choice",
        "Choice",
        Text([Words("Why: ", style="strong"), shorten(chosen.reason, limit)], "reason", "choice.reason"),
        Text(chosen.describe_certainty(), "note", "choice.clear"),
        Title("Configuration"),
        _settings(subject),
        note(cut),
        Title("End to end, real loader and real steps"),
        _rates(subject),
        _estimate(subject),
        Title("Warnings") if warnings else None,
        Listing(warnings, "warnings") if warnings else None,
    )


def _settings(subject: Subject) -> Tiles:
    chosen = subject.report.choice
    named = (
        ("Slot size", "slot_size", "samples per forward pass"),
        ("Slots per rank", "slots_per_rank", "in an optimizer step"),
        ("Loader processes", "num_workers", "of a rank; 0: the rank loads itself"),
        ("Prefetch", "prefetch_factor", "slots that a loader process prepares ahead"),
        ("Threads", "threads", "intra-op, of a rank"),
    )
    tiles = [
        Tile(title, Figure(f"choice.{name}", getattr(chosen, name), "count"), about) for title, name, about in named
    ]
    computing = Words(chosen.flags.in_words(), style="words", name="choice.flags")
    return Tiles([*tiles, Tile("Computing", computing, "flags")])


def _rates(subject: Subject) -> Tiles:
    point = subject.chosen_point()
    if point is None:
        point = ProfilePoint(**subject.report.choice.model_dump(include=set(Settings.model_fields)))

    def tile(title: str, name: str, value: float | None, unit: str, about: str, missing: str = "not measured") -> Tile:
        return Tile(title, Figure(f"choice.{name}", value, unit, missing), about)

    units = point.units_per_s.items()
    return Tiles(
        [
            tile("Measured rate", "samples_per_s", point.samples_per_s, "rate", _spread(point)),
            *(
                tile(f"Measured {unit}/s", f"{unit}_per_s", value, "number", "of the slowest rank")
                for unit, value in units
            ),
            tile(
                "Predicted rate",
                "predicted_samples_per_s",
                point.predicted_samples_per_s,
                "rate",
                "before it was measured",
                "not predicted",
            ),
            tile("Data time", "data_time_fraction", point.data_time_fraction, "percent", "of a step, waiting"),
            tile(
                "Price",
                "usd_per_million_samples",
                point.usd_per_million_samples,
                "usd",
                "per million samples, all ranks",
                NO_PRICE,
            ),
        ],
        style="wide",
    )


def _spread(point: ProfilePoint) -> str:
    if point.samples_per_s_min is None or point.samples_per_s_max is None:
        return "of the slowest rank"
    return (
        f"slowest rank; {rate(point.samples_per_s_min)} to {rate(point.samples_per_s_max)} in {point.windows} windows"
    )


def _estimate(subject: Subject) -> Text | None:
    found = subject.report.estimate
    if found is None:
        return None
    return Text(
        [
            "The whole training, steps only: ",
            Figure("estimate.hours", found.hours, "hours"),
            " for ",
            Figure("estimate.samples", found.samples, "count"),
            " samples; cost: ",
            Figure("estimate.usd", found.usd, "usd", NO_PRICE),
            ".",
        ],
        name="estimate",
    )
