"""The arithmetic behind the page's sections."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inspection.page.data import kind_of
from inspection.page.links import beside, console, elsewhere
from inspection.page.marks import find_gaps
from inspection.page.subject import Limits
from inspection.run.data import evenly
from inspection.run.view import Mark


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
