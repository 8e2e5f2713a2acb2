"""What speaks against a rehearsal: each finding alone is enough, and none of them is passed over."""

from typing import Any

import pytest

from contracts.config import RunConfig
from contracts.errors import CheckFailed
from pipelines.rehearse.rehearse import check
from pipelines.rehearse.rehearsed import Comparison, Rehearsed


def rehearsed(**changes: Any) -> Rehearsed:
    values = {"parameters": "ab", "comparison": Comparison(shards=True, parameters="ab")}
    return Rehearsed("run-1", "gs://b/line", 0, RunConfig(), [], {}, **{**values, **changes})


def test_what_went_as_it_should_is_no_complaint() -> None:
    check(rehearsed())
    check(rehearsed(comparison=None, parameters=None))
    check(rehearsed(due=1, fired=[("2026-10-19", "PIPELINE_STATE_SUCCEEDED")]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exit_code": 75}, "exit code 75"),
        ({"missing_preemptions": 1}, "1 of the preemptions asked for"),
        ({"idle": ["--stockout mars"]}, "--stockout mars struck nothing"),
        ({"exit_code": 75, "ended_by": "stockout"}, "exit code 75), stockout"),
        ({"unused_rules": [2]}, "rule 2 of --faults struck nothing"),
        ({"refused_hosts": ["a.example"]}, "hosts outside were called: a.example"),
        ({"due": 2, "fired": [("2026-10-19", "PIPELINE_STATE_SUCCEEDED")]}, "due 2 times and started 1 runs"),
        ({"due": 1, "fired": [("2026-10-19", "PIPELINE_STATE_FAILED")]}, "of 2026-10-19 ended as"),
        ({"parameters": "cd"}, "other parameters"),
        ({"parameters": None}, "other parameters"),
        ({"comparison": Comparison(shards=False, parameters="ab")}, "other shards"),
        ({"comparison": Comparison(reason="it failed")}, "nothing to compare with: it failed"),
        ({"comparison": Comparison(), "parameters": None}, "other parameters"),
    ],
)
def test_a_rehearsal_says_what_speaks_against_it(changes: dict[str, Any], words: str) -> None:
    found = rehearsed()
    for name, value in changes.items():
        setattr(found, name, value)
    assert len(found.complaints) == 1
    with pytest.raises(CheckFailed, match="the rehearsal found") as failure:
        check(found)
    assert words in str(failure.value)
