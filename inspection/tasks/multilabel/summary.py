"""Several labels in the summary of training: the hardest classes at their thresholds."""

from __future__ import annotations

from contracts.artifacts import EvaluationReport
from contracts.artifacts.multilabel import MultilabelDetails
from inspection.run.headline import count_left_out
from pages.markdown import Markdown
from pages.rendering import write
from pages.stage.tasks import HardLabel, MultilabelSummary

MAX_CLASSES = 10


def summary(report: EvaluationReport) -> Markdown:
    """Return the part of the summary.

    Raises:
        DataError: The details of the evaluation are damaged.
    """
    found = MultilabelDetails.of(report)
    assert found is not None, report.task
    known = [(one.average_precision, one) for one in found.classes if one.average_precision is not None]
    known.sort(key=lambda pair: pair[0])
    return write(
        MultilabelSummary(
            tuple(
                HardLabel(one.name, one.positives, average, one.threshold, one.f1, one.precision, one.recall)
                for average, one in known[:MAX_CLASSES]
            ),
            left_out=count_left_out(report),
        )
    )
