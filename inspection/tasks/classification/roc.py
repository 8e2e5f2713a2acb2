"""How well probabilities tell classes apart: the micro-average, and the classes that do worst."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from contracts.artifacts.classification import ClassificationDetails, ClassOutcome
from inspection.page.subject import Subject
from inspection.run.data import evenly
from inspection.tasks.classification.vertex import add_up
from pages.chart import Axis, Line, make_plot
from pages.markup import shorten
from pages.parts import Drawing, Part, Text, Title

WORST = 4
_AXIS = [(share, f"{share * 100:.0f}\u00a0%") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]


def roc(subject: Subject, found: ClassificationDetails, samples: int) -> list[Part]:
    """Return the curves; nothing where no class has one.

    Args:
        subject: The run.
        found: Of its evaluation.
        samples: Of the split.
    """
    known = [outcome for outcome in found.classes if outcome.roc is not None]
    if not known:
        return []
    worst = sorted(known, key=lambda outcome: (_area(outcome), outcome.name))[:WORST]
    whole = micro_average(known, samples)
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(whole))
    drawn = [("micro-average", area, whole)]
    drawn += [(shorten(o.name, 40), _area(o), rates(o, samples)) for o in worst] if len(known) > 1 else []
    lines = []
    for style, (name, _, points) in enumerate(drawn):
        thin = evenly(points, subject.limits.points)
        lines.append(Line(name, [x for x, _ in thin], [y for _, y in thin], style))
    said = ", ".join(f"{name} {value:.4f}" for name, value, _ in drawn)
    axis = Axis(0.0, 1.0, _AXIS)
    more = (
        f" Of {len(known):,} classes the {len(worst)} with the smallest area are drawn." if len(known) > WORST else ""
    )
    plot = make_plot(lines, axis, axis, label=f"ROC curves, areas: {said}")
    areas = [(name, value) for name, value, _ in drawn]
    about = (
        "Across: share of other classes' samples at or above a threshold. Upwards: share of the class's own. One class "
        f"against the rest; the micro-average is over all pairs of sample and class; numbers are areas, binned.{more}"
    )
    drawing = Drawing(plot, legend=areas, unit="area", style="square", data={"chart": "ROC"})
    return [Title("ROC"), drawing, Text(about, "note")]


def _area(outcome: ClassOutcome) -> float:
    return outcome.roc.area if outcome.roc is not None else 0.0


def rates(outcome: ClassOutcome, samples: int) -> list[tuple[float, float]]:
    """Return false and true positive rates of a class, from (0, 0) to (1, 1).

    Args:
        outcome: The class, with a curve.
        samples: Of the whole split.
    """
    inside, outside = outcome.samples or 1, max(1, samples - outcome.samples)
    points = [(fp / outside, tp / inside) for _, fp, tp in (outcome.roc.points if outcome.roc is not None else [])]
    return [(0.0, 0.0), *points, (1.0, 1.0)]


def micro_average(known: Sequence[ClassOutcome], samples: int) -> list[tuple[float, float]]:
    """Return the rates over all pairs of sample and class: at each threshold, sums over the classes."""
    inside = sum(outcome.samples for outcome in known) or 1
    outside = max(1, sum(samples - outcome.samples for outcome in known))
    sums = add_up([outcome.roc for outcome in known if outcome.roc is not None])
    return [(0.0, 0.0), *((false / outside, true / inside) for _, false, true in sums), (1.0, 1.0)]
