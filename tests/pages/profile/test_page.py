"""The page of a profiling run, from hand-made reports and summaries."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.artifacts import Finding, Indicators, ProfileChoice, ProfilePoint, ProfileReport
from contracts.artifacts.trace import KernelRow, Lane, MemorySample, OperatorRow, Span, TraceSummary
from pages.profile import MAX_PAGE_BYTES, render_page
from pages.quantities import percent, seconds, size
from tests.browser import NEEDS_CHROMIUM, opened, started_chromium
from tests.page_text import absent, figures, part, said, texts
from tests.trainer.profiling.reports import cpu_report, cpu_summary, gpu_report, gpu_summary

VIEWS = ("overview", "timeline", "kernels", "memory", "operators")
SCRIPT = '</script></style><img src="http://127.0.0.1:9/x" onerror="window.hit=1"><script>window.hit=1</script>'
HOSTILE = SCRIPT + "&\"'\x00\ud800"
READABLE = HOSTILE.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")


def test_a_gpu_fills_all_five_views_with_what_was_measured() -> None:
    report, summaries = gpu_report(), [gpu_summary(0), gpu_summary(1)]
    page = render_page(report, summaries)
    found = figures(page)
    assert absent(page) == {}
    for view in VIEWS:
        assert part(page, view).count("data-figure=") > 3, view
    for name, value in report.indicators.model_dump().items():
        assert found[f"indicators.{name}"] == value, name
    for name, spent in summaries[1].breakdown_s.items():
        assert found[f"breakdown.1.{name}"] == spent
    assert found["breakdown.1.sum"] == pytest.approx(0.92)
    slowest = max(summaries[0].kernels, key=lambda row: row.total_s)
    assert found["kernels.0.0.total_s"] == slowest.total_s
    assert found["kernels.0.0.mean_us"] == slowest.mean_us
    assert found["operators.0.0.device_s"] == 1.8
    assert found["memory.0.allocated_peak"] == max(sample.allocated_bytes for sample in summaries[0].memory)
    assert found["memory.0.reserved_peak"] == 8 * 2**30
    assert found["timeline.0.0.duration_s"] == 0.2
    assert "target > 80 %: missed" in said(page)


def test_findings_stand_first_and_the_choice_with_its_reason() -> None:
    report = gpu_report()
    page = render_page(report, [gpu_summary()])
    found, read = figures(page), texts(page)
    assert re.findall(r'<section id="(\w+)"', page) == ["findings", "choice", "sweep", *VIEWS]
    assert re.findall(r'data-rule="(\w+)"', page) == [finding.rule for finding in report.findings]
    first, words = report.findings[0], said(part(page, "findings"))
    for line in (*first.evidence, first.why, first.change, first.command, first.gain_from, "▲ bad"):
        assert line in words
    assert found["findings.0.gain"] == 1.42
    assert read["findings.1.gain"] == "not predicted"
    for name in ("slot_size", "slots_per_rank", "num_workers", "prefetch_factor", "threads"):
        assert found[f"choice.{name}"] == getattr(report.choice, name)
    assert found["choice.samples_per_s"] == report.chosen_point().samples_per_s
    assert report.choice.reason in said(part(page, "choice")) and report.warnings[0] in said(page)
    assert read["estimate.usd"] == "18.20 USD"


def test_the_heat_map_shows_predicted_against_measured() -> None:
    report = gpu_report()
    page = render_page(report, [gpu_summary()])
    found = figures(page)
    for point in report.points:
        name = f"map.{point.slot_size}.{point.num_workers}"
        assert found.get(f"{name}.measured") == point.samples_per_s
        if point.predicted_samples_per_s is not None:
            assert found[f"{name}.predicted"] == point.predicted_samples_per_s
    cells = {
        name: said(text) for name, text in re.findall(r'<td[^>]*data-cell="([^"]*)"[^>]*>(.*?)</td>', page, re.DOTALL)
    }
    assert [name for name, text in cells.items() if "chosen" in text] == ["64 4"], "by more than colour"
    assert cells["256 4"].strip() == "out of memory" and "not tried" in cells["256 0"]
    assert "Tried to allocate 2.00 GiB" in said(part(page, "failed-points"))
    assert [found[f"sweep.{name}"] for name in ("measured", "predicted", "failed")] == [9, 11, 2]
    assert found["points.0.measured"] == max(point.samples_per_s or 0 for point in report.points)


def test_without_a_gpu_the_page_says_so_and_never_zero() -> None:
    page = render_page(cpu_report(), [cpu_summary()])
    found, read = figures(page), texts(page)
    assert absent(page) == {
        "findings": "No rule of the diagnosis fired on the chosen configuration.",
        "kernels": "not measured: no GPU",
    }
    for name in ("gpu_busy_fraction", "mfu", "occupancy_fraction", "copy_wait_fraction", "nvml_utilisation_fraction"):
        assert (found[f"indicators.{name}"], read[f"indicators.{name}"]) == (None, "not measured: no GPU")
    assert read["indicators.slowest_rank_ratio"] == "not measured: one rank"
    assert read["indicators.checkpoint_stall_fraction"] == "not measured"
    assert read["operators.0.device_s"] == read["targets.gpu_busy_fraction"] == "not measured: no GPU"
    assert found["indicators.data_time_fraction"] == 0.12
    assert found["breakdown.0.backward"] == 0.075
    assert found["operators.0.0.self_s"] == 0.19
    assert found["memory.0.allocated_peak"] == 370 * 2**20
    assert "another may be as good" in said(part(page, "choice"))


def test_without_a_trace_every_view_says_why_it_is_empty() -> None:
    missing = "not measured: no trace was recorded"
    empty = absent(render_page(cpu_report(), []))
    assert "had nothing to look at" in empty.pop("findings")
    assert empty == {
        "breakdown": missing,
        "timeline": missing,
        "kernels": "not measured: no GPU",
        "memory-curve": missing,
        "operators": missing,
    }
    assert absent(render_page(gpu_report(), []))["kernels"] == missing


def hostile() -> tuple[ProfileReport, TraceSummary]:
    """Put text that would be a script into every place where text comes from elsewhere."""
    report, summary = gpu_report(), gpu_summary()
    finding = Finding(
        rule=HOSTILE,
        severity="bad",
        title=HOSTILE,
        evidence=[HOSTILE],
        change=HOSTILE,
        why=HOSTILE,
        command=HOSTILE,
        gain=1.1,
        gain_from=HOSTILE,
    )
    failed = report.points[-1].model_copy(update={"reason": HOSTILE})
    loader = report.loader[0].model_copy(update={"outcome": "crashed", "reason": HOSTILE})
    report = report.model_copy(
        update={
            "findings": [finding],
            "warnings": [HOSTILE],
            "hardware": {HOSTILE: HOSTILE},
            "torch_version": HOSTILE,
            "fingerprint": HOSTILE,
            "points": [*report.points[:-1], failed],
            "loader": [loader],
            "choice": report.choice.model_copy(update={"reason": HOSTILE}),
            "recommendations": [report.recommendations[0].model_copy(update={"setting": HOSTILE, "evidence": HOSTILE})],
        }
    )
    summary = replace(
        summary,
        gpu_name=HOSTILE,
        device=HOSTILE,
        breakdown_s={HOSTILE: 0.1},
        kernels=(KernelRow(HOSTILE, HOSTILE, 1, 0.1),),
        operators=(OperatorRow(HOSTILE, 1, 0.1, 0.1),),
        lanes=(Lane(HOSTILE, (Span(HOSTILE, HOSTILE, 0.0, 1.0),)),),
    )
    return report, summary


def test_names_from_a_trace_are_text_and_nothing_else() -> None:
    report, summary = hostile()
    page = render_page(report, [summary])
    assert page.count("<script") == 1 and "<img" not in page
    assert re.findall(r'<section id="(\w+)"', page)[-5:] == list(VIEWS), "the whole page is there"
    assert READABLE in said(part(page, "kernels")) and READABLE in said(part(page, "findings"))


@NEEDS_CHROMIUM
def test_the_page_works_in_a_browser_and_its_policy_runs_no_other_script(tmp_path: Path) -> None:
    path = tmp_path / "profile.html"
    path.write_text(render_page(gpu_report(), [gpu_summary()]), encoding="utf-8")
    with started_chromium() as browser, opened(browser, path) as shown:
        rows = shown.page.locator("details[data-rank='0'] .lanes")
        narrow = rows.evaluate("each => each.getBoundingClientRect().width")
        shown.page.get_by_label("16\u00d7").check()
        assert rows.evaluate("each => each.getBoundingClientRect().width") == pytest.approx(narrow * 16, rel=0.01)
        shown.page.get_by_title("shardline: loader").click()
        readout = shown.page.locator("details[data-rank='0'] .readout").inner_text().replace("\xa0", " ")
        assert readout == "shardline: loader (loader): 200 ms, from 0.00 ms"
        shown.check_quiet()
        blocked: list[str | None] = []
        shown.page.on("requestfailed", lambda request: blocked.append(request.failure))
        shown.page.evaluate(
            """() => { const script = document.createElement("script"); script.textContent = "window.hit = 1";
            document.body.append(script); const image = document.createElement("img");
            image.src = "http://127.0.0.1:9/picture"; document.body.append(image); }"""
        )
        assert shown.page.evaluate("window.hit") is None
        shown.page.wait_for_function("document.querySelector('img').complete")
        assert blocked == ["csp"]


def test_of_very_large_inputs_the_page_says_what_it_leaves_out() -> None:
    long_name = "void kernel<" + "&<" * 2000 + ">"
    many = tuple(Span(long_name, "kernel", i * 1e-5, 0.9e-5) for i in range(3000))
    nested = tuple(Span(long_name, "operator", i * 1e-2, 0.9e-2 / (j + 1)) for i in range(100) for j in range(20))
    summaries = [
        replace(
            gpu_summary(rank),
            kernels=tuple(KernelRow(f"{long_name}{i}", "compute", 3, 1.0 / (i + 1)) for i in range(500)),
            operators=tuple(OperatorRow(f"{long_name}{i}", 3, 1.0, 0.5) for i in range(500)),
            memory=tuple(MemorySample(i * 1e-4, 1000 if i != 1_234 else 9999) for i in range(5_000)),
            lanes=tuple(Lane(long_name, many if lane % 2 else nested) for lane in range(14)),
        )
        for rank in range(6)
    ]
    report = gpu_report()
    points = [
        point.model_copy(update={"slot_size": slot, "reason": HOSTILE * 20})
        for slot in range(1, 200)
        for point in report.points
    ]
    findings = [report.findings[0].model_copy(update={"evidence": [HOSTILE * 200] * 50})] * 100
    report = report.model_copy(
        update={"points": [*report.points, *points], "findings": findings, "warnings": [HOSTILE * 50] * 500}
    )
    page = render_page(report, summaries)
    assert len(page.encode()) < MAX_PAGE_BYTES
    words, found = said(page), figures(page)
    for left_out in ("more kernels", "more operators", "more ranks"):
        assert f"{left_out} are left out" in words
    assert "more in the" in words
    assert found["memory.0.allocated_peak"] == 9999, "the peak is never thinned out"
    assert found["points.0.measured"] == max(point.samples_per_s or 0 for point in report.points)


def test_values_that_are_no_number_or_odd_are_shown_as_missing() -> None:
    report = gpu_report().model_copy(
        update={
            "indicators": Indicators.model_construct(step_s=float("nan"), mfu=float("inf")),
            "points": [ProfilePoint(slot_size=1, num_workers=0, samples_per_s=0.0, predicted_samples_per_s=0.0)],
            "memory": [],
            "findings": [],
        }
    )
    empty = TraceSummary(
        rank=3,
        device="gpu",
        gpu_name=None,
        steps=0,
        step_s=0.0,
        breakdown_s={"other": 0.0},
        kernels=(KernelRow("k", "compute", 0, 0.0),),
        operators=(OperatorRow("o", 0, 0.0, 0.0),),
        memory=(MemorySample(0.0, 0),),
        lanes=(Lane("l", (Span("s", "kernel", 0.0, 0.0),)),),
    )
    page = render_page(report, [empty])
    assert '<span class="missing" data-figure="indicators.step_s" data-missing>not measured</span>' in page
    assert '<span class="missing" data-figure="kernels.3.0.mean_us" data-missing>not measured</span>' in page
    assert "nan" not in page.split("</style>")[1].replace("nanmean", "")


def test_a_report_without_any_measurement_is_drawn() -> None:
    choice = ProfileChoice(slot_size=1, num_workers=0, reason="", measured=False)
    lists: dict[str, list[Any]] = {name: [] for name in ("points", "loader", "compute", "memory", "warnings")}
    nothing = {**lists, "estimate": None, "hardware": {}, "choice": choice, "method": "off", "wall_s": None}
    page = render_page(cpu_report().model_copy(update=nothing), [])
    assert page.count("no trace was recorded") == 4 and 'id="points"' in page and 'id="warnings"' not in page


def test_numbers_have_units() -> None:
    assert [seconds(value).replace("\xa0", " ") for value in (0, 3e-9, 2.5e-6, 0.0123, 1.5, 212.5, 9000)] == [
        "0 s",
        "3 ns",
        "2.5 µs",
        "12.3 ms",
        "1.5 s",
        "3 min 32 s",
        "2.5 h",
    ]
    assert [size(value).replace("\xa0", " ") for value in (0, 512, 1e6, 7.5e9)] == [
        "0 B",
        "512 B",
        "1 MB",
        "7.5 GB",
    ]
    assert [percent(value).replace("\xa0", " ") for value in (0, 0.0004, 0.123, 1)] == [
        "0 %",
        "< 0.1 %",
        "12.3 %",
        "100 %",
    ]
