"""A profile report in words, on the terminal, and as a section of a run's page."""

import re
from io import StringIO
from typing import Any

import pytest

from contracts.artifacts import FileEntry, ProfileChoice, ProfilePoint, ProfileReport
from contracts.artifacts.evaluation import Headline
from inspection.metrics import profile_metrics
from inspection.page import render_report
from inspection.page.curves import group
from inspection.page.subject import Limits
from inspection.profile import OFF, describe, describe_rate
from inspection.run.view import Curve
from inspection.terminal import print_profile, print_run
from tests.inspection import planted
from tests.inspection.page.test_sections import part
from tests.inspection.test_summary import DOCUMENTS
from tests.page_text import absent, figures, said
from tests.trainer.profiling.reports import gpu_report, gpu_summary


def report(**changes: Any) -> ProfileReport:
    document = DOCUMENTS["profile"]
    assert isinstance(document, ProfileReport)
    return document.model_copy(update=changes)


def page_of(made: ProfileReport, **changes: Any) -> str:
    return part(render_report(planted.fresh(profile=made, **changes)), "profile")


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ({"samples_per_s": 10.0}, "10.0 samples/s per rank, data time not measured"),
        (
            {"samples_per_s": 10.0, "samples_per_s_min": 9.0, "samples_per_s_max": 11.0, "data_time_fraction": 0.0},
            "10.0 samples/s per rank (9.0 to 11.0), data time 0% of a step",
        ),
        ({"outcome": "hung", "reason": "no answer for 120 s"}, "not measured: no answer for 120 s"),
        ({"outcome": "crashed"}, "not measured: crashed"),
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
    assert "effort: sweep: 4 configurations end to end" in words and "in 212 s; 3 failed" in words


@pytest.mark.parametrize("method", ["off", "auto"])
def test_a_choice_without_a_measurement_says_so_everywhere(method: Any) -> None:
    choice = ProfileChoice(slot_size=32, num_workers=0, reason="because", measured=False)
    made = report(method=method, choice=choice, points=[], findings=[])
    cut = OFF if method == "off" else "the defaults, not measured: slot size 32 x 1 per rank, 0 workers"
    rate = "not measured: " + ("profile is off" if method == "off" else "training has its defaults")
    words = dict(describe(made))
    assert (words["choice"], words["measured"]) == (cut, rate)
    metrics = profile_metrics(made)
    assert ("profile_slot_size" in metrics) == (method == "auto") and "profile_samples_per_s" not in metrics
    assert ("Profile off" in page_of(made)) == (method == "off")
    assert ("the defaults, not measured" in page_of(made)) == (method == "auto")
    print_run(planted.fresh(profile=made), stream := StringIO())
    assert (OFF if method == "off" else rate) in " ".join(stream.getvalue().split())


def test_the_section_shows_what_was_measured() -> None:
    files = [FileEntry(name="traces/rank-0.pt.trace.json.gz", bytes=1, crc32c="00000000")]
    made, summaries = gpu_report().model_copy(update={"files": files}), [gpu_summary(0), gpu_summary(1)]
    section = page_of(made, trace_summaries=summaries)
    values, words = figures(section), said(section)
    assert absent(section) == {}
    for point in made.points:
        assert values.get(f"map.{point.slot_size}.{point.num_workers}") == point.samples_per_s
    chosen = re.findall(r'<td class="[^"]*chosen"[^>]*>(.*?)</td>', section, re.DOTALL)
    assert len(chosen) == 1 and "★ chosen" in chosen[0], "by more than colour"
    assert "Tried to allocate 2.00 GiB" in words
    for name, value in made.indicators.model_dump().items():
        assert values[f"indicators.{name}"] == value, name
    assert "target > 80%: missed" in words.replace("&gt;", ">")
    for name, spent in summaries[1].breakdown_s.items():
        assert values[f"breakdown.1.{name}"] == spent
    assert values["kernels.0.total_s"] == summaries[0].kernels[0].total_s
    assert values["operators.0.device_s"] == 1.8
    assert values["memory.peak"] == max(sample.allocated_bytes for sample in summaries[0].memory)
    assert re.findall(r'data-rule="(\w+)"', section) == ["R1", "R5"]
    assert values["findings.0.time_share"] == 0.31
    assert made.choice.reason in words and made.warnings[0] in words
    assert re.findall(r'href="([^"]*trace[^"]*)"', section) == [
        "../../profile/0123456789abcdef/traces/rank-0.pt.trace.json.gz"
    ]


def test_a_section_without_traces_says_so() -> None:
    section = page_of(gpu_report(), trace_summaries=[])
    assert "there is no trace" in absent(section)["breakdown"]
    assert "kernels.0.total_s" not in figures(section)


def test_other_units_of_the_task_stand_beside_samples() -> None:
    points = [point.model_copy(update={"units_per_s": {"tokens": 5120.0}}) for point in report().points]
    made = report(points=points)
    assert ", 5,120 tokens/s" in dict(describe(made))["measured"]
    assert 'value="5120.0" data-figure="profile.tokens_per_s"' in page_of(made)
    assert "tokens" not in page_of(report())


def test_of_numbers_a_terminal_tells_no_classes_and_a_long_metric_stands_apart() -> None:
    view = planted.fresh()
    assert view.data is not None and view.export is not None
    data = view.data.model_copy(update={"num_classes": 0})
    headline = Headline(metric="average_precision", direction="max")
    exported = view.export.model_copy(update={"headline": headline, "metrics": {"fp32": {"average_precision": 0.5}}})
    print_run(view.model_copy(update={"data": data, "export": exported}), stream := StringIO())
    assert "average precision fp32 0.5 (" in stream.getvalue() and "0 classes" not in stream.getvalue()


def test_the_curve_of_what_the_task_counts_stands_after_that_of_samples() -> None:
    tags = ("train/loss", "train/tokens_per_s", "memory/resident_bytes", "train/samples_per_s", "train/gradient_norm")
    curves = [Curve(name=tag, rows=1, steps=[1], times=[1.0], values=[1.0]) for tag in tags]
    titles = [chart.title for chart in group(curves, Limits(), task="words:Words", headline="")]
    assert titles[1:3] == ["Throughput, samples/s", "Throughput, tokens/s"]
