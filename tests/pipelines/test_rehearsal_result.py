"""Result of a rehearsal: what speaks against it, and what the report claims."""

import io
from types import SimpleNamespace
from typing import Any

import pytest

from contracts.config import RunConfig
from contracts.errors import CheckFailed
from pipelines.rehearse import rehearse
from pipelines.rehearse.options import RehearsalOptions
from pipelines.rehearse.rehearse import check
from pipelines.rehearse.result import Comparison, Result, find_effects, print_result
from rehearsal.jobs.market import Market, Preempted, Preemption


def make_result(**changes: Any) -> Result:
    values = {"parameters": "ab", "comparison": Comparison(shards=True, parameters="ab")}
    return Result("run-1", "gs://b/line", changes.pop("exit_code", 0), RunConfig(), [], {}, **{**values, **changes})


def test_what_went_as_it_should_is_no_complaint() -> None:
    check(make_result())
    check(make_result(comparison=None, parameters=None))
    check(make_result(due=1, fired=[("2026-10-19", "PIPELINE_STATE_SUCCEEDED")]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exit_code": 75, "ended_by": "stockout"}, "exit code 75): stockout"),
        ({"shortfalls": ["--stockout mars had no effect"]}, "--stockout mars had no effect"),
        ({"refused_hosts": ["a.example"]}, "hosts outside were called: a.example"),
        ({"due": 2, "fired": [("2026-10-19", "PIPELINE_STATE_SUCCEEDED")]}, "due 2 times and started 1 runs"),
        ({"due": 1, "fired": [("2026-10-19", "PIPELINE_STATE_FAILED")]}, "of 2026-10-19 ended as"),
        ({"parameters": "cd"}, "parameters of the disturbed training differ"),
        ({"comparison": Comparison(shards=False, parameters="ab")}, "shards written under faults differ"),
        ({"comparison": Comparison(reason="it failed")}, "nothing was compared: it failed"),
    ],
)
def test_each_finding_alone_is_a_complaint(changes: dict[str, Any], words: str) -> None:
    result = make_result(**changes)
    assert len(result.complaints) == 1
    with pytest.raises(CheckFailed, match="the rehearsal failed") as failure:
        check(result)
    assert words in str(failure.value)


def make_cloud(market: Market, hits: list[int]) -> Any:
    """Return what is read of a cloud."""
    faults = SimpleNamespace(hits=lambda: hits)
    return SimpleNamespace(market=market, buckets=SimpleNamespace(faults=faults))


def test_each_option_has_an_effect_that_happened_or_none() -> None:
    preemption, second = (Preemption(0, "sigkill", fraction) for fraction in (0.5, 0.6))
    market = Market(preemptions=[preemption, second], stockouts=["us-central1", "us-east4"])
    options = RehearsalOptions(
        preemptions=2, stockouts=("us-central1", "us-east4"), faults=None, storage_fault_rate=0.1
    )
    shortfalls = [shortfall for _, shortfall in find_effects(make_cloud(market, [3, 0, 0]), options)]
    assert shortfalls == [
        "--preempt 2 had no effect",
        "--stockout us-central1 had no effect",
        "--stockout us-east4 had no effect",
        "--storage-faults 0.1 had no effect",
        "",
        "rule 2 of --faults had no effect",
    ]
    market.record(preemption, Preempted("digits-train", 0, "sigkill", 7))
    market.has_machines("us-east4", "digits-train")
    pairs = list(find_effects(make_cloud(market, [3, 1, 8]), options))
    assert pairs[0][1] == "--preempt 2: only 1 machines were taken away"
    assert [effect for effect, _ in pairs] == [
        "1 machines taken away (0 by sigterm, 1 by sigkill)",
        "",
        "no machines in us-east4: digits-train",
        "8 requests to buckets were answered with 503",
        "3 requests to buckets by rule 1 of --faults",
        "1 requests to buckets by rule 2 of --faults",
    ]


def test_neither_a_page_of_the_console_nor_a_cost_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """There is none of a run that the real project never saw."""
    page = "https://console.cloud.google.com/vertex-ai/pipelines/locations/us-central1/runs/r?project=acme"
    lines = ["submitted", page, f"  see: {page}", f"to do: ask for more at {page}", "price: 1 USD/h"]
    code = f"import sys; print(*{lines!r}, sep='\\n'); print('running', file=sys.stderr); sys.exit(3)"
    monkeypatch.setattr(rehearse, "_COMMAND", code)
    assert rehearse.run_command("submit") == 3
    # stdout of a pipe comes when its program ends.
    expected = ["running", "submitted", "to do: ask for more at (no page: rehearsed)"]
    assert sorted(capfd.readouterr().err.splitlines()) == expected


def report(**changes: Any) -> list[str]:
    """Return the lines on what was survived, what ended the run, and what is not proven."""
    stream = io.StringIO()
    print_result(make_result(**changes), stream)
    lines = [" ".join(line.split()) for line in stream.getvalue().splitlines()]
    return [line for line in lines if line.startswith(("survived", "happened", "disturbed", "ended by", "not proven"))]


def test_the_report_claims_nothing_that_did_not_happen() -> None:
    effects = ["1 machines taken away (0 by sigterm, 1 by sigkill)"]
    assert report(effects=effects)[0] == f"survived {effects[0]}"
    lines = report(effects=effects, shortfalls=["--stockout mars had no effect"])
    assert lines[:2] == [f"happened {effects[0]}", "not proven --stockout mars had no effect"]
    assert "nothing was compared" in report(comparison=None)[1]
