"""Classifications on a run's page: figures, the confusion matrix, curves, classes, and the worst samples."""

from __future__ import annotations

from typing import Any

from contracts.artifacts import EvaluationReport, ShardManifest
from contracts.artifacts.classification import ClassificationDetails, ClassOutcome
from inspection.page.data import picture
from inspection.page.subject import NO_VALUE, Subject, left_out, tile
from inspection.run.door import Door
from inspection.tasks import TaskPages
from inspection.tasks.classification.confusion import confusion
from inspection.tasks.classification.roc import roc
from inspection.tasks.classification.summary import summary
from inspection.tasks.classification.vertex import tell_classification
from inspection.tasks.classification.worst import WorstView, worst_samples
from inspection.tasks.pictures import WORDS
from pages.markup import Html, bar, element, figure, join, shorten, table
from pages.quantities import count, exact_percent, number, percent

BESIDE = 12
"""Classes whose matrix leaves room beside it."""


def read(
    door: Door, folder_uri: str, manifest: ShardManifest, evaluation: EvaluationReport, pictures: bool
) -> dict[str, Any]:
    """Return the worst samples, with their images.

    Args:
        door: Of the line.
        folder_uri: Of the shards.
        manifest: Theirs.
        evaluation: On the test split.
        pictures: Whether to read what samples hold.
    """
    found = worst_samples(door, folder_uri, manifest, evaluation, pictures=pictures)
    return {"worst": [each.model_dump(mode="json") for each in found]}


def results(subject: Subject, report: EvaluationReport) -> list[Html]:
    """Return the parts of section Results."""
    found = ClassificationDetails.of(report)
    assert found is not None, report.task
    matrix = join([element("h3", "Confusion"), confusion(subject, found)])
    classes = join([element("h3", "Classes"), _classes(subject, found)])
    curves = roc(subject, found, report.samples)
    if len(found.classes) <= BESIDE:
        both = element("div", element("div", matrix, curves), element("div", classes), class_="duo")
        return [_tiles(report, found), both, _worst(subject)]
    return [_tiles(report, found), matrix, classes, curves, _worst(subject)]


def _tiles(report: EvaluationReport, found: ClassificationDetails) -> Html:
    recalls = [outcome.right / outcome.samples for outcome in found.classes if outcome.samples]
    areas = [outcome.roc.area for outcome in found.classes if outcome.roc is not None]
    tiles = [
        tile("Accuracy", figure("results.accuracy", report.metrics.get("accuracy"), exact_percent), "test split"),
        tile("Wrong", figure("results.wrong", report.samples - found.right, count), f"of {report.samples:,} samples"),
        tile("Loss", figure("results.loss", report.loss, number), "mean cross-entropy, nats"),
        tile(
            "Mean recall",
            figure("results.recall", sum(recalls) / len(recalls) if recalls else None, percent),
            "over classes: each counts the same",
        ),
        tile(
            "Mean ROC area",
            figure("results.roc_area", sum(areas) / len(areas) if areas else None, lambda v: f"{v:.4f}"),
            "one class against the rest",
        ),
    ]
    return element("div", *tiles, class_="tiles")


def _recall(outcome: ClassOutcome) -> float | None:
    return outcome.right / outcome.samples if outcome.samples else None


def _classes(subject: Subject, found: ClassificationDetails) -> Html:
    places, limit, note = list(range(len(found.classes))), subject.limits.classes, ""
    if len(places) > limit:
        # Those without a sample say nothing, and come last.
        places.sort(key=lambda place: (_recall(found.classes[place]) is None, _recall(found.classes[place]) or 0.0))
        note = f"Of {len(places):,} classes the {limit} with the lowest recall are shown."
    rows = []
    for place in places[:limit]:
        outcome = found.classes[place]
        recall = _recall(outcome)
        precision = outcome.right / outcome.predicted if outcome.predicted else None
        area = outcome.roc.area if outcome.roc is not None else None
        rows.append(
            [
                subject.name(outcome.name),
                figure(f"class.{place}.samples", outcome.samples, count),
                figure(f"class.{place}.right", outcome.right, count),
                join([figure(f"class.{place}.recall", recall, percent, "no sample"), bar(recall)]),
                join([figure(f"class.{place}.precision", precision, percent, "never predicted"), bar(precision)]),
                figure(f"class.{place}.roc_area", area, lambda v: f"{v:.4f}", NO_VALUE),
            ]
        )
    head = ["Class", "Samples", "Right", "Recall", "Precision", "ROC area"]
    return table("Each class on the test split", head, rows, id_="class-outcomes", note=note)


def _worst(subject: Subject) -> Html:
    found = [WorstView.model_validate(each) for each in subject.view.task_parts.get("worst", [])]
    if not found:
        return Html("")
    shown = found[: subject.limits.worst]
    more = left_out(len(shown), len(found), "samples")
    class_ = "sheet worst" if all(each.words is None for each in shown) else "sheet worst words"
    return join(
        [
            element("h3", "Worst classified"),
            element("ul", *(_sample(each) for each in shown), class_=class_, id="worst"),
            element("p", f"Samples whose label got the lowest probability, the lowest first. {more}", class_="note"),
        ]
    )


def _sample(each: WorstView) -> Html:
    if each.picture is not None:
        shown = picture(each.picture, 96)
    elif each.words is not None:
        shown = element("q", shorten(each.words, WORDS)) if each.words else element("span", "empty", class_="missing")
    else:
        shown = element("span", "not shown", class_="missing picture")
    right = each.label == each.predicted
    return element(
        "li",
        shown,
        element(
            "span", element("small", "label "), element("b", shorten(each.label, 40)), f" {percent(each.probability)}"
        ),
        element(
            "span",
            element("small", "said "),
            element("b", shorten(each.predicted, 40), class_="good" if right else "bad"),
            f" {percent(each.predicted_probability)}",
        ),
        title=shorten(each.key, 120),
    )


PAGES = TaskPages(
    shares=frozenset({"accuracy", "f1_macro", "recall_macro"}),
    proportions=frozenset({"accuracy"}),
    read=read,
    results=results,
    summary=summary,
    classification=tell_classification,
)
