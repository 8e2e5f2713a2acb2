"""Runs and profile reports on the terminal."""

import re
from io import StringIO
from typing import Any

import pytest

from contracts.artifacts import ProfileChoice, ProfilePoint, ProfileReport
from contracts.artifacts.evaluation import Headline
from inspection.headline import make_headline
from inspection.runs import RunRow
from inspection.terminal import OFF, describe_rate, print_differences, print_profile, print_run, print_runs
from inspection.view import Missing, RunView
from tests.inspection.documents import DOCUMENTS, HOSTILE
from tests.trainer.profiling.reports import gpu_report


def make_report(**changes: Any) -> ProfileReport:
    document = DOCUMENTS["profile"]
    assert isinstance(document, ProfileReport)
    return document.model_copy(update=changes)


def printed(view: RunView) -> str:
    print_run(view, stream := StringIO())
    return stream.getvalue()


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (
            {"samples_per_s": 10.0, "samples_per_s_min": 9.0, "samples_per_s_max": 11.0, "data_time_fraction": 0.0},
            "10.0 samples/s per rank (9.0 to 11.0), data time 0% of a step",
        ),
        ({"outcome": "timeout", "reason": "no answer for 120 s"}, "not measured: no answer for 120 s"),
    ],
)
def test_a_missing_rate_is_not_zero_and_has_no_price(measured: dict[str, Any], words: str) -> None:
    point = ProfilePoint(slot_size=16, num_workers=1, usd_per_million_samples=0.5, **measured)
    assert describe_rate(point) == words


def test_the_terminal_shows_every_point_and_finding() -> None:
    made = gpu_report()
    print_profile(made, "7.3 h", stream := StringIO())
    lines = stream.getvalue().splitlines()
    rows = [line.split() for line in lines if re.match(r"\s+\d+\s+\d+\s", line)]
    assert [row[:2] for row in rows] == [[str(p.slot_size), str(p.num_workers)] for p in made.points]
    assert [row[-1] == "chosen" for row in rows] == [True, *[False] * 5]
    assert "out of memory" in next(line for line in lines if line.split()[:2] == ["256", "4"])
    words = "\n".join(lines)
    assert "choice: slot size 64 x 8 per rank, 4 workers" in words
    assert "finding R1: Steps wait for data\n  data time 31 %" in words and "  saves at most 31% of a step" in words
    assert "warning: the loader at 8 workers" in words and "training: 7.3 h" in words
    assert "effort: 6 configurations end to end in 212 s" in words


@pytest.mark.parametrize("method", ["off", "auto"])
def test_a_choice_without_a_measurement_has_no_rate(views: dict[str, RunView], method: Any) -> None:
    choice = ProfileChoice(slot_size=32, num_workers=0, reason="because", measured=False)
    report = make_report(method=method, choice=choice, points=[], findings=[])
    print_profile(report, None, stream := StringIO())
    cut = OFF if method == "off" else "the defaults, not measured: slot size 32 x 1 per rank, 0 workers"
    assert f"choice: {cut}\nmeasured: not measured: " in stream.getvalue()
    assert cut in printed(views["fresh"].model_copy(update={"profile": report}))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("fresh", "test accuracy"),
        ("cached", "what shard makes (of run 20261122-070000-0001)"),
        ("interrupted", "The same command resumes it"),
        ("killed", "its process ended without a record; last event"),
        ("failed in train", "stage train: train cannot <b>work</b>\n  allowed: something else\n  to do: mend it"),
        ("running", "80 of 200 steps"),
    ],
)
def test_a_run_says_its_state_and_what_to_do(views: dict[str, RunView], kind: str, words: str) -> None:
    assert words in printed(views[kind])


def test_text_of_a_run_is_no_markup_and_moves_no_cursor(views: dict[str, RunView]) -> None:
    missing = [Missing(what="[red]x[/red]", reason=f"\x1b[2J{HOSTILE}")]
    hostile = views["fresh"].model_copy(update={"name": HOSTILE, "missing": missing})
    print_differences(views["fresh"], hostile, stream := StringIO())
    for text in (printed(hostile), stream.getvalue()):
        assert not re.search("[\x1b\u202e]", text)
    assert "[red]x[/red]" in printed(hostile)


def test_a_list_has_80_columns_and_none_that_is_empty() -> None:
    rows = [
        RunRow(
            id=f"20261122-07000{number}-0001",
            name="digits",
            line="file:///l",
            folder="file:///f",
            state="succeeded",
            started_at=1_795_000_000.0,
            headline=make_headline(
                state="succeeded",
                task="image_classification",
                result=(Headline(metric="accuracy", direction="max"), 0.9375),
                precision="fp16",
                export_verdict="unproven: not run on a GPU",
                wall_s=86.0,
            ),
        )
        for number in range(3)
    ]
    print_runs(rows, stream := StringIO())
    head, *lines = stream.getvalue().splitlines()
    assert head.split() == ["run", "state", "age", "took", "accuracy", "export"]
    assert len(lines) == 3 and all(len(line) <= 80 for line in (head, *lines))
    assert all(("93.75 %" in line and "fp16, unproven" in line and " d " in line) or " s " in line for line in lines)
