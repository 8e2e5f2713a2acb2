"""Several labels on a run's page: figures, every class at its threshold, and the samples with the largest loss."""

from __future__ import annotations

from contracts.artifacts import EvaluationReport
from contracts.artifacts.multilabel import LabelOutcome, MultilabelDetails
from inspection.page.data import file_link, picture
from inspection.page.subject import Subject, left_out
from inspection.run.headline import count_left_out
from inspection.tasks import TaskPages
from inspection.tasks.multilabel.worst import WorstView, worst_samples
from pages.markup import Html, shorten
from pages.quantities import number
from pages.rendering import render
from pages.run.multilabel import LabelRow, MultilabelResults
from pages.run.results import Worst, WorstSample


def results(subject: Subject, report: EvaluationReport) -> Html:
    """Return the part of section Results."""
    found = MultilabelDetails.of(report)
    assert found is not None, report.task
    name = report.headline.metric
    at_threshold = [one.f1 for one in found.classes if one.positives and one.f1 is not None]
    places, limit, note = list(range(len(found.classes))), subject.limits.classes, ""
    if len(places) > limit:
        # Those without a sample say nothing, and come last.
        places.sort(key=lambda place: _rank(found.classes[place]))
        note = f"Of {len(places):,} labels the {limit} with the lowest average precision are shown."
    return render(
        MultilabelResults(
            metric=name,
            value=report.metrics.get(name),
            f1_at_thresholds=sum(at_threshold) / len(at_threshold) if at_threshold else None,
            f1_macro=report.metrics.get("f1_macro"),
            left_out=count_left_out(report),
            exact=found.exact,
            samples=report.samples,
            loss=report.loss,
            labels=tuple(_label(subject, place, found.classes[place]) for place in places[:limit]),
            note=note,
            worst=_worst(subject),
        )
    )


def _label(subject: Subject, place: int, one: LabelOutcome) -> LabelRow:
    return LabelRow(
        place,
        subject.name(one.name),
        one.positives,
        one.average_precision,
        one.threshold,
        one.f1,
        one.precision,
        one.recall,
    )


def _rank(one: LabelOutcome) -> tuple[bool, float]:
    return one.average_precision is None, one.average_precision or 0.0


def _worst(subject: Subject) -> Worst | None:
    found = [WorstView.model_validate(each) for each in subject.view.task_parts.get("worst", [])]
    shown = found[: subject.limits.worst]
    note = f"Samples with the largest loss, the largest first. {left_out(len(shown), len(found), 'samples')}"
    return Worst("Largest loss", note, tuple(_sample(subject, each) for each in shown)) if shown else None


def _sample(subject: Subject, each: WorstView) -> WorstSample:
    labels = ", ".join(shorten(name, 40) for name in each.labels) or "none"
    return WorstSample(
        None if each.picture is None else picture(each.picture, 96),
        None,
        (
            ("loss", number(each.loss), "plain", None),
            ("labels", labels, "", None),
            *(("missed", shorten(one.name, 40), "bad", one.probability) for one in each.missed),
            *(("wrongly predicted", shorten(one.name, 40), "bad", one.probability) for one in each.wrong),
        ),
        key=shorten(each.key, 120),
        file=file_link(subject, each.path),
    )


PAGES = TaskPages(
    shares=frozenset({"average_precision", "f1_macro", "f1_micro"}),
    proportions=frozenset(),
    worst=worst_samples,
    results=results,
    classification=None,
)
