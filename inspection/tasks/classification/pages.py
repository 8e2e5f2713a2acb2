"""Classifications on a run's page: figures, the confusion matrix, curves, classes, and the worst samples."""

from __future__ import annotations

from contracts.artifacts import EvaluationReport
from contracts.artifacts.classification import ClassificationDetails, ClassOutcome
from inspection.page.data import file_link, picture
from inspection.page.subject import Subject, left_out
from inspection.run.headline import binomial_interval
from inspection.tasks import TaskPages
from inspection.tasks.classification.confusion import matrix, pairs
from inspection.tasks.classification.roc import roc
from inspection.tasks.classification.summary import summary
from inspection.tasks.classification.vertex import tell_classification
from inspection.tasks.classification.worst import WorstView, worst_samples
from inspection.tasks.pictures import WORDS
from pages.markup import Html, shorten
from pages.rendering import render
from pages.run.classification import ClassificationResults, OutcomeRow
from pages.run.results import Worst, WorstSample

BESIDE = 12
"""Classes whose matrix leaves room beside it."""


def results(subject: Subject, report: EvaluationReport) -> Html:
    """Return the part of section Results."""
    found = ClassificationDetails.of(report)
    assert found is not None, report.task
    accuracy = report.metrics.get("accuracy")
    recalls = [recall for outcome in found.classes if (recall := _recall(outcome)) is not None]
    scores = [score for outcome in found.classes if (score := _f1(outcome)) is not None]
    areas = [outcome.roc.area for outcome in found.classes if outcome.roc is not None]
    places, limit, note = list(range(len(found.classes))), subject.limits.classes, ""
    if len(places) > limit:
        # Those without a sample say nothing, and come last.
        places.sort(key=lambda place: (_recall(found.classes[place]) is None, _recall(found.classes[place]) or 0.0))
        note = f"Of {len(places):,} classes the {limit} with the lowest recall are shown."
    few = matrix(subject, found)
    # None of a document that is damaged or of release 0.1.0.
    beside = [
        (_share(right, samples), _share(2 * right, samples + taken)) for samples, taken, right in found.validation
    ]
    beside = beside if len(beside) == len(found.classes) else []
    return render(
        ClassificationResults(
            accuracy=accuracy,
            accuracy_interval=_interval(accuracy, report.samples),
            wrong=report.samples - found.right,
            samples=report.samples,
            # Documents of earlier releases have none.
            f1=report.metrics.get("f1_macro", _mean(scores)),
            recall=_mean(recalls),
            roc_area=_mean(areas),
            loss=report.loss,
            matrix=few,
            pairs=pairs(subject, found) if few is None else None,
            confusion_left_out=found.confusion_left_out,
            outcomes=tuple(
                _outcome(subject, place, found.classes[place], beside[place] if beside else None)
                for place in places[:limit]
            ),
            outcomes_note=note,
            roc=roc(subject, found, report.samples),
            worst=_worst(subject),
            validation_f1=_mean([score for _, score in beside if score is not None]),
            side_by_side=len(found.classes) <= BESIDE,
        )
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _interval(share: float | None, samples: int) -> tuple[float, float] | None:
    return binomial_interval(share, samples) if share is not None and 0 <= share <= 1 and samples > 0 else None


def _recall(outcome: ClassOutcome) -> float | None:
    return _share(outcome.right, outcome.samples)


def _f1(outcome: ClassOutcome) -> float | None:
    return _share(2 * outcome.right, outcome.samples + outcome.predicted)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _outcome(
    subject: Subject, place: int, outcome: ClassOutcome, validation: tuple[float | None, float | None] | None
) -> OutcomeRow:
    recall = _recall(outcome)
    return OutcomeRow(
        place,
        subject.name(outcome.name),
        outcome.samples,
        outcome.right,
        recall,
        _interval(recall, outcome.samples),
        _share(outcome.right, outcome.predicted),
        _f1(outcome),
        outcome.roc.area if outcome.roc is not None else None,
        validation,
    )


def _worst(subject: Subject) -> Worst | None:
    found = [WorstView.model_validate(each) for each in subject.view.task_parts.get("worst", [])]
    shown = found[: subject.limits.worst]
    more = left_out(len(shown), len(found), "samples")
    note = f"Samples whose label got the lowest probability, the lowest first. {more}"
    return Worst("Worst classified", note, tuple(_sample(subject, each) for each in shown)) if shown else None


def _sample(subject: Subject, each: WorstView) -> WorstSample:
    right = each.label == each.predicted
    return WorstSample(
        None if each.picture is None else picture(each.picture, 96),
        None if each.words is None else shorten(each.words, WORDS),
        (
            ("label", shorten(each.label, 40), "plain", each.probability),
            ("predicted", shorten(each.predicted, 40), "good" if right else "bad", each.predicted_probability),
        ),
        key=shorten(each.key, 120),
        file=file_link(subject, each.path),
    )


PAGES = TaskPages(
    shares=frozenset({"accuracy", "f1_macro", "recall_macro"}),
    proportions=frozenset({"accuracy"}),
    worst=worst_samples,
    results=results,
    summary=summary,
    classification=tell_classification,
)
