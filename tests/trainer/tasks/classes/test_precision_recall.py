"""Precision and recall out of counts, against what a direct count over the samples says, at every threshold."""

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_score, recall_score

from trainer.tasks.classes.outcomes import NUM_THRESHOLDS, Outcomes
from trainer.tasks.classes.precision_recall import precision_recall

CPU = torch.device("cpu")
# What TensorBoard writes beside the values (plugins/pr_curve/pr_curves_plugin.py, `_process_tensor_event`).
THRESHOLDS = np.linspace(0.0, 1.0, NUM_THRESHOLDS)


def drawn(samples: int, classes: int, *, right: float) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(3)
    labels = random.integers(0, classes, samples)
    logits = random.normal(size=(samples, classes)) * 2
    logits[np.arange(samples), labels] += right
    return torch.from_numpy(logits).float(), torch.from_numpy(labels)


def counted(logits: torch.Tensor, labels: torch.Tensor) -> Outcomes:
    outcomes = Outcomes(logits.shape[1], CPU)
    for start in range(0, len(labels), 500):
        outcomes.add(logits[start : start + 500], labels[start : start + 500], first_place=start)
    return outcomes


# Of 1,000 classes each has 20 samples only, so all of them together are looked at, and the five that have most.
@pytest.mark.parametrize(("classes", "right"), [(10, 2.0), (1000, 7.0)])
def test_it_is_exact_at_the_thresholds_that_tensorboard_shows(classes: int, right: float) -> None:
    logits, labels = drawn(20_000, classes, right=right)
    counts = counted(logits, labels).counts()
    probabilities = logits.softmax(dim=1).double().numpy()
    is_class = np.arange(classes) == labels.numpy()[:, None]
    chosen = np.argsort(-np.bincount(labels, minlength=classes), kind="stable")[:5]
    curves = {"all": (counts.sum(axis=1), probabilities.ravel(), is_class.ravel())}
    curves |= {str(one): (counts[:, one], probabilities[:, one], is_class[:, one]) for one in chosen}
    for name, ((others, own), scores, wanted) in curves.items():
        found = precision_recall(others, own)
        # Samples at or above each threshold, by the sorted scores themselves.
        passing = len(scores) - np.searchsorted(np.sort(scores), THRESHOLDS, side="left")
        right_ones = np.sort(scores[wanted])
        true = len(right_ones) - np.searchsorted(right_ones, THRESHOLDS, side="left")
        assert found.true_positives.tolist() == true.tolist(), name
        assert found.false_positives.tolist() == (passing - true).tolist(), name
        assert found.false_negatives.tolist() == (wanted.sum() - true).tolist(), name
        assert found.true_negatives.tolist() == ((~wanted).sum() - (passing - true)).tolist(), name
        # Not a curve of nothing: the middle of it is where the difference would be.
        assert 0 < true[63] < true[1]


def test_the_shares_are_those_of_scikit_learn() -> None:
    logits, labels = drawn(3000, 4, right=2.0)
    counts = counted(logits, labels).counts()
    probabilities = logits.softmax(dim=1).double().numpy()
    for number in range(4):
        found = precision_recall(*counts[:, number])
        for place in (0, 13, 42, 63, 100, 120):
            passing = probabilities[:, number] >= THRESHOLDS[place]
            assert found.recall[place] == pytest.approx(recall_score(labels == number, passing), abs=1e-12)
            assert found.precision[place] == pytest.approx(precision_score(labels == number, passing), abs=1e-12)


def test_a_probability_right_at_a_threshold_passes_it() -> None:
    # One half and one, exactly; no number at all is the least that there is.
    logits = torch.tensor([[0.0, 0.0], [200.0, -200.0], [float("nan"), 0.0]])
    others, own = counted(logits, torch.tensor([0, 0, 0])).counts()[:, 0]
    assert others.sum() == 0
    assert {place: int(own[place]) for place in own.nonzero()[0]} == {0: 1, 63: 1, NUM_THRESHOLDS - 1: 1}


def test_nothing_is_divided_by_zero() -> None:
    nothing = np.zeros(NUM_THRESHOLDS, np.int64)
    found = precision_recall(nothing, nothing)
    assert set(found.precision) == set(found.recall) == {0.0}


def test_the_surest_predictions_pass_every_threshold() -> None:
    own = np.zeros(NUM_THRESHOLDS, np.int64)
    own[-1] = 7
    found = precision_recall(np.zeros(NUM_THRESHOLDS, np.int64), own)
    assert set(found.true_positives) == {7}
    assert set(found.precision) == {1.0}
