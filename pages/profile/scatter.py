"""Predicted against measured, a dot a configuration."""

from __future__ import annotations

import math

from contracts.artifacts import ProfilePoint
from pages.markup import Html, element
from pages.profile.subject import Subject, name_flags, workers
from pages.quantities import number

SIDE = 300
MARGIN = 44


def scatter(subject: Subject) -> Html:
    """Return dots of predicted and measured rates, and the line on which both are the same."""
    pairs = [
        (point.predicted_samples_per_s, point.samples_per_s, point)
        for point in subject.report.points
        if point.predicted_samples_per_s is not None and point.samples_per_s is not None
    ][: subject.limits.points]
    if not pairs:
        return element("p", "No configuration was predicted before it was measured.", class_="missing block")
    most = max(max(predicted, measured) for predicted, measured, _ in pairs) * 1.08 or 1.0
    inner = SIDE - MARGIN - 8

    def across(value: float) -> float:
        return round(MARGIN + value / most * inner, 1)

    def down(value: float) -> float:
        return round(SIDE - MARGIN - value / most * inner, 1)

    ticks = []
    for tick in _ticks(most):
        ticks.append(element("line", x1=across(tick), x2=across(tick), y1=down(0), y2=down(most), class_="grid"))
        ticks.append(element("line", y1=down(tick), y2=down(tick), x1=across(0), x2=across(most), class_="grid"))
        ticks.append(element("text", number(tick), x=across(tick), y=down(0) + 16, text_anchor="middle"))
        ticks.append(element("text", number(tick), x=MARGIN - 6, y=down(tick) + 4, text_anchor="end"))
    dots = [
        element(
            "g",
            element("title", f"{_settings(point)}: predicted {number(x)}, measured {number(y)} samples/s"),
            _mark(across(x), down(y), chosen=subject.is_chosen(point)),
        )
        for x, y, point in pairs
    ]
    title = (
        f"Predicted against measured samples per second of {len(pairs)} configurations; the same is in the table below"
    )
    drawing = element(
        "svg",
        element("title", title),
        *ticks,
        element("line", x1=across(0), y1=down(0), x2=across(most), y2=down(most), class_="same"),
        *dots,
        element("text", "predicted, samples/s", x=SIDE / 2 + 18, y=SIDE - 8, text_anchor="middle", class_="axis"),
        element(
            "text",
            "measured, samples/s",
            x=-(SIDE / 2 - 18),
            y=11,
            text_anchor="middle",
            transform="rotate(-90)",
            class_="axis",
        ),
        viewBox=f"0 0 {SIDE} {SIDE}",
        width=SIDE,
        height=SIDE,
        role="img",
        aria_label=title,
        id="scatter",
    )
    caption = "On the dashed line: as predicted; above it: faster than predicted. The ring: chosen."
    return element("figure", drawing, element("figcaption", caption), class_="scatter")


def _ticks(most: float) -> list[float]:
    """Return round numbers up to `most`, three to six of them."""
    power = 10 ** math.floor(math.log10(most))
    step = next(size * power for size in (0.2, 0.25, 0.5, 1, 2) if most / (size * power) < 6)
    return [step * count for count in range(int(most / step) + 1)]


def _mark(x: float, y: float, *, chosen: bool) -> Html:
    dot = element("circle", cx=x, cy=y, r=4, class_="dot")
    return Html(dot + element("circle", cx=x, cy=y, r=8, class_="ring")) if chosen else dot


def _settings(point: ProfilePoint) -> str:
    return (
        f"slot size {point.slot_size}, {workers(point.num_workers, point.prefetch_factor)}, {name_flags(point.flags)}"
    )
