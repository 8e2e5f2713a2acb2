import json
import re
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kfp import dsl

from contracts.artifacts import EvaluationReport
from contracts.artifacts.classification import ClassificationDetails, RocCurve
from inspection.tasks.classification.vertex import (
    MAX_CATEGORIES,
    MAX_POINTS,
    Point,
    micro_average,
    tell_classification,
)
from tests.inspection.documents import HOSTILE, make_evaluation

# Of an artifact's metadata, by the reference of Vertex AI.
METADATA_LIMIT = 200_000
# Two classes of ten samples each, told apart but for one: thresholds of both, and one that only the second names.
CURVES = [
    RocCurve(area=0.9, points=[(0.9, 0, 5), (0.5, 1, 9), (0.0, 10, 10)]),
    RocCurve(area=0.9, points=[(0.9, 0, 2), (0.7, 0, 6), (0.5, 1, 9), (0.0, 10, 10)]),
]
CONFUSION = [(0, 0, 9), (0, 1, 1), (1, 0, 1), (1, 1, 9)]


def average(report: EvaluationReport, **options: int) -> tuple[list[Point], str]:
    details = ClassificationDetails.of(report)
    assert details is not None
    return micro_average(details, report.samples, **options)


def test_it_is_what_kfp_would_write() -> None:
    found = tell_classification(make_evaluation(["cat", "dog"], CONFUSION, [*CURVES]))
    expected = dsl.ClassificationMetrics()
    expected.log_confusion_matrix(["cat", "dog"], [[9, 1], [1, 9]])
    expected.log_roc_curve(
        fpr=[0.0, 0.0, 0.0, 0.1, 1.0], tpr=[0.0, 0.35, 0.55, 0.9, 1.0], threshold=[1.0, 0.9, 0.7, 0.5, 0.0]
    )
    assert {name: found[name] for name in expected.metadata} == expected.metadata
    assert set(found) == {*expected.metadata, "note"}


def test_a_class_without_samples_has_no_curve_and_no_part() -> None:
    alone, _ = average(make_evaluation(["cat", "dog"], CONFUSION, [*CURVES]))
    three = make_evaluation(["cat", "dog", "unseen"], CONFUSION, [*CURVES, None])
    found, said = average(three)
    assert found == alone
    assert "1 classes have no curve" in said
    none, said = average(make_evaluation(["cat"], [(0, 0, 3)], [None]))
    assert none == [] and "no ROC curve" in said
    assert "confidenceMetrics" not in tell_classification(make_evaluation(["cat"], [(0, 0, 3)], [None]))


SCORES = st.lists(st.integers(0, 12), min_size=1, max_size=30)


@settings(deadline=None)
@given(st.lists(SCORES, min_size=2, max_size=5), st.randoms(use_true_random=False), st.integers(3, 20))
def test_the_micro_average_counts_every_sample_once_a_class(sizes: list[list[int]], random: Random, most: int) -> None:
    labels = [place for place, scores in enumerate(sizes) for _ in scores]
    # Each class gives each sample one of 13 scores.
    scores = [[random.randrange(13) for _ in labels] for _ in sizes]
    curves: list[RocCurve | None] = []
    for place, given_scores in enumerate(scores):
        steps = [[score >= step for score in given_scores] for step in range(12, -1, -1)]
        points = [
            (
                (12 - number) / 13,
                sum(taken for taken, label in zip(passed, labels, strict=True) if label != place),
                sum(taken for taken, label in zip(passed, labels, strict=True) if label == place),
            )
            for number, passed in enumerate(steps)
        ]
        curves.append(RocCurve(area=0.5, points=points))
    confusion = [(place, place, len(scores)) for place, scores in enumerate(sizes)]
    report = make_evaluation([str(place) for place in range(len(sizes))], confusion, curves)
    whole, _ = average(report, most=1000)
    inside, outside = len(labels), len(labels) * (len(sizes) - 1)
    for threshold, false_rate, recall in whole[1:]:
        passed = [
            (s >= round(threshold * 13), label == c)
            for c, row in enumerate(scores)
            for s, label in zip(row, labels, strict=True)
        ]
        assert recall == pytest.approx(sum(taken for taken, own in passed if own) / inside)
        assert false_rate == pytest.approx(sum(taken for taken, own in passed if not own) / outside)
    assert whole[0] == (1.0, 0.0, 0.0) and whole[-1] == (0.0, 1.0, 1.0)
    thinned, _ = average(report, most=most)
    assert len(thinned) <= most and set(thinned) <= set(whole)
    assert (thinned[0], thinned[-1]) == (whole[0], whole[-1])
    for before, after in pairwise(thinned):
        assert before[0] > after[0] and before[1] <= after[1] and before[2] <= after[2]


def test_of_very_many_classes_the_confused_ones_are_shown_and_it_is_said() -> None:
    count = 1000
    confusion = [(place, place, 5) for place in range(count)] + [(7, 900, 3), (900, 8, 2), (41, 42, 1)]
    curve = RocCurve(area=1.0, points=[(1 - step / 400, step, min(step, 5)) for step in range(400)])
    report = make_evaluation([f"class {place}" for place in range(count)], confusion, [curve] * count, left_out=4)
    found = tell_classification(report)
    names = [entry["displayName"] for entry in found["confusionMatrix"]["annotationSpecs"]]
    rows = [entry["row"] for entry in found["confusionMatrix"]["rows"]]
    assert len(names) == MAX_CATEGORIES == len(rows) == len(rows[0])
    assert {"class 7", "class 8", "class 41", "class 42", "class 900"} <= set(names)
    assert rows[names.index("class 7")][names.index("class 900")] == 3
    # Nothing is lost but what the evaluation itself has left out.
    assert sum(map(sum, rows)) == report.samples - 4
    assert len(found["confidenceMetrics"]) <= MAX_POINTS
    assert "39 of 1,000 classes with most mistakes" in found["note"] and "4 mistaken samples" in found["note"]
    assert len(json.dumps(found)) < METADATA_LIMIT


@pytest.mark.parametrize("names", [["", " "], [HOSTILE, HOSTILE], ["x" * 500 + "a", "x" * 500 + "b"], ["a", "a (2)"]])
def test_names_are_one_line_each_and_each_once(names: list[str]) -> None:
    found = tell_classification(make_evaluation(names, CONFUSION, [*CURVES]))
    shown = [entry["displayName"] for entry in found["confusionMatrix"]["annotationSpecs"]]
    assert len(set(shown)) == 2
    assert all(name and len(name) < 80 and not re.search("[\u202e\n]", name) for name in shown)
    # kfp knows a category by its name.
    metrics = dsl.ClassificationMetrics()
    metrics.log_confusion_matrix(shown, [entry["row"] for entry in found["confusionMatrix"]["rows"]])
    assert metrics.metadata["confusionMatrix"] == found["confusionMatrix"]


def test_cells_of_classes_that_are_not_there_are_left_out() -> None:
    report = make_evaluation(["cat", "dog"], CONFUSION, [*CURVES])
    damaged = report.model_copy(update={"confusion": [*CONFUSION, (5, 0, 7), (0, -1, 7)]})
    assert tell_classification(damaged)["confusionMatrix"] == tell_classification(report)["confusionMatrix"]
