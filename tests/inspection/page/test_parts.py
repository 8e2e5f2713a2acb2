"""The arithmetic behind the page's sections."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.artifacts.classification import ClassOutcome, RocCurve
from inspection.page.data import kind_of
from inspection.page.links import beside, console, elsewhere
from inspection.page.marks import find_gaps
from inspection.page.subject import Limits
from inspection.run.data import evenly
from inspection.run.view import Mark
from inspection.tasks.classification.roc import micro_average, rates

SCORES = st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 9), min_size=3, max_size=3)), min_size=1)


def outcome(place: int, samples: list[tuple[int, list[int]]]) -> ClassOutcome:
    """A class's outcome from the scores of all samples."""
    points, falling = [], sorted({scores[place] for _, scores in samples}, reverse=True)
    for threshold in falling:
        taken = [label for label, scores in samples if scores[place] >= threshold]
        points.append(
            (float(threshold), sum(label != place for label in taken), sum(label == place for label in taken))
        )
    inside = sum(label == place for label, _ in samples)
    return ClassOutcome(name=str(place), samples=inside, predicted=0, right=0, roc=RocCurve(area=0.5, points=points))


@given(SCORES)
def test_the_micro_average_is_over_all_pairs_of_sample_and_class(samples: list[tuple[int, list[int]]]) -> None:
    known = [outcome(place, samples) for place in range(3)]
    pairs = [(scores[place], label == place) for label, scores in samples for place in range(3)]
    positives = sum(is_right for _, is_right in pairs)
    expected = [
        (
            sum(score >= threshold and not right for score, right in pairs) / max(1, len(pairs) - positives),
            sum(score >= threshold and right for score, right in pairs) / positives,
        )
        for threshold in sorted({score for score, _ in pairs}, reverse=True)
    ]
    found = micro_average(known, len(samples))[1:-1]
    assert len(found) == len(expected)
    assert [value for point in found for value in point] == pytest.approx([v for point in expected for v in point])


@given(SCORES)
def test_rates_rise_from_nothing_to_all(samples: list[tuple[int, list[int]]]) -> None:
    for curve in (rates(outcome(0, samples), len(samples)), micro_average([outcome(0, samples)], len(samples))):
        assert (curve[0], curve[-1]) == ((0.0, 0.0), (1.0, 1.0))
        assert all(0 <= x <= 1 and 0 <= y <= 1 for x, y in curve)
        assert curve[:-1] == sorted(curve[:-1])


def marks(*kinds: str) -> list[Mark]:
    return [
        Mark.model_validate({"kind": kind, "time": place, "step": None, "text": ""}) for place, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("kinds", "gaps"),
    [
        (["start", "checkpoint", "end"], []),
        (["start", "preemption", "resume", "end"], [(1, 2)]),
        (["start", "preemption", "checkpoint", "start", "resume", "crash", "crash", "resume"], [(1, 3), (5, 7)]),
        (["preemption"], []),
        ([], []),
    ],
)
def test_gaps_last_from_an_end_to_the_next_start(kinds: list[str], gaps: list[tuple[float, float]]) -> None:
    assert find_gaps(marks(*kinds)) == gaps


@given(st.lists(st.integers(), max_size=50), st.integers(min_value=1, max_value=60))
def test_evenly_chosen_ones_keep_their_order_and_the_ends(items: list[int], most: int) -> None:
    chosen = evenly(list(enumerate(items)), most)
    assert len(chosen) == min(len(items), most)
    assert list(chosen) == sorted(set(chosen))
    if items and most > 1:
        assert (chosen[0][0], chosen[-1][0]) == (0, len(items) - 1)


def test_limits_come_to_an_end() -> None:
    limits, rounds = Limits(), 0
    while limits != limits.halved():
        limits, rounds = limits.halved(), rounds + 1
    assert rounds < 20
    assert set(vars(limits).values()) == {1}


def test_reasons_are_one_kind_whatever_the_file() -> None:
    kinds = {kind_of(reason) for reason in ("row 12 of 'a b.png' is cut", "row 9 of 'c.png' is cut")}
    assert kinds == {"row N of … is cut"}


def test_links_lead_to_known_places_only() -> None:
    href = beside("file:///lines/a%20b")
    assert href("file:///lines/a%20b/train/log.txt") == "../../train/log.txt"
    assert href("file:///lines/a%20b/../x") == "file:///lines/a%20b/../x"
    assert href('file:///lines/a%20b/"<x>') == "../../%22%3Cx%3E"
    assert href("file:///other/log.txt") == "file:///other/log.txt"
    assert elsewhere("gs://bucket/a b") == "https://console.cloud.google.com/storage/browser/_details/bucket/a%20b"
    for uri in ("javascript:alert(1)", "data:text/html,x", "https://example.com", "memory://x", "//example.com"):
        assert href(uri) is None
        assert elsewhere(uri) is None
        assert console(uri) is None
