"""Classifications on a run's page: figures, the confusion matrix, curves, classes, and the worst samples."""

from __future__ import annotations

from contracts.artifacts import EvaluationReport
from contracts.artifacts.classification import ClassificationDetails, ClassOutcome
from inspection.page.data import file_link, picture
from inspection.page.subject import NO_VALUE, Subject, left_out
from inspection.run.headline import binomial_interval, count_left_out
from inspection.tasks import TaskPages
from inspection.tasks.classification.confusion import confusion
from inspection.tasks.classification.roc import roc
from inspection.tasks.classification.vertex import tell_classification
from inspection.tasks.classification.worst import WorstView, worst_samples
from inspection.tasks.pictures import WORDS
from pages.markup import Html, shorten
from pages.parts import (
    Cell,
    Figure,
    Grid,
    Part,
    Parts,
    Table,
    Text,
    Tile,
    Tiles,
    Title,
    Worst,
    WorstSample,
)
from pages.quantities import count, exact_percent, percent
from pages.rendering import render

BESIDE = 12
"""Classes whose matrix leaves room beside it."""


def results(subject: Subject, report: EvaluationReport) -> Html:
    """Return the part of section Results."""
    found = ClassificationDetails.of(report)
    assert found is not None, report.task
    matrix: list[Part] = [Title("Confusion"), confusion(subject, found)]
    if found.confusion_left_out:
        more = f"{count(found.confusion_left_out)} samples in the smallest cells were left out by the evaluation."
        matrix.append(Text(more, "note"))
    classes: list[Part] = [Title("Classes"), _classes(subject, found)]
    curves = roc(subject, found)
    parts: list[Part] = [*matrix, *classes, *curves]
    if len(found.classes) <= BESIDE:
        parts = [Grid([Grid([*matrix, *curves], "whole"), Grid(classes, "")], "duo")]
    return render(Parts([_tiles(report, found), *parts, *_worst(subject)]))


def _tiles(report: EvaluationReport, found: ClassificationDetails) -> Tiles:
    accuracy, samples = report.metrics.get("accuracy"), report.samples
    recalls = [recall for outcome in found.classes if (recall := _recall(outcome)) is not None]
    scores = [score for outcome in found.classes if outcome.samples and (score := _f1(outcome)) is not None]
    without = count_left_out(report)
    means = f"over classes: each counts the same{f', {without:,} without a sample left out' if without else ''}"
    interval = _interval(accuracy, samples)
    spread = f"{exact_percent(interval[0])} to {exact_percent(interval[1])} (95 % interval), " if interval else ""
    f1 = report.metrics.get("f1_macro", _mean(scores))
    area = found.roc.area if found.roc is not None else None
    figures = [
        ("Accuracy", "accuracy", accuracy, "exact_percent", f"{spread}test split"),
        ("Wrong", "wrong", samples - found.right, "count", f"of {count(samples)} samples"),
        ("Macro F1", "f1_macro", f1, "exact_percent", means),
        ("Mean recall", "recall", _mean(recalls), "percent", means),
        ("Loss", "loss", report.loss, "number", "mean cross-entropy, nats"),
    ]
    if area is not None:
        figures.insert(-1, ("ROC area", "roc_area", area, "area", "of the second class's probability"))
    return Tiles(
        [Tile(title, Figure(f"results.{name}", value, unit), about) for title, name, value, unit, about in figures]
    )


def _classes(subject: Subject, found: ClassificationDetails) -> Table:
    """Return each class."""
    places, limit, note = list(range(len(found.classes))), subject.limits.classes, ""
    if len(places) > limit:
        # Those without a sample say nothing, and come last.
        places.sort(key=lambda place: (_recall(found.classes[place]) is None, _recall(found.classes[place]) or 0.0))
        note = f"Of {len(places):,} classes the {limit} with the lowest recall are shown."

    def row(place: int) -> tuple[Cell, ...]:
        one, key = found.classes[place], f"class.{place}"
        recall, precision = _recall(one), _share(one.right, one.predicted)
        interval = _interval(recall, one.samples)
        spread = f"({percent(interval[0])} to {percent(interval[1])})" if interval else ""
        return (
            subject.name(one.name),
            Figure(f"{key}.samples", one.samples, "count"),
            Figure(f"{key}.right", one.right, "count"),
            Figure(f"{key}.recall", recall, "percent", "no sample", spread, bar=recall),
            Figure(f"{key}.precision", precision, "percent", "never predicted", bar=precision),
            Figure(f"{key}.f1", _f1(one), "percent", NO_VALUE),
        )

    return Table(
        "class-outcomes",
        "Each class on the test split; in brackets: 95 % intervals",
        ("Class", "Samples", "Right", "Recall", "Precision", "F1"),
        [row(place) for place in places[:limit]],
        note=note,
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


def _worst(subject: Subject) -> list[Part]:
    found = [WorstView.model_validate(each) for each in subject.view.task_parts.get("worst", [])]
    shown = found[: subject.limits.worst]
    more = left_out(len(shown), len(found), "samples")
    note = f"Samples whose label got the lowest probability, the lowest first. {more}"
    return [Worst("Worst classified", note, tuple(_sample(subject, each) for each in shown))] if shown else []


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
    classification=tell_classification,
)
