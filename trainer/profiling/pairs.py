"""Configurations against each other: windows that were measured side by side are compared pair by pair.

What else a machine does falls on both windows of a pair, so the ratio within pairs is steadier than the rates: one
window a configuration picks the luckiest, not the best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev

from contracts.artifacts import ProfileChoice, ProfilePoint, Settings

# Rates within this share of the best count as equal: noise must not buy processes and memory.
TOLERANCE = 0.03
# Slot sizes closer than this factor are not worth two measurements.
DISTINCT_SLOTS = 1.4
# Finalists of the first turn, and turns: after each turn but the first one more configuration may join.
FINALISTS = 4
MOST_TURNS = 3
# Two-sided 95 % of Student's t by degrees of freedom (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2).
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
# The same at a level of 5 % over all comparisons of a sweep (Bonferroni): at most FINALISTS - 1 + MOST_TURNS - 1 = 5
# others are compared with the fastest, after each of MOST_TURNS turns, which makes 15.
CORRECTED_T = (
    190.984, 17.277, 8.575, 6.254, 5.247, 4.698, 4.355, 4.122, 3.954, 3.827, 3.728, 3.649, 3.584, 3.530, 3.484,
)  # fmt: skip


@dataclass
class Contender:
    """A configuration, and what was measured of it end to end."""

    settings: Settings
    rates: dict[int, float] = field(default_factory=dict)
    """Samples per second of a rank in training, by the number of the round."""

    @property
    def rate(self) -> float:
        """Return the median over its rounds."""
        return median(self.rates.values())


@dataclass(frozen=True)
class Ratio:
    """One configuration's rate over another's: the median of their pairs, and confidence limits of the mean."""

    middle: float
    low: float
    high: float


def ratio(first: Contender, second: Contender, student_t: Sequence[float] = STUDENT_T) -> Ratio | None:
    """Return the ratio of rates over the rounds that both were in; None: they met in none.

    Means are of logarithms, so that the ratio of the second to the first is one over it; the limits are Student's. The
    median stands in the middle: one window that something else slowed down would move the mean of three by a third.

    Args:
        first: The one.
        second: The other.
        student_t: By degrees of freedom: of one comparison that is made once, or of all of a sweep.
    """
    rounds = first.rates.keys() & second.rates.keys()
    logs = [math.log(first.rates[each] / second.rates[each]) for each in sorted(rounds)]
    if not logs:
        return None
    middle = math.exp(median(logs))
    if len(logs) == 1:
        return Ratio(middle, 0.0, math.inf)
    half = student_t[min(len(logs) - 2, len(student_t) - 1)] * stdev(logs) / math.sqrt(len(logs))
    mean = fmean(logs)
    return Ratio(middle, math.exp(mean - half), math.exp(mean + half))


def leader(contenders: Sequence[Contender]) -> Contender:
    """Return the fastest: the one that no other beats in the rounds they share.

    Where the pairs contradict each other (a beats b, b beats c, c beats a), the fastest by its median.
    """
    best = max(contenders, key=lambda each: each.rate)
    for candidate in contenders:
        against = (ratio(candidate, other) for other in contenders if other is not candidate)
        if all(each is None or each.middle >= 1 for each in against) and ratio(candidate, best) is not None:
            return candidate
    return best


def equals(first: Contender, others: Sequence[Contender]) -> list[Contender]:
    """Return the others that are not shown to be slower than the first by more than TOLERANCE.

    Shown is what the confidence interval of the paired ratio says, at a level that holds for all comparisons of a
    sweep.
    """
    paired = _ratios(first, others, CORRECTED_T)
    return [other for other, found in paired if found is None or found.low <= 1 / (1 - TOLERANCE)]


def undecided(first: Contender, others: Sequence[Contender]) -> list[Contender]:
    """Return those that are worth another turn: not slower than the first by their own interval, nor by TOLERANCE.

    It says what to measure next, and claims nothing.
    """
    return [
        other
        for other, found in _ratios(first, others)
        if found is None or (found.low <= 1 and found.middle > 1 / (1 - TOLERANCE))
    ]


def within_tolerance(first: Contender, others: Sequence[Contender]) -> list[Contender]:
    """Return those, the first among them, that are at most TOLERANCE slower than it."""
    paired = _ratios(first, others)
    return [first, *(other for other, found in paired if found is not None and found.middle <= 1 / (1 - TOLERANCE))]


def _ratios(
    first: Contender, others: Sequence[Contender], student_t: Sequence[float] = STUDENT_T
) -> list[tuple[Contender, Ratio | None]]:
    return [(other, ratio(first, other, student_t)) for other in others if other is not first]


def expense(settings: Settings) -> tuple[int, int, int, int]:
    """Return what a configuration takes of a machine, to be compared: processes, memory of a slot, of what is ahead."""
    return settings.num_workers, settings.slot_size, settings.prefetch_factor * settings.num_workers, settings.threads


def same_steps(first: Settings, second: Settings) -> bool:
    """Whether steps compute alike: the same threads and flags."""
    return (first.threads, first.flags) == (second.threads, second.flags)


def differ(first: Settings, second: Settings) -> bool:
    """Whether two configurations differ by more than a similar slot size."""
    if first.num_workers != second.num_workers or not same_steps(first, second):
        return True
    small, large = sorted([first.slot_size, second.slot_size])
    return large >= DISTINCT_SLOTS * small


def is_hopeless(settings: Settings, failed: Sequence[Settings], worked: Sequence[Settings]) -> bool:
    """Whether a failure says that this fails too: with no smaller slot and no fewer processes, the same steps.

    Where what worked differs from what failed by its smaller slot alone, the slot was to blame, or the processes
    likewise; then so it is for other steps as well. A failure with torch.compile says nothing about any other
    configuration.
    """
    for one in failed:
        if one.flags.compile:
            if settings.settings() == one.settings():
                return True
            continue
        as_large, as_many = settings.slot_size >= one.slot_size, settings.num_workers >= one.num_workers
        if as_large and as_many and same_steps(settings, one):
            return True
        by_slot = any(each.slot_size < one.slot_size and each.num_workers >= one.num_workers for each in worked)
        by_workers = any(each.slot_size >= one.slot_size and each.num_workers < one.num_workers for each in worked)
        if (by_slot and as_large) or (by_workers and as_many):
            return True
    return False


def choice_of(settings: Settings, *, reason: str, clear: bool, equals: int | None = None) -> ProfileChoice:
    """Return a choice of these settings."""
    return ProfileChoice.model_validate(
        {**dict(settings.settings()), "reason": reason, "clear": clear, "equals": equals}
    )


def point_of(settings: Settings, **measured: object) -> ProfilePoint:
    """Return the row of these settings."""
    return ProfilePoint.model_validate({**dict(settings.settings()), **measured})


def describe(settings: Settings) -> str:
    """Return a configuration in words."""
    words = [f"slot size {settings.slot_size}", f"{settings.num_workers} workers", f"{settings.threads} threads"]
    if settings.num_workers:
        words.insert(2, f"{settings.prefetch_factor} ahead")
    return ", ".join([*words, settings.flags.in_words()])
