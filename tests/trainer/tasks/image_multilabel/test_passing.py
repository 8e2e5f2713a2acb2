"""Average precision and the best threshold of one class, against scikit-learn and by trying all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score

from trainer.tasks.image_multilabel.passing import average_precision, best_threshold, between_scores, count_passing
from trainer.tasks.image_multilabel.scores import scores_of

# Of few different values, so that many are alike.
SAMPLES = st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=30)


def threshold_of(scores: np.ndarray, is_class: np.ndarray) -> float:
    passing = count_passing(scores, is_class)
    return best_threshold(passing, between_scores(passing.scores))


@settings(max_examples=50, deadline=None)
@given(SAMPLES)
def test_average_precision_is_scikit_learns(samples: list[tuple[int, bool]]) -> None:
    scores, is_class = np.array([score for score, _ in samples]) / 8, np.array([own for _, own in samples])
    found = average_precision(count_passing(scores, is_class))
    if not is_class.any():
        assert found is None
    else:
        assert found == pytest.approx(average_precision_score(is_class, scores), abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(SAMPLES)
def test_no_threshold_is_better_and_one_half_is_taken_where_it_is_as_good(
    samples: list[tuple[int, bool]],
) -> None:
    scores, is_class = np.array([score for score, _ in samples]) / 8, np.array([own for _, own in samples])
    found = threshold_of(scores, is_class)
    if not is_class.any():
        assert found == 0.5
        return

    def f1(threshold: float) -> float:
        return float(f1_score(is_class, scores >= threshold, zero_division=0))

    there = np.unique(np.append(scores, 0.0))
    tried = [0.5, *there, *(there[1:] + there[:-1]) / 2]
    assert f1(found) == pytest.approx(max(map(f1, tried)), abs=1e-12)
    if f1(0.5) == f1(found):
        assert found == 0.5


def test_a_threshold_stands_halfway_to_the_next_score() -> None:
    """So that an export, whose scores are a rounding away, says the same."""
    assert threshold_of(np.array([0.9, 0.8, 0.6, 0.2]), np.array([True, True, False, False])) == pytest.approx(0.7)
    assert threshold_of(np.array([0.9, 0.8, 0.4]), np.array([True, True, False])) == 0.5
    assert threshold_of(np.array([0.3, 0.2]), np.array([True, True])) == pytest.approx(0.1), "all are of the class"
    # Two neighbouring numbers: nothing is between them.
    below = 0.75
    above = np.nextafter(below, 1)
    assert threshold_of(np.array([above, below]), np.array([True, False])) == above


def test_of_equal_thresholds_the_nearest_to_one_half_counts() -> None:
    # F1 of the first alone is 2 * 1 / (1 + 2), of all 2 * 2 / (4 + 2): halfway to 0.8 is 0.87, to 0 is 0.3.
    scores, is_class = np.array([0.94, 0.8, 0.7, 0.6]), np.array([True, False, False, True])
    assert threshold_of(scores, is_class) == 0.5
    assert threshold_of(scores - 0.54, is_class) == pytest.approx(0.33), "0.03 is further from one half"


def test_outputs_that_are_no_numbers_rank_nothing() -> None:
    """A network that has diverged is no better than chance, in whatever order its samples come."""
    logits = np.full((4, 1), np.nan, np.float32)
    for labels in ([1, 1, 0, 0], [0, 0, 1, 1]):
        (found,) = scores_of(logits, np.array(labels, bool)[:, None])
        assert average_precision(found.ranking) == 0.5
        assert best_threshold(found.probabilities, between_scores(found.probabilities.scores)) == 0.5
