"""How far two models are apart on the same samples, and how much of that chance could be. Pure numpy.

Right answers are paired proportions: Tango's score interval, which agrees with McNemar's test at 0, and says with no
discordant sample how little that proves, where a bootstrap would say [0, 0]. Other metrics of ours have a bootstrap of
samples: a draw takes the same samples for both models. Metrics of own tasks, which take batches, have a jackknife. Loss
of one class is held against McNemar's exact test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Values = npt.NDArray[Any]
"""Places of classes, int64 from 0, or numbers, float64."""
Score = Callable[[Values, Values, Floats], float]
"""Takes truths [N], answers [N] and how often each sample counts [N]."""

DRAWS = 2000
GROUPS = 20
"""Of a jackknife, at most."""
_LEAST_GROUPS = 8
# Quantiles of Student's distribution for 95 %, two-sided, by degrees of freedom from 7 to 19.
_T = (2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930)
# Quantile of the normal distribution for 95 %, two-sided.
_Z = 1.959963984540054
_SEED = 0x6A75646765


@dataclass(frozen=True)
class Difference:
    """Two models on the same samples."""

    champion: float
    challenger: float
    interval: tuple[float, float]
    """95 % interval of challenger less champion."""
    method: str


def accuracy(truths: Values, answers: Values, weights: Floats) -> float:
    """Return the share of right answers."""
    return float(weights @ (truths == answers) / weights.sum())


def recall_macro(truths: Values, answers: Values, weights: Floats) -> float:
    """Return the mean of recall over the classes that have a sample."""
    right, labelled, _ = _count(truths, answers, weights)
    has_samples = labelled > 0
    return float((right[has_samples] / labelled[has_samples]).mean())


def f1_macro(truths: Values, answers: Values, weights: Floats) -> float:
    """Return the mean of F1 over the classes that have a sample."""
    right, labelled, answered = _count(truths, answers, weights)
    has_samples = labelled > 0
    return float((2 * right[has_samples] / (labelled + answered)[has_samples]).mean())


SCORES: dict[str, Score] = {
    "accuracy": accuracy,
    "f1_macro": f1_macro,
    "recall_macro": recall_macro,
}


def compare(
    metric: str,
    truths: Values,
    champion: Values,
    challenger: Values,
    *,
    draws: int = DRAWS,
) -> Difference:
    """Compare two models.

    Args:
        metric: A name of `SCORES`.
        truths: [N] places of classes, int64 from 0; at least one sample.
        champion: [N] answers of the model in production; -1 is a class that no sample has.
        challenger: [N] answers of the other one.
        draws: Of the bootstrap.
    """
    score, ones = SCORES[metric], np.ones(len(truths))
    values = [score(truths, answers, ones) for answers in (champion, challenger)]
    if metric == "accuracy":
        gained, lost = _discordant(truths, champion, challenger)
        return Difference(values[0], values[1], paired_interval(gained, lost, len(truths)), "Tango's score interval")
    random, differences = np.random.default_rng(_SEED), np.empty(draws)
    for draw in range(draws):
        drawn = np.bincount(random.integers(0, len(truths), len(truths)), minlength=len(truths)).astype(np.float64)
        differences[draw] = score(truths, challenger, drawn) - score(truths, champion, drawn)
    low, high = np.quantile(differences, (0.025, 0.975))
    return Difference(values[0], values[1], (float(low), float(high)), f"paired bootstrap, {draws:,} draws")


def jackknife(whole: float, without: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a difference, by what it is without each of some groups of equal size.

    Source: Tukey, Bias and confidence in not quite large samples, Annals of Mathematical Statistics 29, 1958, p. 614.

    Args:
        whole: The difference on all samples.
        without: That without each group, at least 8 of them and at most `GROUPS`.

    Raises:
        ValueError: There are fewer.
    """
    groups = len(without)
    if groups < _LEAST_GROUPS:
        raise ValueError(f"{groups} groups of samples are fewer than {_LEAST_GROUPS}")
    mean = math.fsum(without) / groups
    error = math.sqrt((groups - 1) / groups * math.fsum((each - mean) ** 2 for each in without))
    spread = _T[groups - _LEAST_GROUPS] * error
    return whole - spread, whole + spread


def paired_interval(gained: int, lost: int, samples: int) -> tuple[float, float]:
    """Return Tango's 95 % score interval of a difference of paired proportions.

    Args:
        gained: Samples that only the second one has right.
        lost: Samples that only the first one has right.
        samples: All of them.
    """
    difference = (gained - lost) / samples

    def score(delta: float) -> float:
        """Return how many standard errors the found difference is from `delta`, if that were the true one."""
        # The most likely share of lost samples, if the shares differ by delta.
        linear = -gained - lost + (2 * samples - gained + lost) * delta
        root = max(linear * linear + 8 * samples * lost * delta * (1 - delta), 0.0)
        share = (math.sqrt(root) - linear) / (4 * samples)
        variance = samples * (2 * share + delta * (1 - delta))
        apart = gained - lost - samples * delta
        return 0.0 if apart == 0 else apart / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, apart)

    return _cross(score, -1.0, difference, _Z), _cross(score, difference, 1.0, -_Z)


def exact_loss_p(gained: int, lost: int) -> float:
    """Return McNemar's exact p, one-sided: of so many lost samples or more, if each were as likely gained as lost."""
    count = gained + lost
    if lost == 0:
        return 1.0
    logs = [
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) - count * math.log(2)
        for k in range(lost, count + 1)
    ]
    return min(math.fsum(map(math.exp, logs)), 1.0)


@dataclass(frozen=True)
class ClassDifference:
    """Two models on the samples of one class."""

    place: int
    samples: int
    champion: float
    """Recall."""
    challenger: float
    p: float
    """Of such a loss by chance (`exact_loss_p`)."""


def compare_classes(truths: Values, champion: Values, challenger: Values) -> list[ClassDifference]:
    """Compare two models class by class, the one that loses most first; classes without samples are left out."""
    found = []
    for place, samples in zip(*np.unique(truths, return_counts=True), strict=True):
        own = truths == place
        gained, lost = _discordant(truths[own], champion[own], challenger[own])
        recalls = [float((answers[own] == place).mean()) for answers in (champion, challenger)]
        found.append(ClassDifference(int(place), int(samples), recalls[0], recalls[1], exact_loss_p(gained, lost)))
    return sorted(found, key=lambda one: (one.challenger - one.champion, one.place))


def _discordant(truths: Values, champion: Values, challenger: Values) -> tuple[int, int]:
    had, has = champion == truths, challenger == truths
    return int((has & ~had).sum()), int((had & ~has).sum())


def _count(truths: Values, answers: Values, weights: Floats) -> tuple[Floats, Floats, Floats]:
    """Return right answers, labels and answers by class; an answer of -1 is of no class."""
    width = int(max(truths.max(), answers.max(initial=0))) + 1
    known = answers >= 0
    right: Floats = np.bincount(truths, weights * (truths == answers), width).astype(np.float64)
    labelled: Floats = np.bincount(truths, weights, width).astype(np.float64)
    return right, labelled, np.bincount(answers[known], weights[known], width).astype(np.float64)


def _cross(score: Callable[[float], float], low: float, high: float, wanted: float) -> float:
    """Return where a falling function has a value; the end of the range where it never has."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle) > wanted else (low, middle)
    return (low + high) / 2
