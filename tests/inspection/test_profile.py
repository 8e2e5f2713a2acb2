"""A profile report in words."""

from io import StringIO
from typing import Any

import pytest

from contracts.artifacts import Finding, Flags, ProfileChoice, ProfilePoint, ProfileReport, Recommendation, Settings
from contracts.artifacts.evaluation import Headline
from inspection.metrics import profile_metrics
from inspection.page import render_report
from inspection.page.curves import group
from inspection.page.subject import Limits
from inspection.profile import OFF, describe, describe_choice, describe_finding, describe_rate
from inspection.run.view import Curve
from inspection.terminal import print_run
from pages.profile import render_page
from tests.inspection import planted
from tests.inspection.page.test_sections import part
from tests.inspection.test_summary import DOCUMENTS


def report(**changes: Any) -> ProfileReport:
    document = DOCUMENTS["profile"]
    assert isinstance(document, ProfileReport)
    return document.model_copy(update=changes)


def point(**changes: Any) -> ProfilePoint:
    return ProfilePoint(**{"slot_size": 16, "num_workers": 1, **changes})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            Settings(slot_size=8, slots_per_rank=2, num_workers=0, threads=3),
            "slot size 8 x 2 per rank, 0 workers, 3 threads, fp32",
        ),
        (
            Settings(
                slot_size=8,
                num_workers=2,
                prefetch_factor=4,
                flags=Flags(precision="bf16", channels_last=True, activation_checkpointing="whole"),
            ),
            (
                "slot size 8 x 1 per rank, 2 workers, 4 slots ahead each, 1 threads, bf16, channels_last, "
                "activation_checkpointing whole"
            ),
        ),
        (
            Settings(slot_size=8, num_workers=0, flags=Flags(compile=True)),
            "slot size 8 x 1 per rank, 0 workers, 1 threads, fp32, compile",
        ),
    ],
)
def test_a_choice(settings: Settings, said: str) -> None:
    assert describe_choice(settings) == said


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ({"samples_per_s": 10.0}, "10.0 samples/s per rank, data time not measured"),
        (
            {"samples_per_s": 10.0, "samples_per_s_min": 9.0, "samples_per_s_max": 11.0, "data_time_fraction": 0.0},
            "10.0 samples/s per rank (9.0 to 11.0), 0% of a step waiting for data",
        ),
        ({"outcome": "hung", "reason": "no answer for 120 s"}, "not measured: no answer for 120 s"),
        ({"outcome": "crashed"}, "not measured: crashed"),
    ],
)
def test_a_rate_that_is_missing_is_not_zero(measured: dict[str, Any], said: str) -> None:
    assert said in describe_rate(point(**measured))


def test_a_price_of_the_time_of_the_report_is_not_told() -> None:
    assert "USD" not in describe_rate(point(samples_per_s=1.0, usd_per_million_samples=0.5))


def test_a_gain_that_is_not_predicted_is_not_told() -> None:
    finding = Finding(rule="R4", severity="note", title="copies", evidence=["12 %", "15 %"], change="channels_last")
    assert describe_finding(finding) == "note: copies (12 %; 15 %): channels_last"


def test_a_finding_on_a_terminal_has_a_line_for_each_of_what_it_says() -> None:
    assert dict(describe(report()))["finding R1"].splitlines() == [
        "bad: steps wait for data",
        "seen: data time 50 % | limit 20 %",
        "to do: raise data.num_workers to 4",
        "predicted: x 1.80, the sweep",
    ]


def test_findings_stand_before_what_is_only_for_the_record() -> None:
    choice = report().choice.model_copy(update={"clear": False})
    told = list(describe(report(choice=choice, warnings=["the budget was out"], wall_s=41.4)))
    assert [name for name, _ in told] == [
        "choice",
        "measured",
        "reason",
        "finding R1",
        "recommended",
        "warning",
        "effort",
    ]
    words = dict(told)
    assert words["reason"] == "fastest; not clear of the next best"
    equal = choice.model_copy(update={"equals": 2})
    said = dict(describe(report(choice=equal)))["reason"]
    assert said == "fastest; a choice between equals: 2 more not told apart by 3 %"
    # Of the two points one ran out of memory.
    assert "1 configurations end to end" in words["effort"]
    assert "in 41 s" in words["effort"] and "1 could not be made" in words["effort"]


@pytest.mark.parametrize(
    ("method", "chosen", "rate"),
    [
        ("off", "off: training cuts, loads and computes as without a profile", "not measured: profile is off"),
        (
            "sweep",
            "the defaults, not measured: slot size 32 x 1 per rank, 0 workers, 1 threads, fp32",
            "not measured: training has its defaults",
        ),
    ],
)
def test_what_was_not_measured_is_said_to_be_so_everywhere(method: Any, chosen: str, rate: str) -> None:
    choice = ProfileChoice(slot_size=32, num_workers=0, reason="because", measured=False, clear=False)
    made = report(method=method, choice=choice, points=[], findings=[], recommendations=[])
    words = dict(describe(made))
    assert (words["choice"], words["measured"], words["reason"]) == (chosen, rate, "because")
    metrics = profile_metrics(made)
    assert ("profile_slot_size" in metrics) == (method == "sweep") and "profile_samples_per_s" not in metrics
    view = planted.fresh(profile=made, profile_page=None)
    page = part(render_report(view), "sweep")
    assert ("Profile off" in page) == (method == "off")
    assert ("the defaults, not measured" in page) == (method == "sweep")
    print_run(view, stream := StringIO())
    assert (OFF if method == "off" else rate) in " ".join(stream.getvalue().split())


def test_of_numbers_a_terminal_tells_no_classes_and_a_long_metric_stands_apart() -> None:
    view = planted.fresh()
    assert view.data is not None and view.export is not None
    data = view.data.model_copy(update={"num_classes": 0})
    headline = Headline(metric="average_precision", direction="max")
    exported = view.export.model_copy(update={"headline": headline, "metrics": {"fp32": {"average_precision": 0.5}}})
    print_run(view.model_copy(update={"data": data, "export": exported}), stream := StringIO())
    assert "average precision fp32 0.5 (" in stream.getvalue() and "0 classes" not in stream.getvalue()


def test_what_the_task_counts_stands_beside_samples() -> None:
    document = report()
    points = [one.model_copy(update={"units_per_s": {"tokens": 5120.0}}) for one in document.points]
    made = document.model_copy(update={"points": points})
    rate = f"{made.chosen_point().samples_per_s:.1f} samples/s"
    assert rate in (said := dict(describe(made))["measured"]) and ", 5,120 tokens/s" in said
    page = part(render_report(planted.fresh(profile=made, profile_page=None)), "sweep")
    assert 'value="5120.0" data-figure="sweep.tokens_per_s"' in page and "tokens/s, slowest rank" in page
    page = render_page(made, [])
    assert 'value="5120.0" data-figure="choice.tokens_per_s"' in page and "Measured tokens/s" in page
    assert "tokens" not in render_page(document, [])


def test_the_curve_of_what_the_task_counts_stands_after_that_of_samples() -> None:
    tags = ("train/loss", "train/tokens_per_s", "memory/resident_bytes", "train/samples_per_s", "train/gradient_norm")
    curves = [Curve(name=tag, rows=1, steps=[1], times=[1.0], values=[1.0]) for tag in tags]
    titles = [chart.title for chart in group(curves, Limits(), task="words:Words", headline="")]
    assert titles[1:3] == ["Throughput, samples/s", "Throughput, tokens/s"]


def test_a_recommendation_has_its_gain_and_evidence() -> None:
    better = [Recommendation(setting="train.compile=on", gain=1.25, evidence="8 and 10 samples/s")]
    assert ("recommended", "train.compile=on: x 1.25 (8 and 10 samples/s)") in list(
        describe(report(findings=[], recommendations=better))
    )
