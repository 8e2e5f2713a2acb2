"""What the trained network does on the test split: its metrics, its pictures, and what its task shows of it."""

from __future__ import annotations

from contracts.artifacts import CheckpointManifest, EvaluationReport
from inspection.page.data import picture
from inspection.page.subject import Subject, left_out
from inspection.tasks import find_pages, is_share
from pages.markup import Html, shorten
from pages.rendering import render
from pages.run.results import BestCheckpoint, MetricRow, MetricTiles, ResultsSection

TITLE = "Results"
# More of a task are in the table.
_MOST_TILES = 8


def results(subject: Subject) -> Html:
    """Return the section on the trained network."""
    found = subject.view.evaluation
    checkpoint = None if subject.view.checkpoint is None else _checkpoint(subject, subject.view.checkpoint)
    if found is None:
        why = subject.why_absent("train", "The evaluation on the test split")
        return render(ResultsSection(TITLE, why, checkpoint=checkpoint))
    pages = find_pages(found.task)
    pictures = subject.view.task_pictures
    shown = pictures[: subject.limits.worst]
    return render(
        ResultsSection(
            TITLE,
            task=_tiles(found) if pages is None else pages.results(subject, found),
            pictures=tuple((subject.name(each.label), picture(each, each.width)) for each in shown),
            left_out=left_out(len(shown), len(pictures), "pictures"),
            checkpoint=checkpoint,
        )
    )


def _tiles(found: EvaluationReport) -> Html:
    first = found.headline.metric
    names = sorted(found.metrics, key=lambda name: (name != first, name))[:_MOST_TILES]
    metrics = ((shorten(title(name), 40), name, found.metrics[name], unit_of(found.task, name)) for name in names)
    return render(MetricTiles(found.samples, found.loss, tuple(metrics)))


def title(metric: str) -> str:
    """Return a metric's name in words."""
    return metric.replace("_", " ").capitalize()


def unit_of(task: str, metric: str) -> str:
    """Return the name of what shows a metric (pages/quantities.py)."""
    return "exact_percent" if is_share(task, metric) else "metric_number"


def _checkpoint(subject: Subject, trained: CheckpointManifest) -> BestCheckpoint:
    names: dict[str, dict[str, float]] = {}
    for name, value in sorted(trained.metrics.items()):
        split, _, rest = name.partition("_")
        is_known = split in ("validation", "test") and bool(rest)
        names.setdefault(rest if is_known else name, {})[split if is_known else "other"] = value
    return BestCheckpoint(
        step=trained.best_step,
        steps=_steps(subject, trained),
        epoch=trained.epoch,
        weights=trained.evaluated or "",
        ended_by=trained.ended_by,
        started_with="random weights" if trained.initial is None else trained.initial.in_words(),
        metrics=tuple(
            MetricRow(
                shorten(name, 60),
                unit_of(subject.view.task, name),
                values.get("validation"),
                values.get("test"),
                values.get("other"),
            )
            for name, values in list(names.items())[: subject.limits.rows]
        ),
    )


def _steps(subject: Subject, trained: CheckpointManifest) -> int | None:
    """Return how many steps the training has had: the manifest knows its own step only, which is the best one's."""
    account = subject.view.goodput
    return None if account is None or account.steps < max(trained.best_step, trained.step) else account.steps
