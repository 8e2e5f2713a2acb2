"""Confusion matrix, and the ROC curve of two classes, as metadata of a system.ClassificationMetrics.

The structure is that of kfp.dsl.ClassificationMetrics (`log_confusion_matrix`, `log_roc_curve`), which the pipeline's
image has no kfp for. Metadata of an artifact is limited to 200 kB
(https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.metadataStores.artifacts), so both are
bounded, and a note says what was left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from contracts.artifacts import EvaluationReport
from contracts.artifacts.classification import ClassificationDetails
from inspection.tasks.classification.roc import roc_rates
from pages.markup import UNPRINTABLE, shorten

# A matrix that a reader can read; the cells and names of so many stay below 40 kB.
MAX_CATEGORIES = 40
MAX_POINTS = 100
_NAME_LIMIT = 60

Point = tuple[float, float, float]


def tell_classification(report: EvaluationReport) -> dict[str, Any]:
    """Return the metadata: confusionMatrix, confidenceMetrics, and `note` about what they leave out.

    Raises:
        DataError: The details of the evaluation are damaged.
    """
    details = ClassificationDetails.of(report)
    assert details is not None, report.task
    matrix, note = _matrix(details)
    metadata: dict[str, Any] = {"confusionMatrix": matrix, "note": note}
    if details.roc is not None:
        metadata["confidenceMetrics"] = [
            {"confidenceThreshold": threshold, "recall": recall, "falsePositiveRate": false_rate}
            for threshold, false_rate, recall in _thin(roc_rates(details), MAX_POINTS)
        ]
    return metadata


def _thin(points: list[Point], most: int) -> list[Point]:
    """Return at most `most` of the points: both ends, and of the others those at equal distances along the curve."""
    if len(points) <= most:
        return points
    travelled = [0.0]
    for (_, x0, y0), (_, x1, y1) in pairwise(points):
        travelled.append(travelled[-1] + abs(x1 - x0) + abs(y1 - y0))
    kept, place = [0], 0
    for step in range(1, most - 1):
        wanted = travelled[-1] * step / (most - 1)
        while travelled[place] < wanted:
            place += 1
        if place > kept[-1]:
            kept.append(place)
    if kept[-1] != len(points) - 1:
        kept.append(len(points) - 1)
    return [points[place] for place in kept]


def _matrix(report: ClassificationDetails) -> tuple[dict[str, Any], str]:
    """Return the confusion matrix, and what was left out.

    Beyond MAX_CATEGORIES classes, those with few mistakes are one category.
    """
    count = len(report.classes)
    shown = list(range(count))
    if count > MAX_CATEGORIES:
        wrong = [0] * count
        for label, guess, samples in report.confusion:
            if label != guess and label in range(count) and guess in range(count):
                wrong[label] += samples
                wrong[guess] += samples
        worst = sorted(shown, key=lambda place: (-wrong[place], place))[: MAX_CATEGORIES - 1]
        shown = sorted(worst)
    names = _distinct([report.classes[place].name for place in shown])
    place_of = {place: row for row, place in enumerate(shown)}
    others = len(shown)
    if len(shown) < count:
        names = _distinct([*names, f"{count - len(shown):,} other classes"])
    rows = [[0] * len(names) for _ in names]
    for label, guess, samples in report.confusion:
        if label in range(count) and guess in range(count):
            rows[place_of.get(label, others)][place_of.get(guess, others)] += samples
    said = []
    if len(shown) < count:
        said.append(
            f"The confusion matrix has the {len(shown)} of {count:,} classes with most mistakes; the others are one "
            "category, whose diagonal holds mistakes among them too."
        )
    if report.confusion_left_out:
        said.append(f"{report.confusion_left_out:,} mistaken samples are in no cell: the smallest of too many.")
    matrix = {"annotationSpecs": [{"displayName": name} for name in names], "rows": [{"row": row} for row in rows]}
    return matrix, " ".join(said)


def _distinct(names: Sequence[str]) -> list[str]:
    """Return names fit for a page, each once: kfp and readers know a category by its name."""
    found: list[str] = []
    taken: set[str] = set()
    for name in names:
        plain = shorten(" ".join(UNPRINTABLE.sub("\ufffd", name).split()), _NAME_LIMIT) or "(no name)"
        made, number = plain, 1
        while made in taken:
            number += 1
            made = f"{plain} ({number})"
        taken.add(made)
        found.append(made)
    return found
