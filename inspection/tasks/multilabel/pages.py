"""Several labels on a run's page: figures, every class at its threshold, and the samples with the largest loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contracts.artifacts import EvaluationReport, ShardManifest
from contracts.artifacts.multilabel import LabelOutcome, MultilabelDetails
from inspection.page.data import picture
from inspection.page.subject import NO_VALUE, Subject, left_out, tile
from inspection.run.door import Door
from inspection.tasks import TaskPages
from inspection.tasks.multilabel.summary import summary
from inspection.tasks.multilabel.worst import SaidLabel, WorstView, worst_samples
from pages.markup import Html, bar, element, figure, join, shorten, table
from pages.quantities import count, exact_percent, number, percent


def read(
    door: Door, folder_uri: str, manifest: ShardManifest, evaluation: EvaluationReport, pictures: bool
) -> dict[str, Any]:
    """Return the worst samples, with their images.

    Args:
        door: Of the line.
        folder_uri: Of the shards.
        manifest: Theirs.
        evaluation: On the test split.
        pictures: Whether to read images.
    """
    found = worst_samples(door, folder_uri, manifest, evaluation, pictures=pictures)
    return {"worst": [each.model_dump(mode="json") for each in found]}


def results(subject: Subject, report: EvaluationReport) -> list[Html]:
    """Return the parts of section Results."""
    found = MultilabelDetails.of(report)
    assert found is not None, report.task
    return [_tiles(report, found), join([element("h3", "Labels"), _labels(subject, found)]), _worst(subject)]


def _tiles(report: EvaluationReport, found: MultilabelDetails) -> Html:
    name = report.headline.metric
    at_threshold = [one.f1 for one in found.classes if one.f1 is not None]
    mean = sum(at_threshold) / len(at_threshold) if at_threshold else None
    tiles = [
        tile(
            "Mean average precision",
            figure(f"results.{name}", report.metrics.get(name), exact_percent),
            "test split, over labels" + (", in bins" if name.endswith("_binned") else ""),
        ),
        tile("Mean F1", figure("results.f1_at_thresholds", mean, percent), "over labels, each at its threshold"),
        tile("F1 at one half", figure("results.f1_macro", report.metrics.get("f1_macro"), percent), "over labels"),
        tile("All labels right", figure("results.exact", found.exact, count), f"of {report.samples:,} samples"),
        tile("Loss", figure("results.loss", report.loss, number), "mean over labels, nats"),
    ]
    return element("div", *tiles, class_="tiles")


def _labels(subject: Subject, found: MultilabelDetails) -> Html:
    places, limit, note = list(range(len(found.classes))), subject.limits.classes, ""
    if len(places) > limit:
        # Those without a sample say nothing, and come last.
        places.sort(key=lambda place: _rank(found.classes[place]))
        note = f"Of {len(places):,} labels the {limit} with the lowest average precision are shown."
    rows = []
    for place in places[:limit]:
        one = found.classes[place]
        rows.append(
            [
                subject.name(one.name),
                figure(f"label.{place}.positives", one.positives, count),
                _share(f"label.{place}.average_precision", one.average_precision, "no sample"),
                figure(f"label.{place}.threshold", one.threshold, lambda value: f"{value:.3f}"),
                _share(f"label.{place}.f1", one.f1, NO_VALUE),
                _share(f"label.{place}.precision", one.precision, "never said"),
                _share(f"label.{place}.recall", one.recall, "no sample"),
            ]
        )
    head = ["Label", "Samples", "Average precision", "Threshold", "F1", "Precision", "Recall"]
    caption = "Each label on the test split, at the threshold that was chosen on the validation split"
    return table(caption, head, rows, id_="label-outcomes", note=note)


def _rank(one: LabelOutcome) -> tuple[bool, float]:
    return one.average_precision is None, one.average_precision or 0.0


def _share(key: str, value: float | None, otherwise: str) -> Html:
    return join([figure(key, value, percent, otherwise), bar(value)])


def _worst(subject: Subject) -> Html:
    found = [WorstView.model_validate(each) for each in subject.view.task_parts.get("worst", [])]
    if not found:
        return Html("")
    shown = found[: subject.limits.worst]
    more = left_out(len(shown), len(found), "samples")
    return join(
        [
            element("h3", "Largest loss"),
            element("ul", *(_sample(each) for each in shown), class_="sheet worst", id="worst"),
            element("p", f"Samples with the largest loss, the largest first. {more}", class_="note"),
        ]
    )


def _sample(each: WorstView) -> Html:
    shown = (
        picture(each.picture, 96) if each.picture is not None else element("span", "no image", class_="missing picture")
    )
    labels = ", ".join(shorten(name, 40) for name in each.labels) or "none"
    return element(
        "li",
        shown,
        element("span", element("small", "loss "), element("b", number(each.loss))),
        element("span", element("small", "labels "), labels),
        *_said("missed", each.missed),
        *_said("wrongly said", each.wrong),
        title=shorten(each.key, 120),
    )


def _said(word: str, labels: Sequence[SaidLabel]) -> list[Html]:
    return [
        element(
            "span",
            element("small", f"{word} "),
            element("b", shorten(one.name, 40), class_="bad"),
            f" {percent(one.probability)}",
        )
        for one in labels
    ]


PAGES = TaskPages(
    shares=frozenset({"average_precision", "average_precision_binned", "f1_macro", "f1_micro"}),
    proportions=frozenset(),
    read=read,
    results=results,
    summary=summary,
    classification=None,
)
