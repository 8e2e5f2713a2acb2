"""What is taken for what: the matrix of few classes, the pairs of many."""

from __future__ import annotations

from contracts.artifacts.classification import ClassificationDetails
from inspection.page.subject import NO_VALUE, Subject, left_out
from pages.markup import Html
from pages.parts import Cell, Figure, Table
from pages.quantities import count, percent
from pages.rendering import render
from pages.run.classification import ConfusionMatrix
from pages.style import SHADES


def confusion(subject: Subject, found: ClassificationDetails) -> Html | Table:
    """Return the confusion matrix; of very many classes the pairs that are confused most."""
    if len(found.classes) > subject.limits.confusion:
        return _pairs(subject, found)
    cells = {(label, predicted): samples for label, predicted, samples in found.confusion}
    places = range(len(found.classes))

    def cell(label: int, predicted: int) -> tuple[int, str]:
        samples, whole = cells.get((label, predicted), 0), found.classes[label].samples
        share = samples / whole if whole else 0.0
        kind = f"h{round(min(share, 1.0) * (SHADES - 1))}" if samples else "none"
        return samples, f"{kind} off" if samples and label != predicted else kind

    names = tuple(subject.name(outcome.name) for outcome in found.classes)
    rows = tuple(tuple(cell(label, predicted) for predicted in places) for label in places)
    return render(ConfusionMatrix(names, rows, max(map(len, names), default=0) > 3))


def _pairs(subject: Subject, found: ClassificationDetails) -> Table:
    off = sorted((cell for cell in found.confusion if cell[0] != cell[1]), key=lambda cell: -cell[2])
    shown = off[: subject.limits.rows]
    known = dict(enumerate(found.classes))

    def row(label: int, predicted: int, samples: int) -> tuple[Cell, ...]:
        names = [subject.name(known[place].name) if place in known else "?" for place in (label, predicted)]
        whole = known[label].samples if label in known else 0
        figure = Figure(f"confusion.{label}.{predicted}", samples, "count")
        return *names, figure, percent(samples / whole) if whole else NO_VALUE

    return Table(
        "confusion",
        f"Of {count(len(found.classes))} classes, the pairs that are confused most",
        ("Label", "Taken for", "Samples", "Of the label's"),
        [row(*cell) for cell in shown],
        2,
        left_out(len(shown), len(off), "pairs"),
    )
