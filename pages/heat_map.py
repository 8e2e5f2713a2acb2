"""The heat map of a sweep: slot size by loader processes, what was measured, predicted and failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from contracts.artifacts import ProfilePoint, ProfileReport, Settings
from pages.markup import Html
from pages.rendering import View, render

SHADES = 9


@dataclass(frozen=True)
class Cell:
    """All points of one slot size and number of loader processes."""

    slot_size: int
    num_workers: int
    points: int = 0
    best: ProfilePoint | None = None
    """The fastest measured; where none was, the one with the best prediction. None: nothing was tried."""
    chosen: bool = False
    own_samples_per_s: float | None = None
    """Of the choice, where another of the cell is the fastest: it may be a cheaper one within a few percent."""
    shade: str = "empty"
    """Class of the colour."""


@dataclass(frozen=True)
class HeatMap(View):
    """A row per slot size, a column per number of loader processes."""

    template: ClassVar[str] = "profile/heat_map.html.j2"
    columns: Sequence[int]
    """Numbers of loader processes."""
    rows: Sequence[Sequence[Cell]]
    left_out: int = 0
    """Rows and columns."""


def is_failed(point: ProfilePoint) -> bool:
    """Whether a configuration was tried and gave no rate; one that is only predicted was not tried."""
    return point.outcome not in ("measured", "predicted")


def is_chosen(report: ProfileReport, point: ProfilePoint) -> bool:
    """Whether a point is the configuration that was chosen."""
    return all(getattr(point, name) == getattr(report.choice, name) for name in Settings.model_fields)


def heat_map(report: ProfileReport, most: int = 24) -> Html:
    """Return the table: a row per slot size, a column per number of loader processes.

    Args:
        report: What was tried.
        most: Rows and columns at most, those around the choice; it says how many are left out.
    """
    points: dict[tuple[int, int], list[ProfilePoint]] = {}
    for point in report.points:
        points.setdefault((point.slot_size, point.num_workers), []).append(point)
    slots, workers = ({key[axis] for key in points} for axis in (0, 1))
    rows = _around(slots, report.choice.slot_size, most)
    columns = _around(workers, report.choice.num_workers, most)
    rates = [rate for cell in points.values() if (rate := _rate(_best(cell))) is not None]
    low, high = min(rates, default=0.0), max(rates, default=0.0)
    cells = [
        [_cell(report, slot, count, points.get((slot, count), []), low, high) for count in columns] for slot in rows
    ]
    return render(HeatMap(columns, cells, len(slots) - len(rows) + len(workers) - len(columns)))


def _around(values: set[int], centre: int, limit: int) -> list[int]:
    """Return at most `limit` neighbours of a value, in order."""
    return sorted(sorted(values, key=lambda value: (abs(value - centre), value))[:limit])


def _best(points: Sequence[ProfilePoint]) -> ProfilePoint:
    return max(points, key=lambda p: (p.samples_per_s or 0.0, p.predicted_samples_per_s or 0.0))


def _rate(point: ProfilePoint) -> float | None:
    return point.samples_per_s if point.samples_per_s is not None else point.predicted_samples_per_s


def _cell(
    report: ProfileReport, slot_size: int, num_workers: int, points: Sequence[ProfilePoint], low: float, high: float
) -> Cell:
    if not points:
        return Cell(slot_size, num_workers)
    best = _best(points)
    chosen = next((point for point in points if is_chosen(report, point)), None)
    rate = None if best.samples_per_s is None and is_failed(best) else _rate(best)
    shade = "failed"
    if rate is not None:
        shade = f"h{round((rate - low) / (high - low) * (SHADES - 1)) if high > low else SHADES - 1}"
    own = chosen.samples_per_s if chosen is not None and chosen is not best else None
    return Cell(slot_size, num_workers, len(points), best, chosen is not None, own, shade)
