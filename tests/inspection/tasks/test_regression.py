"""A regression on a run's page and in the summary of training."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.artifacts import EvaluationReport
from contracts.artifacts.regression import RegressionDetails, WorstValue
from contracts.errors import DataError
from inspection.page import render_report
from inspection.tasks import find_pages
from inspection.tasks.regression.pages import WorstView, join_bins
from tests.inspection import planted
from tests.inspection.page.test_sections import part, said
from tests.inspection.stages.documents import HOSTILE

TASK = "tabular_regression"


def make_evaluation(**changes: Any) -> EvaluationReport:
    details = RegressionDetails(
        target=HOSTILE,
        mean=100.0,
        std=20.0,
        residual_width=0.5,
        residuals=[(-40, 1), (-2, 3), (0, 90), (1, 6)],
        most_bin=2000,
        least=0.0,
        cell_width=1.0,
        num_cells=48,
        cells=[(0, 0, 100)],
        worst=[WorstValue(shard="test-0.tfrecord", key="0000", place=0, target=120.0, value=100.5)],
    )
    update: dict[str, Any] = {
        "task": TASK,
        "headline": {"metric": "r2", "direction": "max"},
        "metrics": {"r2": 0.875, "mae": 3.25, "rmse": 4.5},
        "details": details.model_dump(mode="json"),
    }
    values = planted.make_evaluation().model_dump(mode="json")
    return EvaluationReport.model_validate(values | update | changes)


def results_of(parts: dict[str, Any]) -> str:
    return part(render_report(planted.fresh(evaluation=make_evaluation(), task_parts=parts)), "results")


@pytest.mark.parametrize(("words", "shown"), [("age: 3", "age: 3"), (None, "not shown"), (HOSTILE, None)])
def test_the_page_has_figures_residuals_and_the_farthest_rows(words: str | None, shown: str | None) -> None:
    worst = WorstView(key="0000", words=words, target=120.0, value=100.5)
    page = results_of({"worst": [worst.model_dump(mode="json")]})
    text = said(page)
    figures = (
        "R2",
        "0.875",
        "3.25",
        "4.5",
        "Residuals",
        "Values less targets",
        "-19.5",
        "The highest bar has 90 samples",
    )
    for expected in (*figures, *([shown] if shown else [])):
        assert expected in text, expected
    assert HOSTILE not in page, "names and rows are text, never markup"
    # Of both errors, the bars and the rows.
    assert text.count("in the unit of ") == 4
    for word in ("Confusion", "ROC", "Average precision", "Worst classified"):
        assert word not in text, word


def test_bars_hold_every_sample_and_the_middle_is_its_own() -> None:
    heights, reach = join_bins([(-40, 1), (-2, 3), (0, 90), (1, 6)])
    # A hundredth of the samples may lie beyond: the one at -40 is in the first bar.
    assert (heights, reach) == ([4, 0, 90, 6, 0], 2)
    heights, reach = join_bins([(place, 1) for place in range(-500, 501)])
    assert (len(heights), sum(heights), reach) == (41, 1001, 495)
    assert max(heights[1:-1]) - min(heights[1:-1]) <= 1 and heights == heights[::-1]
    assert join_bins([(0, 7)]) == ([7], 0)


def test_the_summary_names_the_farthest() -> None:
    pages = find_pages(TASK)
    assert pages is not None
    assert "| 0000 | 120 | 100.5 | -19.5 |" in pages.summary(make_evaluation())
    with pytest.raises(DataError, match="damaged at details"):
        pages.summary(make_evaluation(details={"worst": 3}))
