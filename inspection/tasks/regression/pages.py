"""A regression on a run's page: figures, the distribution of residuals, and the samples that are farthest off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from contracts.artifacts import Document, EvaluationReport
from contracts.artifacts.regression import RegressionDetails
from inspection.page.subject import Subject, left_out
from inspection.run.pictures import require_index
from inspection.tasks import TaskPages
from inspection.tasks.pictures import NamedSamples
from pages.chart import bars
from pages.markdown import Markdown
from pages.markup import Html
from pages.parts import Cell, Figure, Part, Parts, Strips, Table, Tile, Tiles, Title, Words
from pages.quantities import number, several
from pages.rendering import render, write
from pages.stage import Block, Summary, first

# Of all that the document names.
WORST = 24
# Bars of the residuals, on either side of 0, and the share of the samples that they are chosen to hold.
_BARS, _SHARE = 20, 0.99
_SUMMARY_ROWS = 10


class WorstView(Document):
    """A sample whose value is far from its target."""

    key: str
    words: str | None
    """The beginning of its row; None: it could not be read, or is not to be."""
    target: float
    value: float


def worst_samples(samples: NamedSamples) -> list[WorstView]:
    """Return the samples whose values are farthest from their targets."""
    details = RegressionDetails.of(samples.evaluation)
    assert details is not None, samples.evaluation.task
    require_index(samples.door, samples.folder_uri, samples.manifest)
    return [
        WorstView(key=one.key, words=samples.words(one.place, one.key), target=one.target, value=one.value)
        for one in details.worst[:WORST]
    ]


def results(subject: Subject, report: EvaluationReport) -> Html:
    """Return the part of section Results."""
    found = RegressionDetails.of(report)
    assert found is not None, report.task
    unit = f"in the unit of {found.target}"

    def tile(title: str, name: str, value: float | None, about: str) -> Tile:
        return Tile(title, Figure(f"results.{name}", value, "number"), about)

    tiles = [
        tile("R2", "r2", report.metrics.get("r2"), "test split: 1 is exact, 0 is the mean"),
        tile("Mean absolute error", "mae", report.metrics.get("mae"), f"test split, {unit}"),
        tile("Root of mean square", "rmse", report.metrics.get("rmse"), f"test split, {unit}"),
        tile("Loss", "loss", report.loss, "mean square in standard deviations of the target"),
    ]
    residuals = _residuals(found, unit) if found.residuals else []
    return render(Parts([Tiles(tiles), *residuals, *_worst(subject, found.target, unit)]))


def _residuals(found: RegressionDetails, unit: str) -> list[Part]:
    heights, reach = join_bins(found.residuals)
    edge = (reach + 0.5) * found.residual_width
    words = (
        f"Values less targets, from {number(-edge)} to {number(edge)} {unit}; what is beyond is in the outermost bars. "
        f"The highest bar has {several(max(heights), 'sample')}."
    )
    return [Title("Residuals"), Strips([("", words, bars(heights))], "residuals")]


def _worst(subject: Subject, target: str, unit: str) -> list[Part]:
    worst = [WorstView.model_validate(one) for one in subject.view.task_parts.get("worst", [])]
    shown = worst[: subject.limits.worst]
    rows: list[tuple[Cell, ...]] = [
        (
            Words("not shown", style="missing") if one.words is None else one.words,
            Figure(f"worst.{place}.target", one.target, "number"),
            Figure(f"worst.{place}.value", one.value, "number"),
            Figure(f"worst.{place}.residual", one.value - one.target, "number"),
        )
        for place, one in enumerate(shown)
    ]
    table = Table(
        "worst",
        f"Samples of the test split that are farthest off, the farthest first; numbers are {unit}",
        ("Row", target, "Predicted", "Residual"),
        rows,
        note=left_out(len(shown), len(worst), "samples"),
    )
    return [Title("Farthest off"), table] if shown else []


def join_bins(residuals: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Return samples by bar, from the lowest residuals to the highest, and the last bin inside.

    The bars hold all but a hundredth of the samples; what is beyond is added to those at the ends.

    Args:
        residuals: Bins that are not empty: number, from 0 in the middle, and samples.
    """
    sizes: Counter[int] = Counter()
    for place, samples in residuals:
        sizes[abs(place)] += samples
    inside, reach = 0, 0
    for place in sorted(sizes):
        inside, reach = inside + sizes[place], place
        if inside >= _SHARE * sizes.total():
            break
    number_of_bars = 2 * min(_BARS, reach) + 1
    heights = [0] * number_of_bars
    for place, samples in residuals:
        share = (min(max(place, -reach), reach) + reach + 0.5) / (2 * reach + 1)
        heights[int(share * number_of_bars)] += samples
    return heights, reach


def summary(report: EvaluationReport) -> Markdown:
    """Return the part of the summary.

    Raises:
        DataError: The details of the evaluation are damaged.
    """
    found = RegressionDetails.of(report)
    assert found is not None, report.task
    rows = [
        (one.key[:12], *(f"{value:.6g}" for value in (one.target, one.value, one.value - one.target)))
        for one in found.worst[:_SUMMARY_ROWS]
    ]
    head = ("sample", "target", "predicted", "residual")
    return write(Summary([Block("Farthest off", head=head, rows=first(rows))]))


PAGES = TaskPages(
    shares=frozenset(),
    proportions=frozenset(),
    worst=worst_samples,
    results=results,
    summary=summary,
    classification=None,
)
