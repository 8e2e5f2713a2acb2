"""What the trained network does on the test split: its metrics, what it confuses, and what it is most wrong about."""

from __future__ import annotations

from collections.abc import Callable

from contracts.artifacts import CheckpointManifest, ClassOutcome, EvaluationReport
from inspection.page.confusion import confusion
from inspection.page.data import picture
from inspection.page.roc import roc
from inspection.page.subject import NO_VALUE, Subject, left_out, tile
from inspection.run.view import WorstView
from pages.markup import Html, bar, element, figure, join, section, shorten, table
from pages.quantities import count, exact_percent, number, percent

TITLE = "Results"
BESIDE = 12
"""Classes whose matrix leaves room beside it."""


def results(subject: Subject) -> Html:
    """Return the section on the trained network."""
    return section("results", TITLE, *result_parts(subject))


def result_parts(subject: Subject) -> list[Html]:
    """Return what is in it; the stage page of training has it too."""
    found = subject.view.evaluation
    if found is None:
        return [_metrics(subject), subject.absent("results", "train", "The evaluation on the test split")]
    matrix = join([element("h3", "Confusion"), confusion(subject, found)])
    classes = join([element("h3", "Classes"), _classes(subject, found)])
    curves = roc(subject, found)
    if len(found.classes) <= BESIDE:
        both = element("div", element("div", matrix, curves), element("div", classes), class_="duo")
        return [_tiles(found), both, _worst(subject), _metrics(subject)]
    return [_tiles(found), matrix, classes, curves, _worst(subject), _metrics(subject)]


def _metrics(subject: Subject) -> Html:
    trained = subject.view.checkpoint
    if trained is None:
        return Html("")
    rows = [
        [element("code", shorten(name, 60)), figure(f"metrics.{name}", value, _metric(name))]
        for name, value in sorted(trained.metrics.items())[: subject.limits.rows]
    ]
    said = (
        f"Step {trained.best_step:,}{_of_steps(subject, trained)}, epoch {trained.epoch:,}"
        + (f", weights of the {trained.evaluated}" if trained.evaluated else "")
        + (f"; ended by {trained.ended_by}" if trained.ended_by else "")
        + "."
    )
    return join(
        [
            element("h3", "Best checkpoint"),
            element("p", said),
            element("p", _begun(trained)),
            table("Metrics of the best checkpoint", ["Metric", "Value"], rows, id_="metrics"),
        ]
    )


def _begun(trained: CheckpointManifest) -> str:
    """Say what the weights were before the first step."""
    return (
        "It started with random weights."
        if trained.initial is None
        else f"It started with {trained.initial.in_words()}."
    )


def _of_steps(subject: Subject, trained: CheckpointManifest) -> str:
    """Return how many steps the training has had: the manifest knows its own step only, which is the best one's."""
    account = subject.view.goodput
    if account is None or account.steps < max(trained.best_step, trained.step):
        return ""
    return f" of {account.steps:,} that the training had"


def _metric(name: str) -> Callable[[float], str]:
    return exact_percent if name.endswith("accuracy") else number


def _tiles(found: EvaluationReport) -> Html:
    right = sum(outcome.right for outcome in found.classes)
    recalls = [outcome.right / outcome.samples for outcome in found.classes if outcome.samples]
    areas = [outcome.roc.area for outcome in found.classes if outcome.roc is not None]
    tiles = [
        tile("Accuracy", figure("results.accuracy", found.accuracy, exact_percent), "test split"),
        tile("Wrong", figure("results.wrong", found.samples - right, count), f"of {found.samples:,} samples"),
        tile("Loss", figure("results.loss", found.loss, number), "mean cross-entropy, nats"),
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


def _classes(subject: Subject, found: EvaluationReport) -> Html:
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
    found = subject.view.worst
    if not found:
        return Html("")
    shown = found[: subject.limits.worst]
    more = left_out(len(shown), len(found), "samples")
    return join(
        [
            element("h3", "Worst classified"),
            element("ul", *(_sample(each) for each in shown), class_="sheet worst", id="worst"),
            element("p", f"Samples whose label got the lowest probability, the lowest first. {more}", class_="note"),
        ]
    )


def _sample(each: WorstView) -> Html:
    shown = (
        picture(each.picture, 96) if each.picture is not None else element("span", "no image", class_="missing picture")
    )
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
