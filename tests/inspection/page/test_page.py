"""The page of a run, of runs of every kind; in a real browser too."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from inspection.page import MAX_REPORT_BYTES, MAX_STAGE_BYTES, SECTIONS, render_report, render_stage
from inspection.run.view import Curves, Missing, RunView
from inspection.terminal import print_run
from tests.browser import NEEDS_CHROMIUM, opened, started_chromium
from tests.inspection import planted
from tests.inspection.planted import KINDS, STAGES
from tests.page_text import absent, figures, part, said, texts

ALL = [name for name, _ in SECTIONS]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_has_every_section_and_its_state(kind: str) -> None:
    view = KINDS[kind]()
    page = render_report(view)
    assert re.findall(r'<section id="(\w+)"', page) == ALL
    assert page.partition("<h1>")[2].startswith("flowers")
    rows = re.findall(r'<tr data-stage="([^"]*)" data-state="([^"]*)">(.*?)</tr>', page, re.DOTALL)
    assert [(stage, state) for stage, state, _ in rows] == [(stage.name, stage.state) for stage in view.stages]
    for _, state, row in rows:
        assert f">{state}<" in row or f"{state}</span>" in row, "by its word too"


def test_a_run_that_went_through_shows_what_was_measured() -> None:
    view = planted.fresh()
    page = render_report(view)
    found, read = figures(page), texts(page)
    assert set(absent(page)) == {"missing"}
    assert found["overview.metric"] == 0.925
    assert read["overview.goodput"] == "73.5 %"
    assert read["overview.cost"] == "1.31 USD"
    assert view.data is not None
    assert found["class.0.recall"] == 37 / 40
    for split in view.data.splits:
        assert found[f"data.{split.name}"] == split.samples
        assert found[f"data.{split.name}.3"] == split.by_class[3]
    assert read["data.rejected.0"] == "3"
    assert part(page, "sheet").partition("</ul>")[0].count("<img") == 16
    assert page.count(" data-rule=") == 2
    assert view.goodput is not None
    for name in ("productive_s", "start_up_s", "checkpoint_s", "lost_s"):
        assert found[f"time.{name}"] == getattr(view.goodput, name)
    assert read["money.on_demand"] == "2.71 USD"
    assert found["results.wrong"] == 24
    assert found["confusion.2.3"] == 3
    assert found["class.2.recall"] == 37 / 40
    assert part(page, "worst").partition("</ul>")[0].count("<li") == 12
    assert "relative error 3.4e-04 limit 0.005" in said(part(page, "gates"))
    assert read["accuracy.fp16.drop"] == "+0.31"
    assert read["latency.1.median_ms"] == "12.000" and found["engine.bytes"] == 5
    assert "epochs: 40" in said(part(page, "configuration-yaml"))


def test_curves_have_a_chart_each_and_a_strip_over_time() -> None:
    view = planted.resumed()
    page = render_report(view)
    curves = part(page, "curves")
    titles = re.findall(r'data-chart="([^"]*)"', curves)
    over_steps = ["Loss", "Accuracy", "Learning rate", "Throughput, samples/s", "Data time, % of the time"]
    assert titles == [*over_steps, "Gradient norm"]
    assert "train/loss: from" in curves and "3 preemptions" in said(curves) and "3 resumes" in said(curves)
    marks = re.findall(r'data-mark="preemption"[^>]*>.*?<title>(.*?)</title>', curves, re.DOTALL)
    assert len(marks) == 3 and "told to stop (SIGTERM)" in marks[0]
    assert said(part(page, "curves-marks")).count("preemption, step") == 3
    found = figures(page)
    assert view.curves is not None
    values = view.curves.curves[0].values
    assert (found["curves.train/loss.lowest"], found["curves.train/loss.last"]) == (min(values), values[-1])


def test_what_no_chart_says_better_is_a_line(tmp_path: Path) -> None:
    curves = planted.make_curves(20)
    names = {"train/learning_rate": 0.01, "train/epoch": 3.0, "train/skipped_steps": 0.0}
    flat = [curves.curves[0].model_copy(update={"name": name, "values": [value] * 20}) for name, value in names.items()]
    kept = [curve for curve in curves.curves if curve.name not in names]
    page = render_report(planted.fresh(curves=curves.model_copy(update={"curves": [*kept, *flat]})))
    assert "<code>train/learning_rate</code> 0.01" in page and "<code>train/skipped_steps</code> 0" in page
    assert 'data-chart="train/epoch"' not in page and 'data-chart="Learning rate"' not in page
    assert 'data-figure="curves.train/epoch.last"' in page, "its numbers stay"


def test_warnings_are_on_the_first_section_and_on_the_terminal() -> None:
    warned = {"warnings": ["2 samples <b>are</b> copies"]}
    view = planted.fresh(data=planted.make_data().model_copy(update=warned))
    page = render_report(view)
    assert "<li>data: 2 samples &lt;b&gt;are&lt;/b&gt; copies</li>" in page
    assert ">Warnings</h3>" in page and ">Warnings</h3>" not in render_report(planted.fresh())
    print_run(view, stream := StringIO())
    assert stream.getvalue().count("2 samples <b>are</b> copies") == 1


def test_down_sampling_is_said() -> None:
    page = render_report(planted.fresh(curves=planted.make_curves(400, rows=200_000)))
    assert "1,000,040 rows, at most 400 points per curve." in page


def test_of_a_running_run_sections_say_what_they_wait_for() -> None:
    page = render_report(planted.running())
    found = absent(page)
    assert found["results"] == "The evaluation on the test split: not yet: stage train is running"
    assert found["export"] == "The export: not yet: stage export waits for those before it"
    assert "1,200 of 4,000 steps: loss 0.81, data time 21.0 %" in said(page)
    assert texts(page)["overview.metric"] == "not yet"


@pytest.mark.parametrize("stage", STAGES)
def test_what_failed_stands_in_full_with_what_to_do(stage: str) -> None:
    page = render_report(planted.failed_in(stage))
    assert re.findall(r'data-error="(\w+)"', page) == [stage]
    words = said(page)
    assert f"Stage {stage} failed" in words and "the source holds no images" in words
    assert "<strong>check sharding.source</strong>" in page
    for later in STAGES[STAGES.index(stage) + 1 :]:
        name = {"train": "curves"}.get(later, later)
        assert f"stage {later} was not started: stage {stage} failed" in absent(page)[name]


def test_a_precision_that_its_gates_refused_stands_out() -> None:
    page = render_report(planted.int8_refused())
    tried = [said(row) for row in re.findall(r"<tr.*?</tr>", part(page, "tried").partition("</table>")[0], re.DOTALL)]
    assert len(tried) == 3 and all(name in row for name, row in zip(["int8", "fp16"], tried[1:], strict=True))
    assert "failed" in tried[1] and "accuracy is 0.909375, torch's is 0.9375" in tried[1].replace("&#39;", "'")
    assert "kept" in tried[2] and "1 module kept in fp32: encoder.norm" in tried[2].replace("\u00a0", " ")
    assert "int8 was asked for, and refused by its gates" in said(part(page, "overview"))
    first = said(part(page, "gates").partition("<tbody>")[2].partition("</tr>")[0])
    assert all(words in first for words in ("metric int8", "failed", "CPU", "limit 0.005"))


def test_the_verdict_follows_the_proof() -> None:
    page = render_report(planted.fresh())
    section = part(page, "export")
    assert 'data-verdict="unproven"' in page and "unproven: not run on a GPU" in said(section)
    assert "model.fp16.sm89.engine, runtime tensorrt_rtx" in said(section)
    assert "shardline verify on a GPU of sm89 runs it" in said(section)
    assert figures(page)["latency.1.median_ms"] == 12.0
    page = render_report(planted.proven())
    assert 'data-verdict="proven"' in page and "proven on NVIDIA L4 (sm89)" in said(part(page, "export"))
    gates = said(part(page, "gates"))
    assert "NVIDIA L4 (sm89)" in gates and "no GPU of sm89" in gates


def test_lineage_shows_which_hash_is_one_before() -> None:
    page = part(render_report(planted.fresh()), "lineage")
    rows = [said(row) for row in re.findall(r"<tr.*?</tr>", page.partition("<tbody>")[2], re.DOTALL)]
    ties = ("content of listing", "fingerprint of shards", "parameters of checkpoint", "graph fp16 of export")
    assert all(tie in row for tie, row in zip(ties, rows[1:5], strict=True))
    assert "11" * 32 in rows[1] and "4 of 4 documents" in said(page)


def test_logs_are_linked_from_where_the_report_lies() -> None:
    local = render_report(planted.fresh())
    assert f'href="../../train/attempts/{planted.RUN_ID}/log.txt"' in local
    remote = render_report(planted.resumed())
    name = f"bucket/flowers/train/attempts/{planted.RUN_ID}.3/log.txt"
    assert f'href="https://console.cloud.google.com/storage/browser/_details/{name}"' in remote
    assert f'<code class="uri">gs://{name}</code>' in remote
    moved = render_report(planted.fresh(), href=lambda uri: f"/files/{uri.removeprefix(planted.LINE)}")
    assert "../../" not in moved


def test_a_links_target_comes_from_no_word_of_the_run() -> None:
    stage = planted.make_stage("train")
    evil = stage.attempts[0].model_copy(update={"log": "javascript:alert(1)"})
    outside = stage.attempts[0].model_copy(update={"log": f"{planted.LINE}/../../etc/passwd"})
    stages = [stage.model_copy(update={"attempts": [outside, evil]})]
    page = render_report(planted.fresh(stages=stages, console="javascript:alert(2)"))
    targets = [target for target in re.findall(r'href="([^"]*)"', page) if target != "data:,"]
    assert targets
    assert all(
        target.startswith(("#", "../../", "file:///", "https://console.cloud.google.com/")) for target in targets
    )
    assert not any(".." in target.removeprefix("../../") for target in targets if target.startswith("../../"))


SCRIPT = '</script></style><img src="http://127.0.0.1:9/x" onerror="window.hit=1"><script>window.hit=1</script>'
HOSTILE = SCRIPT + "&\"'\x00\ud800\u202e javascript:alert(1)"
READABLE = HOSTILE.replace("\x00", "\ufffd").replace("\ud800", "\ufffd").replace("\u202e", "\ufffd")


def _spoil(value: Any, words: Callable[[str], bool]) -> Any:
    """Return a document's values with every free text replaced."""
    if isinstance(value, dict):
        return {key: _spoil(each, words) for key, each in value.items()}
    if isinstance(value, list):
        return [_spoil(each, words) for each in value]
    return HOSTILE if isinstance(value, str) and not words(value) else value


def hostile() -> RunView:
    """Put text that would be a script into every place where text comes from a run."""
    fixed = set(SCHEMA_WORDS)
    values = planted.resumed().model_dump()
    spoilt = _spoil(
        values,
        lambda text: text in fixed or re.fullmatch(r"([0-9a-f]{2})+|sm\d+|[\w.]+\.(engine|onnx)", text) is not None,
    )
    for each in spoilt["pictures"]:
        each["jpeg"] = planted.jpeg(1)
    spoilt["pictures"][0]["jpeg"] = HOSTILE
    # Names of curves are names of figures, which must differ.
    for place, each in enumerate(spoilt["curves"]["curves"]):
        each["name"] = f"{HOSTILE}{place}"
    for place, stage in enumerate(spoilt["stages"]):
        stage["name"] = f"{HOSTILE}{place}" if stage["name"] == HOSTILE else stage["name"]
        for number, attempt in enumerate(stage["attempts"]):
            attempt["name"] = f"{HOSTILE}{place}.{number}"
    for place, split in enumerate(spoilt["data"]["splits"]):
        split["name"] = f"{HOSTILE}{place}"
    spoilt["export"] |= {"seal": "", **{name: values["export"][name] for name in ("signature", "runtime")}}
    return RunView.model_validate(spoilt)


SCHEMA_WORDS = (
    "tensor", "tuple", "dict",
    "running", "silent", "unreadable", "stopped", "interrupted", "failed", "succeeded", "waiting", "done", "reused",
    "not started",
    "start", "checkpoint", "best", "preemption", "interruption", "kill", "crash", "resume", "end", "local", "vertex",
    "measured", "out of memory", "crashed", "hung", "gpu", "compute", "copy", "communication", "fp32", "bf16", "fp16",
    "none", "whole", "sweep", "profile", "evaluation", "export", "verification", "model", "ema",
    "test", "passed", "not run", "kept", "proven", "unproven", "input", "output", "epochs", "",
    "shard", "train", "full", "blocks", "all", "balanced", "max", "min",
)  # fmt: skip


@NEEDS_CHROMIUM
def test_names_from_a_run_are_text_and_the_page_asks_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render_report(hostile()), encoding="utf-8")
    with started_chromium() as browser, opened(browser, path) as shown:
        shown.check_quiet()
        assert shown.page.evaluate("window.hit") is None
        assert [each.get_attribute("data-section") for each in shown.page.locator("section").all()] == ALL
        assert shown.page.locator("script").count() == 0
        assert shown.page.locator("img:not([src^='data:image/jpeg;base64,'])").count() == 0
        assert shown.page.locator("#sheet img").nth(1).evaluate("each => each.naturalWidth") == 24, "it is decoded"
        assert shown.page.locator("#classes tbody th").first.text_content() == READABLE
        assert shown.page.locator("#sheet li span").nth(1).text_content() == READABLE[:39] + "…"
        assert READABLE[:60] in (shown.page.locator("#rejected code").first.text_content() or "")
        assert READABLE in (shown.page.locator("article[data-rule]").first.text_content() or "")
        assert "\u202e" not in shown.page.content()


def test_numbers_that_are_none_and_lists_that_do_not_fit_end_nothing() -> None:
    nan = float("nan")
    curves = planted.make_curves(20).curves
    broken = [
        curves[0].model_copy(update={"values": [nan] * 20}),
        curves[1].model_copy(update={"values": [nan, *[1e308] * 19]}),
    ]
    broken.append(curves[2].model_copy(update={"times": [float("inf")] * 20}))
    data = planted.make_data()
    data = data.model_copy(
        update={"splits": [data.splits[0].model_copy(update={"by_class": [1]})], "rejected_by_reason": {}}
    )
    evaluation = planted.make_evaluation()
    details = evaluation.details | {"confusion": [(90, 91, 4), (-1, 0, 2)]}
    evaluation = evaluation.model_copy(update={"samples": 0, "metrics": {"accuracy": nan}, "details": details})
    goodput = planted.make_goodput(**dict.fromkeys(("wall_s", "productive_s", "start_up_s"), 0.0), goodput_percent=nan)
    view = planted.fresh(
        curves=Curves(curves=broken, rows=60), data=data, evaluation=evaluation, goodput=goodput, started_at=1e300,
        seen_at=float("inf"), config={"key": object.__name__, "when": 1.5},
    )  # fmt: skip
    page = render_report(view)
    assert "nan" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL).lower().replace("finance", "")
    many = evaluation.model_copy(update={"details": details | {"classes": details["classes"] * 5}})
    assert "confused most" in render_report(planted.fresh(evaluation=many))


def test_a_very_large_run_stays_below_its_size_and_says_what_is_left_out() -> None:
    view = planted.large()
    page = render_report(view)
    assert len(page.encode()) < MAX_REPORT_BYTES
    for stage in STAGES:
        assert len(render_stage(view, stage).encode()) < MAX_STAGE_BYTES
    assert re.findall(r'<section id="(\w+)"', page) == ALL
    figures(page)
    words = said(page)
    for left_out in (
        "Of 1,000 classes",
        "with the lowest recall are shown",
        "more curves are left out",
        "bars stand for 2,000 shards",
        "more files are left out",
        "1,000,000 rows",
        "older ones, are left out",
        "characters are left out",
        "more of them are left out",
        "200 preemptions",
    ):
        assert left_out in words, left_out


def test_texts_of_any_length_are_cut_in_the_end() -> None:
    long = "<&" * 200_000
    exported = planted.make_export(precision=long, asked_precision=long)
    view = planted.fresh(
        name=long, id=long, line=f"file:///{long}", export=exported, config={long: long}, error=long,
        stages=[planted.make_stage("shard", "failed", error=long).model_copy(update={"name": long, "made": long})],
        missing=[Missing(what=long, reason=long)],
    )  # fmt: skip
    page = render_report(view)
    assert len(page.encode()) < MAX_REPORT_BYTES
    assert all(f'data-section="{name}"' in page for name in ALL)
    assert len(render_stage(view, "export").encode()) < MAX_STAGE_BYTES


@pytest.mark.parametrize("stage", STAGES)
def test_the_page_of_a_stage_stands_alone(stage: str) -> None:
    page = render_stage(planted.resumed(), stage)
    wanted = {"shard": ["data"], "profile": ["profile"], "train": ["results", "curves", "time"], "export": ["export"]}
    assert re.findall(r'<section id="(\w+)"', page) == wanted[stage]
    assert "data-absent" not in page and "<script" not in page
    targets = [target for target in re.findall(r'href="([^"]*)"', page) if target != "data:,"]
    assert all(target.startswith(("#", "https://console.cloud.google.com/")) for target in targets)


@NEEDS_CHROMIUM
def test_the_page_of_a_stage_asks_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "stage.html"
    path.write_text(render_stage(planted.resumed(), "train"), encoding="utf-8")
    with started_chromium() as browser, opened(browser, path, width=700) as shown:
        shown.check_quiet()
