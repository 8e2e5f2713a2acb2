"""What is taken for what: the matrix of few classes, the pairs of many."""

from __future__ import annotations

from contracts.artifacts.classification import ClassificationDetails
from inspection.page.subject import Subject, left_out
from pages.heat_map import SHADES
from pages.run.classification import ConfusedPair, ConfusedPairs, ConfusionMatrix


def matrix(subject: Subject, found: ClassificationDetails) -> ConfusionMatrix | None:
    """Return the confusion matrix; None: there are too many classes."""
    if len(found.classes) > subject.limits.confusion:
        return None
    cells = {(label, predicted): samples for label, predicted, samples in found.confusion}
    places = range(len(found.classes))

    def cell(label: int, predicted: int) -> tuple[int, str]:
        samples, whole = cells.get((label, predicted), 0), found.classes[label].samples
        share = samples / whole if whole else 0.0
        kind = f"h{round(min(share, 1.0) * (SHADES - 1))}" if samples else "none"
        return samples, f"{kind} off" if samples and label != predicted else kind

    return ConfusionMatrix(
        tuple(subject.name(outcome.name) for outcome in found.classes),
        tuple(tuple(cell(label, predicted) for predicted in places) for label in places),
    )


def pairs(subject: Subject, found: ClassificationDetails) -> ConfusedPairs:
    """Return the pairs of classes that are confused most."""
    off = sorted((cell for cell in found.confusion if cell[0] != cell[1]), key=lambda cell: -cell[2])
    shown = off[: subject.limits.rows]
    known = dict(enumerate(found.classes))

    def pair(label: int, predicted: int, samples: int) -> ConfusedPair:
        names = [subject.name(known[place].name) if place in known else "?" for place in (label, predicted)]
        whole = known[label].samples if label in known else 0
        return ConfusedPair(names[0], names[1], f"{label}.{predicted}", samples, samples / whole if whole else None)

    return ConfusedPairs(
        len(found.classes), tuple(pair(*cell) for cell in shown), left_out(len(shown), len(off), "pairs")
    )
