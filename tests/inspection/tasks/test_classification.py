import json
import re

import pytest
from kfp import dsl

from contracts.artifacts.classification import RocCurve
from inspection.page import render_report
from inspection.tasks.classification.vertex import (
    MAX_CATEGORIES,
    MAX_POINTS,
    tell_classification,
)
from tests.inspection import planted
from tests.inspection.documents import HOSTILE, make_evaluation
from tests.page_text import part, said

# Of an artifact's metadata, by the reference of Vertex AI.
METADATA_LIMIT = 200_000
# Two classes of ten samples each, told apart but for two.
CURVE = RocCurve(area=0.9, points=[(0.9, 0, 5), (0.5, 1, 9), (0.2, 10, 10)])
CONFUSION = [(0, 0, 9), (0, 1, 1), (1, 0, 1), (1, 1, 9)]


def test_it_is_what_kfp_would_write() -> None:
    found = tell_classification(make_evaluation(["cat", "dog"], CONFUSION, CURVE))
    expected = dsl.ClassificationMetrics()
    expected.log_confusion_matrix(["cat", "dog"], [[9, 1], [1, 9]])
    expected.log_roc_curve(
        fpr=[0.0, 0.0, 0.1, 1.0, 1.0], tpr=[0.0, 0.5, 0.9, 1.0, 1.0], threshold=[1.0, 0.9, 0.5, 0.2, 0.0]
    )
    assert {name: found[name] for name in expected.metadata} == expected.metadata
    assert set(found) == {*expected.metadata, "note"}


def test_with_more_than_two_classes_there_is_no_curve() -> None:
    assert "confidenceMetrics" not in tell_classification(make_evaluation(["cat", "dog", "ox"], CONFUSION))


@pytest.mark.parametrize("classes", [["cat", "dog"], ["cat", "dog", "ox"]])
def test_the_page_has_confusion_and_classes_and_of_two_a_curve(classes: list[str]) -> None:
    evaluation = planted.make_evaluation(classes)
    page = part(render_report(planted.fresh(evaluation=evaluation)), "results")
    text = said(page)
    assert "Confusion" in text and "Each class on the test split" in text
    assert ('data-chart="ROC"' in page) == ("ROC area" in text) == (len(classes) == 2)


def test_of_many_points_those_at_equal_distances_are_taken() -> None:
    curve = RocCurve(area=0.9, points=[(1 - n / 500, n * n, 500 * n) for n in range(1, 501)])
    report = make_evaluation(["cat", "dog"], [(0, 0, 250_000), (1, 1, 250_000)], curve)
    points = tell_classification(report)["confidenceMetrics"]
    assert 50 < len(points) <= MAX_POINTS
    rates = [(point["falsePositiveRate"], point["recall"]) for point in points]
    assert (rates[0], rates[-1]) == ((0.0, 0.0), (1.0, 1.0)) and rates == sorted(rates)


def test_of_very_many_classes_the_confused_ones_are_shown_and_it_is_said() -> None:
    count = 1000
    confusion = [(place, place, 5) for place in range(count)] + [(7, 900, 3), (900, 8, 2), (41, 42, 1)]
    report = make_evaluation([f"class {place}" for place in range(count)], confusion, left_out=4)
    found = tell_classification(report)
    names = [entry["displayName"] for entry in found["confusionMatrix"]["annotationSpecs"]]
    rows = [entry["row"] for entry in found["confusionMatrix"]["rows"]]
    assert len(names) == MAX_CATEGORIES == len(rows) == len(rows[0])
    assert {"class 7", "class 8", "class 41", "class 42", "class 900"} <= set(names)
    assert rows[names.index("class 7")][names.index("class 900")] == 3
    # Nothing is lost but what the evaluation itself has left out.
    assert sum(map(sum, rows)) == report.samples - 4
    assert "39 of 1,000 classes with most mistakes" in found["note"] and "4 mistaken samples" in found["note"]
    assert len(json.dumps(found)) < METADATA_LIMIT


@pytest.mark.parametrize("names", [["", " "], [HOSTILE, HOSTILE], ["x" * 500 + "a", "x" * 500 + "b"], ["a", "a (2)"]])
def test_names_are_one_line_each_and_each_once(names: list[str]) -> None:
    found = tell_classification(make_evaluation(names, CONFUSION, CURVE))
    shown = [entry["displayName"] for entry in found["confusionMatrix"]["annotationSpecs"]]
    assert len(set(shown)) == 2
    assert all(name and len(name) < 80 and not re.search("[\u202e\n]", name) for name in shown)
    # kfp knows a category by its name.
    metrics = dsl.ClassificationMetrics()
    metrics.log_confusion_matrix(shown, [entry["row"] for entry in found["confusionMatrix"]["rows"]])
    assert metrics.metadata["confusionMatrix"] == found["confusionMatrix"]


def test_cells_of_classes_that_are_not_there_are_left_out() -> None:
    report = make_evaluation(["cat", "dog"], CONFUSION, CURVE)
    damaged = report.model_copy(update={"confusion": [*CONFUSION, (5, 0, 7), (0, -1, 7)]})
    assert tell_classification(damaged)["confusionMatrix"] == tell_classification(report)["confusionMatrix"]
