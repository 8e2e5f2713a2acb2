"""What the trained network does on the test split: its metrics, its pictures, and what its task shows of it."""

from __future__ import annotations

from contracts.artifacts import CheckpointManifest, EvaluationReport
from inspection.page.data import picture
from inspection.page.subject import Subject, left_out, tile
from inspection.tasks import find_pages, show_metric
from pages.markup import Html, element, figure, join, section, shorten, table
from pages.quantities import metric_number

TITLE = "Results"
# More of a task are in the table.
_MOST_TILES = 8


def results(subject: Subject) -> Html:
    """Return the section on the trained network."""
    return section("results", TITLE, *result_parts(subject))


def result_parts(subject: Subject) -> list[Html]:
    """Return what is in it; the stage page of training has it too."""
    found = subject.view.evaluation
    if found is None:
        return [_metrics(subject), subject.absent("results", "train", "The evaluation on the test split")]
    pages = find_pages(found.task)
    parts = [_tiles(found)] if pages is None else pages.results(subject, found)
    return [*parts, _pictures(subject), _metrics(subject)]


def _tiles(found: EvaluationReport) -> Html:
    first = found.headline.metric
    names = sorted(found.metrics, key=lambda name: (name != first, name))
    tiles = [
        tile(
            shorten(title(name), 40),
            figure(f"results.{name}", found.metrics[name], show_metric(found.task, name)),
            f"test split, {found.samples:,} samples" if name == first else "test split",
        )
        for name in names[:_MOST_TILES]
    ]
    tiles.append(tile("Loss", figure("results.loss", found.loss, metric_number), "test split"))
    return element("div", *tiles, class_="tiles")


def title(metric: str) -> str:
    """Return a metric's name in words."""
    return metric.replace("_", " ").capitalize()


def _pictures(subject: Subject) -> Html:
    found = subject.view.task_pictures
    if not found:
        return Html("")
    shown = found[: subject.limits.worst]
    return join(
        [
            element("h3", "Pictures"),
            element(
                "div",
                *(
                    element("figure", element("figcaption", subject.name(each.label)), picture(each, each.width))
                    for each in shown
                ),
                id="task-pictures",
            ),
            element("p", left_out(len(shown), len(found), "pictures"), class_="note"),
        ]
    )


def _metrics(subject: Subject) -> Html:
    trained = subject.view.checkpoint
    if trained is None:
        return Html("")
    rows = [
        [
            element("code", shorten(name, 60)),
            figure(f"metrics.{name}", value, show_metric(subject.view.task, name)),
        ]
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
