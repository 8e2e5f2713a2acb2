"""Image classification in the summary of training: the hardest classes, and the most frequent mistakes."""

from __future__ import annotations

from collections.abc import Iterator

from contracts.artifacts import EvaluationReport
from contracts.artifacts.classification import ClassificationDetails
from inspection.stages.markdown import cell, section, table

# Rows of the hardest classes and of the most frequent mistakes.
MAX_CLASSES, MAX_MISTAKES = 10, 10


def summary(report: EvaluationReport) -> list[str]:
    """Return lines of Markdown.

    Raises:
        DataError: The details of the evaluation are damaged.
    """
    found = ClassificationDetails.of(report)
    assert found is not None, report.task
    return [
        *section("Hardest classes", list(_hardest(found))),
        *section("Most frequent mistakes", list(_mistakes(found))),
    ]


def _hardest(found: ClassificationDetails) -> Iterator[str]:
    counted = [entry for entry in found.classes if entry.samples]
    hardest = sorted(counted, key=lambda entry: entry.right / entry.samples)[:MAX_CLASSES]
    rows = (
        (
            cell(entry.name),
            f"{entry.samples:,}",
            f"{entry.right / entry.samples:.4f}",
            f"{entry.right / entry.predicted:.4f}" if entry.predicted else "never predicted",
            f"{entry.roc.area:.4f}" if entry.roc is not None else "no curve",
        )
        for entry in hardest
    )
    yield from table(["class", "test samples", "recall", "precision", "area under ROC"], rows)


def _mistakes(found: ClassificationDetails) -> Iterator[str]:
    places = range(len(found.classes))
    wrong = [entry for entry in found.confusion if entry[0] != entry[1] and entry[0] in places and entry[1] in places]
    if not wrong:
        yield "None."
        return
    wrong.sort(key=lambda entry: -entry[2])
    rows = (
        (cell(found.classes[label].name), cell(found.classes[guess].name), f"{count:,}")
        for label, guess, count in wrong[:MAX_MISTAKES]
    )
    yield from table(["label", "taken for", "samples"], rows, words=2)
