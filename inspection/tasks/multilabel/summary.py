"""Several labels in the summary of training: the hardest classes at their thresholds."""

from __future__ import annotations

from collections.abc import Iterator

from contracts.artifacts import EvaluationReport
from contracts.artifacts.multilabel import MultilabelDetails
from inspection.stages.markdown import cell, section, table

MAX_CLASSES = 10


def summary(report: EvaluationReport) -> list[str]:
    """Return lines of Markdown.

    Raises:
        DataError: The details of the evaluation are damaged.
    """
    found = MultilabelDetails.of(report)
    assert found is not None, report.task
    return section("Hardest labels", list(_hardest(found)))


def _hardest(found: MultilabelDetails) -> Iterator[str]:
    known = [one for one in found.classes if one.average_precision is not None]
    known.sort(key=lambda one: one.average_precision or 0.0)
    rows = (
        (
            cell(one.name),
            f"{one.positives:,}",
            f"{one.average_precision:.4f}",
            f"{one.threshold:.4f}",
            "none" if one.f1 is None else f"{one.f1:.4f}",
            "never said" if one.precision is None else f"{one.precision:.4f}",
            "none" if one.recall is None else f"{one.recall:.4f}",
        )
        for one in known[:MAX_CLASSES]
    )
    head = ["label", "test samples", "average precision", "threshold", "F1", "precision", "recall"]
    yield from table(head, rows)
