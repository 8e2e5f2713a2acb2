"""What the trained network does on the test split: its metrics, and what its task shows of it."""

from __future__ import annotations

from collections.abc import Iterator

from contracts.artifacts import CheckpointManifest, EvaluationReport
from inspection.page.subject import NO_VALUE, Subject
from inspection.tasks import find_pages, is_share
from pages.markup import Html, shorten
from pages.parts import Cell, Figure, Part, Table, Text, Tile, Tiles, Title, Words, absent, section
from pages.quantities import count

TITLE = "Results"
# More of a task are in the table.
_MOST_TILES = 8


def results(subject: Subject) -> Html:
    """Return the section on the trained network."""
    found, checkpoint = subject.view.evaluation, subject.view.checkpoint
    parts: list[Part | None] = []
    if found is None:
        parts.append(absent("results", subject.why_absent("train", "The evaluation on the test split")))
    else:
        pages = find_pages(found.task)
        parts.append(_tiles(found) if pages is None else pages.results(subject, found))
    if checkpoint is not None:
        parts += _checkpoint(subject, checkpoint)
    return section("results", TITLE, *parts)


def _tiles(found: EvaluationReport) -> Tiles:
    first = found.headline.metric
    names = sorted(found.metrics, key=lambda name: (name != first, name))[:_MOST_TILES]
    samples = f", {count(found.samples)} samples"
    tiles = [
        Tile(
            shorten(title(name), 40),
            Figure(f"results.{name}", found.metrics[name], unit_of(found.task, name)),
            f"test split{samples if place == 0 else ''}",
        )
        for place, name in enumerate(names)
    ]
    return Tiles([*tiles, Tile("Loss", Figure("results.loss", found.loss, "metric_number"), "test split")])


def title(metric: str) -> str:
    """Return a metric's name in words."""
    return metric.replace("_", " ").capitalize()


def unit_of(task: str, metric: str) -> str:
    """Return the name of what shows a metric (pages/quantities.py)."""
    return "exact_percent" if is_share(task, metric) else "metric_number"


def _checkpoint(subject: Subject, trained: CheckpointManifest) -> Iterator[Part]:
    steps = _steps(subject, trained)
    said = f"Step {count(trained.best_step)}{f' of {count(steps)} that the training had' if steps else ''}"
    said += f", epoch {count(trained.epoch)}{f', weights of the {trained.evaluated}' if trained.evaluated else ''}"
    said += f"; ended by {trained.ended_by}." if trained.ended_by else "."
    yield Title("Best checkpoint")
    yield Text(said)
    yield Text(f"It started with {'random weights' if trained.initial is None else trained.initial.in_words()}.")
    names: dict[str, dict[str, float]] = {}
    for name, value in sorted(trained.metrics.items()):
        split, _, rest = name.partition("_")
        is_known = split in ("validation", "test") and bool(rest)
        names.setdefault(rest if is_known else name, {})[split if is_known else ""] = value
    listed = list(names.items())[: subject.limits.rows]
    # Of neither split.
    columns = {"Validation": "validation", "Test": "test"} | (
        {"Other": ""} if any("" in values for _, values in listed) else {}
    )

    def row(name: str, values: dict[str, float]) -> tuple[Cell, ...]:
        shown, unit = shorten(name, 60), unit_of(subject.view.task, name)
        keys = {split: f"metrics.{split}{'_' if split else ''}{shown}" for split in columns.values()}
        return (
            Words(shown, style="code"),
            *(Figure(key, values.get(split), unit, NO_VALUE) for split, key in keys.items()),
        )

    caption = "Metrics of the best checkpoint, by split"
    yield Table("metrics", caption, ("Metric", *columns), [row(*each) for each in listed])


def _steps(subject: Subject, trained: CheckpointManifest) -> int | None:
    """Return how many steps the training has had: the manifest knows its own step only, which is the best one's."""
    account = subject.view.goodput
    return None if account is None or account.steps < max(trained.best_step, trained.step) else account.steps
