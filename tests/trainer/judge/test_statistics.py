"""Two models on the same samples: against scipy and definitions on random data, and by simulation."""

import numpy as np
import pytest
from scipy import stats

from trainer.judge import statistics


def test_the_interval_of_right_answers_agrees_with_mcnemars_test() -> None:
    random = np.random.default_rng(1)
    for gained, lost in random.integers(0, 40, (60, 2)):
        low, high = statistics.paired_interval(int(gained), int(lost), 100)
        assert -1 <= low <= (gained - lost) / 100 <= high <= 1
        # At 0 the score is McNemar's: the interval leaves 0 out where its test says so.
        if gained + lost:
            p = stats.chi2.sf((gained - lost) ** 2 / (gained + lost), df=1)
            assert (low > 0 or high < 0) == (p < 0.05)
        assert (low, high) == pytest.approx([-end for end in statistics.paired_interval(lost, gained, 100)][::-1])
        expected = stats.binomtest(int(lost), int(gained + lost), alternative="greater").pvalue if lost else 1.0
        assert statistics.exact_loss_p(int(gained), int(lost)) == pytest.approx(expected)
    # No discordant sample of 30 proves little: z^2 / (30 + z^2).
    assert statistics.paired_interval(0, 0, 30) == pytest.approx((-0.1135, 0.1135), abs=1e-4)


def test_a_jackknife_of_groups_holds_what_it_promises() -> None:
    """Of a mean it is Student's interval over the groups' means; of medians it is about as wide as it must be."""
    random = np.random.default_rng(5)
    for groups in range(8, statistics.GROUPS + 1):
        means = random.normal(size=groups)
        without = [float(np.delete(means, place).mean()) for place in range(groups)]
        found = statistics.jackknife(float(means.mean()), without)
        expected = stats.t.interval(0.95, groups - 1, means.mean(), stats.sem(means))
        assert found == pytest.approx(expected, abs=1e-4)
    held = 0
    for _ in range(400):
        # A harmonic mean of two shares, as F1 is one, of two models on the same 400 samples.
        right = random.random((400, 2)) < 0.8
        value = lambda rows: float(stats.hmean(rows.mean(axis=0)))  # noqa: E731
        without = [value(np.delete(right, slice(place, None, 20), axis=0)) for place in range(20)]
        low, high = statistics.jackknife(value(right), without)
        held += low <= 0.8 <= high
    assert 0.92 <= held / 400 <= 0.98
    with pytest.raises(ValueError, match="7 groups of samples are fewer than 8"):
        statistics.jackknife(0.0, [0.0] * 7)


@pytest.mark.parametrize("name", ["accuracy", "f1_macro", "recall_macro"])
def test_each_metric_is_that_of_its_definition_whatever_a_sample_counts(name: str) -> None:
    random = np.random.default_rng(4)
    truths, answers = random.integers(0, 7, 300), random.integers(-1, 9, 300)
    answers = np.where(random.random(300) < 0.6, truths, answers)
    weights = random.integers(0, 4, 300)
    repeated = [np.repeat(values, weights) for values in (truths, answers)]
    score = statistics.SCORES[name]
    whole = score(*repeated, np.ones(len(repeated[0])))
    assert score(truths, answers, weights.astype(np.float64)) == pytest.approx(whole)
    right = repeated[0] == repeated[1]
    # Those that are an answer alone, 7 and 8, are left out.
    classes = [place for place in range(9) if (repeated[0] == place).any()]
    recalls = [right[repeated[0] == place].mean() for place in classes]
    both = [(repeated[0] == place).sum() + (repeated[1] == place).sum() for place in classes]
    expected = {
        "accuracy": right.mean(),
        "recall_macro": np.mean(recalls),
        "f1_macro": np.mean([2 * (right & (repeated[0] == k)).sum() / n for k, n in zip(classes, both, strict=True)]),
    }
    assert whole == pytest.approx(expected[name])


def test_a_worse_model_is_seldom_taken_for_one_that_is_not() -> None:
    """True loss at the limit: the interval's lower end is above it in about 2.5 % of comparisons."""
    random, samples, limit = np.random.default_rng(5), 500, 0.02
    drawn = random.multinomial(samples, [0.06 + limit, 0.06, 1 - 0.12 - limit], 3000)[:, :2]
    pairs, counts = np.unique(drawn, axis=0, return_counts=True)
    lowest = [statistics.paired_interval(int(gained), int(lost), samples)[0] for lost, gained in pairs]
    wrong = counts[np.array(lowest) >= -limit].sum()
    assert wrong / 3000 < 0.035


def test_a_class_that_loses_is_found_and_chance_is_not() -> None:
    random = np.random.default_rng(6)
    truths = np.arange(400) % 4
    champion = np.where(random.random(400) < 0.95, truths, (truths + 1) % 4)
    challenger = np.where((truths == 2) & (random.random(400) < 0.4), 0, champion)
    worst, *others = statistics.compare_classes(truths, champion, challenger)
    assert (worst.place, worst.samples) == (2, 100)
    assert worst.champion - worst.challenger > 0.2
    assert worst.p < 1e-6
    assert all(one.p == 1.0 for one in others)
