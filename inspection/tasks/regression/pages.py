"""A regression on a run's page: figures, the distribution of residuals, and the samples that are farthest off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from contracts.artifacts import Document, EvaluationReport, ShardManifest
from contracts.artifacts.regression import RegressionDetails
from inspection.page.chart import bars
from inspection.page.subject import Subject, left_out, tile
from inspection.run.door import Door
from inspection.run.pictures import require_index
from inspection.stages.markdown import section
from inspection.stages.markdown import table as markdown_table
from inspection.tasks import TaskPages
from inspection.tasks.pictures import words_of
from pages.markup import Html, element, figure, join, table
from pages.quantities import number, several

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


def read(
    door: Door, folder_uri: str, manifest: ShardManifest, evaluation: EvaluationReport, pictures: bool
) -> dict[str, Any]:
    """Return the worst samples, with their rows.

    Args:
        door: Of the line.
        folder_uri: Of the shards.
        manifest: Theirs.
        evaluation: On the test split.
        pictures: Whether to read rows.
    """
    details = RegressionDetails.of(evaluation)
    assert details is not None, evaluation.task
    require_index(door, folder_uri, manifest)
    found = [
        WorstView(
            key=one.key,
            words=words_of(door, folder_uri, manifest, evaluation, one.place, one.key) if pictures else None,
            target=one.target,
            value=one.value,
        )
        for one in details.worst[:WORST]
    ]
    return {"worst": [one.model_dump(mode="json") for one in found]}


def results(subject: Subject, report: EvaluationReport) -> list[Html]:
    """Return the parts of section Results."""
    found = RegressionDetails.of(report)
    assert found is not None, report.task
    return [_tiles(report, found), _residuals(found), _worst(subject, found)]


def _tiles(report: EvaluationReport, found: RegressionDetails) -> Html:
    unit = f"test split, in the unit of {found.target}"
    tiles = [
        tile("R2", figure("results.r2", report.metrics.get("r2"), number), "test split: 1 is exact, 0 is the mean"),
        tile("Mean absolute error", figure("results.mae", report.metrics.get("mae"), number), unit),
        tile("Root of mean square", figure("results.rmse", report.metrics.get("rmse"), number), unit),
        tile("Loss", figure("results.loss", report.loss, number), "mean square in standard deviations of the target"),
    ]
    return element("div", *tiles, class_="tiles")


def _residuals(found: RegressionDetails) -> Html:
    if not found.residuals:
        return Html("")
    heights, reach = join_bins(found.residuals)
    edge = (reach + 0.5) * found.residual_width
    words = (
        f"Values less targets, from {number(-edge)} to {number(edge)} in the unit of {found.target}; what is beyond is "
        f"in the outermost bars. The highest bar has {several(max(heights), 'sample')}."
    )
    return join(
        [
            element("h3", "Residuals"),
            element("div", bars(heights, label=words), class_="strip", id="residuals"),
            element("p", words, class_="note"),
        ]
    )


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


def _worst(subject: Subject, found: RegressionDetails) -> Html:
    worst = [WorstView.model_validate(one) for one in subject.view.task_parts.get("worst", [])]
    if not worst:
        return Html("")
    shown = worst[: subject.limits.worst]
    rows = [
        [
            one.words if one.words is not None else element("span", "not shown", class_="missing"),
            figure(f"worst.{place}.target", one.target, number),
            figure(f"worst.{place}.value", one.value, number),
            figure(f"worst.{place}.residual", one.value - one.target, number),
        ]
        for place, one in enumerate(shown)
    ]
    more = left_out(len(shown), len(worst), "samples")
    head = ["Row", f"{found.target}", "Said", "Residual"]
    unit = f"in the unit of {found.target}"
    caption = f"Samples of the test split that are farthest off, the farthest first; numbers are {unit}"
    return join([element("h3", "Farthest off"), table(caption, head, rows, id_="worst", note=more)])


def summary(report: EvaluationReport) -> list[str]:
    """Return lines of Markdown.

    Raises:
        DataError: The details of the evaluation are damaged.
    """
    found = RegressionDetails.of(report)
    assert found is not None, report.task
    rows = (
        (one.key[:12], f"{one.target:.6g}", f"{one.value:.6g}", f"{one.value - one.target:.6g}")
        for one in found.worst[:_SUMMARY_ROWS]
    )
    return section("Farthest off", list(markdown_table(["sample", "target", "said", "residual"], rows)))


PAGES = TaskPages(
    shares=frozenset(), proportions=frozenset(), read=read, results=results, summary=summary, classification=None
)
