"""The heat map of a sweep: slot size by loader processes, what was measured, predicted and failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.artifacts import ProfilePoint, ProfileReport, Settings
from pages.markup import Html, element, figure, join
from pages.quantities import number, several

SHADES = 9


@dataclass(frozen=True)
class Cell:
    """All points of one slot size and number of loader processes."""

    points: Sequence[ProfilePoint]

    @property
    def best(self) -> ProfilePoint:
        """The fastest measured; where none was, the one with the best prediction."""
        return max(self.points, key=lambda p: (p.samples_per_s or 0.0, p.predicted_samples_per_s or 0.0))


def is_failed(point: ProfilePoint) -> bool:
    """Whether a configuration was tried and gave no rate; one that is only predicted was not tried."""
    return point.outcome not in ("measured", "predicted")


def is_chosen(report: ProfileReport, point: ProfilePoint) -> bool:
    """Whether a point is the configuration that was chosen."""
    return all(getattr(point, name) == getattr(report.choice, name) for name in Settings.model_fields)


def heat_map(report: ProfileReport, most: int = 24) -> Html:
    """Return the table: a row a slot size, a column a number of loader processes.

    Args:
        report: What was tried.
        most: Rows and columns at most, those around the choice; it says how many are left out.
    """
    cells: dict[tuple[int, int], list[ProfilePoint]] = {}
    for point in report.points:
        cells.setdefault((point.slot_size, point.num_workers), []).append(point)
    kept = _around(sorted({slot for slot, _ in cells}), report.choice.slot_size, most)
    columns = _around(sorted({workers for _, workers in cells}), report.choice.num_workers, most)
    rates = [rate for cell in cells.values() if (rate := _rate(Cell(cell).best)) is not None]
    low, high = min(rates, default=0.0), max(rates, default=0.0)
    head = element(
        "tr",
        element("th", "slot size (samples)", scope="col", class_="corner"),
        *(element("th", several(workers, "worker"), scope="col") for workers in columns),
    )
    rows = [
        element(
            "tr",
            element("th", str(slot), scope="row"),
            *(_cell(report, slot, workers, cells.get((slot, workers)), low, high) for workers in columns),
        )
        for slot in kept
    ]
    caption = "Samples per second of one rank; of several configurations in a cell, the fastest"
    whole = element(
        "table",
        element("caption", caption),
        element("thead", head),
        element("tbody", *rows),
        id="heat-map",
        class_="heat",
    )
    left_out = len({slot for slot, _ in cells}) - len(kept) + len({workers for _, workers in cells}) - len(columns)
    note = "Bold: measured. Italic: only predicted. Striped: failed. The stronger the colour, the faster."
    if left_out:
        note += f" {left_out} rows and columns are left out here; the report holds them."
    return join(
        [
            element("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption),
            element("p", note, class_="note"),
        ]
    )


def _around(values: list[int], centre: int, limit: int) -> list[int]:
    """Return at most `limit` neighbours of a value, in order."""
    nearest = sorted(values, key=lambda value: abs(value - centre))[:limit]
    return sorted(nearest)


def _rate(point: ProfilePoint) -> float | None:
    return point.samples_per_s if point.samples_per_s is not None else point.predicted_samples_per_s


def _cell(
    report: ProfileReport, slot: int, workers: int, points: list[ProfilePoint] | None, low: float, high: float
) -> Html:
    name = f"map.{slot}.{workers}"
    if not points:
        return element("td", element("small", "not tried"), class_="empty", data_cell=f"{slot} {workers}")
    best = Cell(points).best
    chosen = next((point for point in points if is_chosen(report, point)), None)
    rate = _rate(best)
    lines: list[str] = []
    shade = "failed"
    if best.samples_per_s is not None:
        lines.append(element("strong", figure(f"{name}.measured", best.samples_per_s, number)))
        if best.predicted_samples_per_s is not None:
            shown = figure(f"{name}.predicted", best.predicted_samples_per_s, number)
            lines.append(element("small", "predicted ", shown))
    elif is_failed(best):
        lines.append(element("small", best.outcome))
        rate = None
    else:
        lines.append(element("em", figure(f"{name}.predicted", rate, number)))
        lines.append(element("small", "only predicted" if rate is not None else ""))
    if rate is not None:
        shade = f"h{round((rate - low) / (high - low) * (SHADES - 1)) if high > low else SHADES - 1}"
    if len(points) > 1:
        lines.append(element("small", f"best of {len(points)}"))
    if chosen is not None:
        # Within a few percent of the fastest: it may be a cheaper one.
        own = "" if chosen is best or chosen.samples_per_s is None else f": {number(chosen.samples_per_s)}"
        lines.append(element("small", f"★ chosen{own}", class_="star"))
    return element(
        "td",
        *lines,
        class_=f"{shade} chosen" if chosen is not None else shade,
        data_cell=f"{slot} {workers}",
        data_outcome=best.outcome,
    )
