"""Several labels on a run's page and for Vertex AI."""

from __future__ import annotations

from typing import Any

import pytest

from components.describe import describe_classes
from contracts.artifacts import EvaluationReport
from contracts.artifacts.multilabel import LabelOutcome, LabelScore, MultilabelDetails, WorstSample
from contracts.errors import DataError
from inspection.page import render_report
from inspection.run.headline import headline
from inspection.tasks import is_share
from inspection.tasks.multilabel.worst import SaidLabel, WorstView
from tests.inspection import planted
from tests.inspection.documents import HOSTILE
from tests.page_text import part, said

TASK = "image_multilabel"
# Name, positives, predicted, right, average precision.
COUNTS: list[tuple[str, int, int, int, float | None]] = [
    ("beach", 40, 50, 30, 0.8125),
    ("nobody", 0, 3, 0, None),
    ("unsaid", 5, 0, 0, 0.25),
    (HOSTILE, 10, 10, 10, 1.0),
]


def outcome(name: str, positives: int, predicted: int, right: int, precision: float | None) -> LabelOutcome:
    return LabelOutcome(
        name=name,
        threshold=0.375,
        positives=positives,
        predicted=predicted,
        right=right,
        precision=right / predicted if predicted else None,
        recall=right / positives if positives else None,
        f1=2 * right / (positives + predicted),
        average_precision=precision,
    )


def make_evaluation(counts: list[tuple[str, int, int, int, float | None]] = COUNTS, **changes: Any) -> EvaluationReport:
    worst = WorstSample(
        shard="test-0.tar",
        key="0000",
        place=0,
        loss=3.5,
        labels=[0, 2],
        missed=[LabelScore(label=2, probability=0.01)],
        wrong=[LabelScore(label=1, probability=0.98), LabelScore(label=99, probability=0.7)],
    )
    details = MultilabelDetails(classes=[outcome(*one) for one in counts], exact=37, worst=[worst])
    update: dict[str, Any] = {
        "task": TASK,
        "headline": {"metric": "average_precision", "direction": "max"},
        "metrics": {"average_precision": 0.6875, "f1_macro": 0.5, "f1_micro": 0.625},
        "samples": 64,
        "details": details.model_dump(mode="json"),
    }
    values = planted.make_evaluation().model_dump(mode="json")
    return EvaluationReport.model_validate(values | update | changes)


def results_of(evaluation: EvaluationReport, parts: dict[str, Any] | None = None) -> str:
    return part(render_report(planted.fresh(evaluation=evaluation, task_parts=parts or {})), "results")


def test_the_page_has_every_label_at_its_threshold() -> None:
    worst = WorstView(
        picture=planted.picture(3, "x"),
        key="0000",
        loss=3.5,
        labels=["beach", "unsaid"],
        missed=[SaidLabel(name="unsaid", probability=0.01)],
        wrong=[SaidLabel(name="nobody", probability=0.98)],
    )
    page = results_of(make_evaluation(), {"worst": [worst.model_dump(mode="json")]})
    text = said(page)
    assert "Mean average precision" in text and "68.75 %" in text
    assert "37" in text and "of 64 samples" in text, "all labels right"
    # The means are over the others, at every door.
    assert text.count("over labels, 1 without a sample left out") == 2
    assert "over labels, each at its threshold, 1 without a sample left out" in text
    assert 'value="0.5555555555555555" data-figure="results.f1_at_thresholds"' in page
    assert (
        "1 class without a sample left out"
        in headline(planted.fresh(evaluation=make_evaluation())).figure("metric").note
    )
    table = said(page.partition('id="label-outcomes"')[2].partition("</table>")[0].replace("<", " <"))
    for words in (
        "beach 40 81.2 % 0.375 66.7 % 60.0 % 75.0 %",
        "nobody 0 no sample",
        "unsaid 5 25.0 %",
        "never predicted",
    ):
        assert words in table, table
    assert "missed unsaid" in text and "wrongly predicted nobody" in text and "loss 3.5" in text
    assert "<img src=x" not in page and page.count("data:image/jpeg") == 1


def test_of_many_labels_the_hardest_are_shown() -> None:
    many: list[tuple[str, int, int, int, float | None]] = [
        (f"label {place}", 10, 10, 5, place / 200 if place else None) for place in range(100)
    ]
    page = results_of(make_evaluation(many))
    table = page.partition('id="label-outcomes"')[2].partition("</table>")[0]
    assert "Of 100 labels the 40 with the lowest average precision are shown." in said(page)
    assert "label 1<" in table and "label 40<" in table and "label 41<" not in table and "label 0<" not in table


def test_damaged_details_are_said_and_the_page_is_drawn() -> None:
    damaged = make_evaluation(details={"classes": [{}], "exact": 0, "worst": []})
    with pytest.raises(DataError, match=r"damaged at details\.classes\.0\.name"):
        MultilabelDetails.of(damaged)
    assert "This part cannot be shown" in said(results_of(damaged))
    assert MultilabelDetails.of(planted.make_evaluation()) is None


def test_vertex_ai_gets_metrics_and_is_told_that_there_is_no_confusion() -> None:
    assert describe_classes(make_evaluation()) == {"note": f"The task {TASK} is no classification into one class each."}
    assert is_share(TASK, "validation_average_precision") and is_share(TASK, "f1_micro") and not is_share(TASK, "loss")
