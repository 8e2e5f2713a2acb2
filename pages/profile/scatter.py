"""Predicted against measured, a dot per configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.chart import round_ticks
from pages.profile.points import describe_settings
from pages.profile.subject import Subject
from pages.quantities import number
from pages.rendering import View

SIDE = 300
MARGIN = 44


@dataclass(frozen=True)
class Dot:
    """A configuration that was predicted and measured."""

    x: float
    y: float
    title: str
    chosen: bool


@dataclass(frozen=True)
class ScatterView(View):
    """Dots of predicted and measured rates; places are in pixels from the upper left corner."""

    template: ClassVar[str] = "profile/scatter.html.j2"
    dots: tuple[Dot, ...] = ()
    ticks: tuple[tuple[float, float, float], ...] = ()
    """Rates in round numbers, each with its x and its y."""
    end: tuple[float, float] = (0.0, 0.0)
    """x and y of the largest rate that is shown."""
    side: int = SIDE
    margin: int = MARGIN


def scatter(subject: Subject) -> ScatterView:
    """Return dots of predicted and measured rates, and the line on which both are the same."""
    pairs = [
        (point.predicted_samples_per_s, point.samples_per_s, point)
        for point in subject.report.points
        if point.predicted_samples_per_s is not None and point.samples_per_s is not None
    ][: subject.limits.points]
    if not pairs:
        return ScatterView()
    most = max(max(predicted, measured) for predicted, measured, _ in pairs) * 1.08 or 1.0
    inner = SIDE - MARGIN - 8

    def across(value: float) -> float:
        return round(MARGIN + value / most * inner, 1)

    def down(value: float) -> float:
        return round(SIDE - MARGIN - value / most * inner, 1)

    return ScatterView(
        dots=tuple(
            Dot(
                across(predicted),
                down(measured),
                f"{describe_settings(point)}: predicted {number(predicted)}, measured {number(measured)} samples/s",
                subject.is_chosen(point),
            )
            for predicted, measured, point in pairs
        ),
        ticks=tuple((tick, across(tick), down(tick)) for tick in round_ticks(0.0, most, 6) if tick <= most),
        end=(across(most), down(most)),
    )
