"""The page of a profiling run in a real browser, from hand-made reports and summaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from contracts.artifacts import Finding, Indicators, ProfileChoice, ProfilePoint, ProfileReport
from contracts.artifacts.trace import KernelRow, Lane, MemorySample, OperatorRow, Span, TraceSummary
from pages.profile import MAX_PAGE_BYTES, render_page
from pages.quantities import percent, seconds, size
from tests.browser import NEEDS_CHROMIUM, Opened, opened, started_chromium
from tests.trainer.profiling.gpu_trace import write_gpu_trace
from tests.trainer.profiling.reports import cpu_report, cpu_summary, gpu_report, gpu_summary
from trainer.profiling.indicators import Counters, make_indicators
from trainer.profiling.trace import summarise

VIEWS = ("overview", "timeline", "kernels", "memory", "operators")
SCRIPT = '</script></style><img src="http://127.0.0.1:9/x" onerror="window.hit=1"><script>window.hit=1</script>'
PREFIXES = {view: view for view in VIEWS} | {"overview": "breakdown"}
HOSTILE = SCRIPT + "&\"'\x00\ud800"
READABLE = HOSTILE.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_chromium() as started:
        yield started


def write(folder: Path, report: ProfileReport, summaries: Sequence[TraceSummary]) -> Path:
    page = folder / "profile.html"
    page.write_text(render_page(report, summaries), encoding="utf-8")
    return page


def headings(shown: Opened, selector: str) -> list[str]:
    return [element.inner_text() for element in shown.page.locator(selector).all()]


@NEEDS_CHROMIUM
def test_a_gpu_fills_all_five_views_with_what_was_measured(browser: Browser, tmp_path: Path) -> None:
    report, summaries = gpu_report(), [gpu_summary(0), gpu_summary(1)]
    with opened(browser, write(tmp_path, report, summaries)) as shown:
        figures = shown.figures()
        shown.check_quiet()
        assert shown.absent() == {}
        for view in VIEWS:
            assert shown.page.locator(f"section[data-section={view}] [data-figure]").count() > 3, view
        for name, value in report.indicators.model_dump().items():
            assert figures[f"indicators.{name}"] == value, name
        for part, spent in summaries[1].breakdown_s.items():
            assert figures[f"breakdown.1.{part}"] == spent
        assert figures["breakdown.1.sum"] == pytest.approx(0.92)
        slowest = max(summaries[0].kernels, key=lambda row: row.total_s)
        assert figures["kernels.0.0.total_s"] == slowest.total_s
        assert figures["kernels.0.0.mean_us"] == slowest.mean_us
        assert figures["operators.0.0.device_s"] == 1.8
        assert figures["memory.0.allocated_peak"] == max(sample.allocated_bytes for sample in summaries[0].memory)
        assert figures["memory.0.reserved_peak"] == 8 * 2**30
        assert figures["timeline.0.0.duration_s"] == 0.2
        said = shown.page.locator("[data-text='target.gpu_busy_fraction']").inner_text()
        assert said == "target > 80 %: missed"


@NEEDS_CHROMIUM
def test_a_synthetic_trace_of_a_gpu_fills_all_five_views(browser: Browser, tmp_path: Path) -> None:
    summaries = [
        summarise(
            write_gpu_trace(tmp_path / f"rank{rank}.json.gz", rank=rank, ranks=2, exchange_us=8000.0, pageable=True)
        )
        for rank in range(2)
    ]
    indicators = make_indicators(
        Counters(step_s=0.06, data_time_fraction=0.3, gpu_name="NVIDIA A100-SXM4-40GB"), summaries
    )
    report = gpu_report().model_copy(update={"indicators": indicators})
    with opened(browser, write(tmp_path, report, summaries)) as shown:
        figures = shown.figures()
        shown.check_quiet()
        assert shown.absent() == {}
        for view in VIEWS:
            values = [value for name, value in figures.items() if name.startswith(f"{PREFIXES[view]}.")]
            assert sum(value is not None for value in values) > 3, view
        assert figures["indicators.gpu_busy_fraction"] == indicators.gpu_busy_fraction
        assert figures["ranks.1.gpu_busy"] == summaries[1].gpu_busy_fraction
        for name, value in figures.items():
            if name.startswith("breakdown.0.") and name != "breakdown.0.sum":
                assert value == summaries[0].breakdown_s[name.removeprefix("breakdown.0.")]
        slowest = max(summaries[0].kernels, key=lambda row: row.total_s)
        assert shown.page.locator("#kernels-0 .code").first.inner_text() == slowest.name
        assert shown.page.locator("details[data-rank='0'] .lane i").count() > 100


@NEEDS_CHROMIUM
def test_findings_stand_first_and_the_choice_with_its_reason(browser: Browser, tmp_path: Path) -> None:
    report = gpu_report()
    with opened(browser, write(tmp_path, report, [gpu_summary()])) as shown:
        figures, texts = shown.figures(), shown.texts()
        parts = [part.get_attribute("data-section") for part in shown.page.locator("section").all()]
        assert parts == ["findings", "choice", "sweep", *VIEWS]
        rules = shown.page.locator("article[data-rule]").all()
        assert [rule.get_attribute("data-rule") for rule in rules] == ["R1", "R7", "R9"]
        first = report.findings[0]
        for line in (*first.evidence, first.why, first.change, first.command, first.gain_from, "▲ bad"):
            assert line in rules[0].inner_text()
        assert figures["findings.0.gain"] == 1.42
        assert texts["findings.1.gain"] == "not predicted"
        for name in ("slot_size", "slots_per_rank", "num_workers", "prefetch_factor", "threads"):
            assert figures[f"choice.{name}"] == getattr(report.choice, name)
        assert figures["choice.samples_per_s"] == report.chosen_point().samples_per_s
        assert report.choice.reason in shown.page.locator("#choice").inner_text()
        assert texts["estimate.usd"] == "18.20 USD"
        assert shown.page.locator("#warnings li").inner_text() == report.warnings[0]
        assert shown.page.locator("#recommendations code").inner_text() == "train.compile=true"


@NEEDS_CHROMIUM
def test_the_heat_map_shows_predicted_against_measured(browser: Browser, tmp_path: Path) -> None:
    report = gpu_report()
    with opened(browser, write(tmp_path, report, [gpu_summary()])) as shown:
        figures = shown.figures()
        for point in report.points:
            name = f"map.{point.slot_size}.{point.num_workers}"
            assert figures.get(f"{name}.measured") == point.samples_per_s
            if point.predicted_samples_per_s is not None:
                assert figures[f"{name}.predicted"] == point.predicted_samples_per_s
        chosen = shown.page.locator("#heat-map td.chosen")
        assert chosen.count() == 1
        assert chosen.get_attribute("data-cell") == "64 4"
        assert "chosen" in chosen.inner_text(), "by more than colour"
        failed = shown.page.locator("[data-cell='256 4']")
        assert failed.inner_text() == "out of memory"
        assert "Tried to allocate 2.00 GiB" in shown.page.locator("#failed-points").inner_text()
        assert "not tried" in shown.page.locator("[data-cell='256 0']").inner_text()
        assert figures["sweep.measured"] == 9
        assert figures["sweep.predicted"] == 11
        assert figures["sweep.failed"] == 2
        assert figures["sweep.predictor_error"] == 0.062
        shown.page.locator("#sweep summary").first.click()
        assert shown.page.locator("#points tbody tr").count() == 20
        assert figures["points.0.measured"] == max(point.samples_per_s or 0 for point in report.points)


@NEEDS_CHROMIUM
def test_without_a_gpu_the_page_says_so_and_never_zero(browser: Browser, tmp_path: Path) -> None:
    report, summary = cpu_report(), cpu_summary()
    with opened(browser, write(tmp_path, report, [summary])) as shown:
        figures, texts = shown.figures(), shown.texts()
        shown.check_quiet()
        assert shown.absent() == {
            "findings": "No rule of the diagnosis fired on the chosen configuration.",
            "kernels": "not measured: no GPU",
        }
        for name in (
            "gpu_busy_fraction",
            "mfu",
            "occupancy_fraction",
            "copy_wait_fraction",
            "nvml_utilisation_fraction",
        ):
            assert figures[f"indicators.{name}"] is None
            assert texts[f"indicators.{name}"] == "not measured: no GPU"
        assert texts["indicators.slowest_rank_ratio"] == "not measured: one rank"
        assert texts["indicators.checkpoint_stall_fraction"] == "not measured"
        assert texts["operators.0.device_s"] == "not measured: no GPU"
        assert texts["targets.gpu_busy_fraction"] == "not measured: no GPU"
        assert figures["indicators.data_time_fraction"] == 0.12
        assert figures["breakdown.0.backward"] == 0.075
        assert figures["operators.0.0.self_s"] == 0.19
        assert figures["memory.0.allocated_peak"] == 370 * 2**20
        assert shown.page.locator(".lane i").count() == 7
        assert "another may be as good" in shown.page.locator("#choice").inner_text()


@NEEDS_CHROMIUM
def test_without_a_trace_every_view_says_why_it_is_empty(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, write(tmp_path, cpu_report(), [])) as shown:
        shown.check_quiet()
        missing = "not measured: no trace was recorded"
        absent = shown.absent()
        assert "had nothing to look at" in absent.pop("findings")
        assert absent == {
            "breakdown": missing,
            "timeline": missing,
            "kernels": "not measured: no GPU",
            "memory-curve": missing,
            "operators": missing,
        }
    with opened(browser, write(tmp_path, gpu_report(), [])) as shown:
        assert shown.absent()["kernels"] == missing


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


@NEEDS_CHROMIUM
def test_names_from_a_trace_are_text_and_nothing_else(browser: Browser, tmp_path: Path) -> None:
    report, summary = hostile()
    with opened(browser, write(tmp_path, report, [summary])) as shown:
        shown.check_quiet()
        assert shown.page.evaluate("window.hit") is None
        assert shown.page.locator("img").count() == 0
        assert shown.page.locator("script").count() == 1
        assert shown.page.locator("#kernels .code").inner_text() == READABLE
        assert READABLE in shown.page.locator("article[data-rule]").inner_text()
        assert shown.page.locator("article[data-rule]").get_attribute("data-rule") == READABLE
        assert len(headings(shown, "h2")) == 3 + len(VIEWS), "the whole page is there"


@NEEDS_CHROMIUM
def test_the_policy_runs_no_other_script_and_loads_nothing(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, write(tmp_path, cpu_report(), [cpu_summary()])) as shown:
        blocked: list[str | None] = []
        shown.page.on("requestfailed", lambda request: blocked.append(request.failure))
        shown.page.evaluate(
            """() => { const script = document.createElement("script"); script.textContent = "window.hit = 1";
            document.body.append(script); const image = document.createElement("img");
            image.src = "http://127.0.0.1:9/picture"; document.body.append(image); }"""
        )
        assert shown.page.evaluate("window.hit") is None
        shown.page.wait_for_function("document.querySelector('img').complete")
        assert any("Content Security Policy" in complaint for complaint in shown.complaints), "the reader would see it"
        assert blocked == ["csp"]


@NEEDS_CHROMIUM
def test_a_click_tells_what_a_box_is_and_zoom_widens_the_rows(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, write(tmp_path, gpu_report(), [gpu_summary()])) as shown:
        rows = shown.page.locator("details[data-rank='0'] .lanes")
        narrow = rows.evaluate("each => each.getBoundingClientRect().width")
        shown.page.get_by_label("16\u00d7").check()
        assert rows.evaluate("each => each.getBoundingClientRect().width") == pytest.approx(narrow * 16, rel=0.01)
        shown.page.get_by_title("shardline: loader").click()
        readout = shown.page.locator("details[data-rank='0'] .readout").inner_text().replace("\xa0", " ")
        assert readout == "shardline: loader (loader): 200 ms, from 0.00 ms"
        shown.check_quiet()


@NEEDS_CHROMIUM
def test_of_very_large_inputs_the_page_says_what_it_leaves_out(browser: Browser, tmp_path: Path) -> None:
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
    path = write(tmp_path, report, summaries)
    assert path.stat().st_size < MAX_PAGE_BYTES
    with opened(browser, path) as shown:
        shown.check_quiet()
        text = shown.page.locator("main").inner_text()
        for said in (
            "more kernels are left out",
            "more operators are left out",
            "more ranks are left out",
            "more in the",
        ):
            assert said in text, said
        assert shown.figures()["memory.0.allocated_peak"] == 9999, "the peak is never thinned out"
        assert shown.figures()["points.0.measured"] == max(point.samples_per_s or 0 for point in report.points)


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


def test_the_same_report_gives_the_same_page() -> None:
    assert render_page(gpu_report(), [gpu_summary()]) == render_page(gpu_report(), [gpu_summary()])


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
