"""Image classification in the summary of training: the hardest classes, and the most frequent mistakes."""

from __future__ import annotations

from contracts.artifacts import EvaluationReport
from contracts.artifacts.classification import ClassificationDetails
from inspection.run.headline import count_left_out
from pages.markdown import Markdown
from pages.quantities import area, count
from pages.rendering import write
from pages.stage import Block, Summary, first

# Rows of the hardest classes and of the most frequent mistakes.
MAX_CLASSES, MAX_MISTAKES = 10, 10


def summary(report: EvaluationReport) -> Markdown:
    """Return the part of the summary.

    Raises:
        DataError: The details of the evaluation are damaged.
    """
    found = ClassificationDetails.of(report)
    assert found is not None, report.task
    counted = [entry for entry in found.classes if entry.samples]
    hardest = [
        (
            entry.name,
            count(entry.samples),
            area(entry.right / entry.samples),
            area(entry.right / entry.predicted) if entry.predicted else "never predicted",
            area(entry.roc.area) if entry.roc is not None else "no curve",
        )
        for entry in sorted(counted, key=lambda entry: entry.right / entry.samples)[:MAX_CLASSES]
    ]
    names = dict(enumerate(entry.name for entry in found.classes))
    wrong = [entry for entry in found.confusion if entry[0] != entry[1] and entry[0] in names and entry[1] in names]
    wrong.sort(key=lambda entry: -entry[2])
    mistakes = [(names[label], names[guess], count(samples)) for label, guess, samples in wrong[:MAX_MISTAKES]]
    head = ("class", "test samples", "recall", "precision", "area under ROC, binned")
    without = count_left_out(report)
    title = f"Hardest classes ({without:,} without a sample left out)" if without else "Hardest classes"
    of_mistakes = Block("Most frequent mistakes", ["None."])
    if mistakes:
        of_mistakes = Block(of_mistakes.title, head=("label", "taken for", "samples"), words=2, rows=first(mistakes))
    return write(Summary([Block(title, head=head, rows=first(hardest)), of_mistakes]))
