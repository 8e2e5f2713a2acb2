"""ROC curve of two classes."""

from __future__ import annotations

from contracts.artifacts.classification import ClassificationDetails
from inspection.page.subject import Subject
from inspection.run.data import evenly
from pages.chart import Axis, Line, make_plot
from pages.markup import shorten
from pages.parts import Drawing, Part, Text, Title

_AXIS = [(share, f"{share * 100:.0f}\u00a0%") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]


def roc(subject: Subject, found: ClassificationDetails) -> list[Part]:
    """Return the curve; nothing where there is none."""
    if found.roc is None:
        return []
    name = shorten(subject.name(found.classes[1].name), 40)
    thin = evenly([(x, y) for _, x, y in roc_rates(found)], subject.limits.points)
    axis = Axis(0.0, 1.0, _AXIS)
    lines = [Line(name, [x for x, _ in thin], [y for _, y in thin], 0)]
    plot = make_plot(lines, axis, axis, label=f"ROC curve, area: {name} {found.roc.area:.4f}")
    about = (
        "Across: share of the first class's samples at or above a threshold of the second class's probability. "
        "Upwards: share of the second class's own. The number is the area."
    )
    drawing = Drawing(plot, legend=[(name, found.roc.area)], unit="area", style="square", data={"chart": "ROC"})
    return [Title("ROC"), drawing, Text(about, "note")]


def roc_rates(found: ClassificationDetails) -> list[tuple[float, float, float]]:
    """Return threshold, false and true positive rate of the second of two classes, from (0, 0) to (1, 1)."""
    if found.roc is None:
        return []
    first, second = (max(1, outcome.samples) for outcome in found.classes)
    points = [(threshold, false / first, true / second) for threshold, false, true in found.roc.points]
    return [(1.0, 0.0, 0.0), *points, (0.0, 1.0, 1.0)]
