"""Precision and recall out of counts, against scikit-learn on the samples themselves."""

import numpy as np
import torch
from sklearn.metrics import precision_score, recall_score

from trainer.board.precision_recall import NUM_THRESHOLDS, precision_recall
from trainer.outcomes import LARGEST_LOG_ODDS, Outcomes

CPU = torch.device("cpu")


def test_a_curve_says_what_passes_each_threshold() -> None:
    random = np.random.default_rng(3)
    labels = random.integers(0, 4, 3000)
    logits = random.normal(size=(3000, 4)) * 2
    logits[np.arange(3000), labels] += 2
    outcomes = Outcomes(4, CPU)
    outcomes.add(torch.from_numpy(logits).float(), torch.from_numpy(labels), first_place=0)
    counts = outcomes.counts()
    probabilities = torch.from_numpy(logits).softmax(dim=1).numpy()
    bin_width = 2 * LARGEST_LOG_ODDS / outcomes.num_bins
    for number in range(4):
        others, own = counts[:, number]
        found = precision_recall(others, own)
        assert len(found.precision) == NUM_THRESHOLDS
        assert (found.true_positives[0], found.false_positives[0]) == (own.sum(), others.sum())
        totals = found.true_positives + found.false_positives + found.true_negatives + found.false_negatives
        assert set(totals.tolist()) == {3000}
        for place in (13, 42, 63, 100, 120):
            threshold = place / (NUM_THRESHOLDS - 1)
            # A bin is taken as a whole, so the threshold may be off by one.
            log_odds = np.log(threshold / (1 - threshold)) + np.array([0, bin_width])
            low, high = 1 / (1 + np.exp(-log_odds))
            passing = [probabilities[:, number] >= bound for bound in (low - 1e-6, high + 1e-6)]
            recalls = [recall_score(labels == number, one) for one in passing]
            assert recalls[1] <= found.recall[place] <= recalls[0]
            precisions = [precision_score(labels == number, one) for one in passing]
            assert min(precisions) - 0.02 <= found.precision[place] <= max(precisions) + 0.02


def test_nothing_is_divided_by_zero() -> None:
    nothing = np.zeros(16, np.int64)
    found = precision_recall(nothing, nothing)
    assert set(found.precision) == set(found.recall) == {0.0}


def test_the_surest_predictions_pass_every_threshold() -> None:
    own = np.zeros(256, np.int64)
    own[-1] = 7
    found = precision_recall(np.zeros(256, np.int64), own)
    assert set(found.true_positives) == {7}
    assert set(found.precision) == {1.0}
