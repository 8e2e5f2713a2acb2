"""What was chosen, how fast it is, and why it was chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from contracts.artifacts import ProfilePoint, ProfileReport, Settings
from pages.profile.subject import Subject
from pages.profile.table import Figure
from pages.quantities import rate
from pages.rendering import View

NO_PRICE = "resources.price_usd_per_h is not set"

Tile = tuple[str, Figure, str]
"""Title, number, and what it is of."""


@dataclass(frozen=True)
class ChoiceView(View):
    """The section on the choice."""

    template: ClassVar[str] = "profile/choice.html.j2"
    report: ProfileReport
    limit: int
    """Characters of a message at most."""
    settings: tuple[Tile, ...]
    flags: str
    rates: tuple[Tile, ...]
    no_price: str = NO_PRICE


def choice(subject: Subject) -> ChoiceView:
    """Return the chosen settings, their rate, the reason, and the estimate of the whole training."""
    report, chosen = subject.report, subject.report.choice
    point = subject.chosen_point() or ProfilePoint(**chosen.model_dump(include=set(Settings.model_fields)))
    named = (
        ("Slot size", "slot_size", "samples per forward pass"),
        ("Slots per rank", "slots_per_rank", "in an optimizer step"),
        ("Loader processes", "num_workers", "of a rank; 0: the rank loads itself"),
        ("Prefetch", "prefetch_factor", "slots that a loader process prepares ahead"),
        ("Threads", "threads", "intra-op, of a rank"),
    )
    units = ((f"Measured {unit}/s", f"{unit}_per_s", value) for unit, value in point.units_per_s.items())
    rates: list[Tile] = [
        ("Measured rate", Figure("choice.samples_per_s", point.samples_per_s, "rate"), _spread(point)),
        *((title, Figure(f"choice.{name}", value, "number"), "of the slowest rank") for title, name, value in units),
        (
            "Predicted rate",
            Figure("choice.predicted_samples_per_s", point.predicted_samples_per_s, "rate", "not predicted"),
            "before it was measured",
        ),
        ("Data time", Figure("choice.data_time_fraction", point.data_time_fraction, "percent"), "of a step, waiting"),
        (
            "Price",
            Figure("choice.usd_per_million_samples", point.usd_per_million_samples, "usd", NO_PRICE),
            "per million samples, all ranks",
        ),
    ]
    return ChoiceView(
        report,
        subject.limits.reason,
        settings=tuple(
            (title, Figure(f"choice.{name}", getattr(chosen, name), "count"), note) for title, name, note in named
        ),
        flags=chosen.flags.in_words(),
        rates=tuple(rates),
    )


def _spread(point: ProfilePoint) -> str:
    if point.samples_per_s_min is None or point.samples_per_s_max is None:
        return "of the slowest rank"
    return (
        f"slowest rank; {rate(point.samples_per_s_min)} to {rate(point.samples_per_s_max)} in {point.windows} windows"
    )
