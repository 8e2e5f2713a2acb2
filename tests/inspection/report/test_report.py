"""The report of a run and the page of each stage, of runs of every kind; in a real browser too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from pydantic import ValidationError

from contracts.artifacts import Rejected
from contracts.config import STAGES
from inspection.report.context import beside, console, elsewhere
from inspection.report.page import MOST_BYTES, SECTIONS, render_report, render_stage
from inspection.view import Attempt, Change, Missing, PreviousRun, RunView
from tests.browser import NEEDS_CHROMIUM, opened, started_chromium
from tests.page_text import absent, figures, part, said

NAMES = [name for name, _ in SECTIONS]
OF_STAGES = {"shard": ["data"], "profile": ["profile"], "train": ["results", "training"], "export": ["export"]}
SCRIPT = '</script></style><img src="http://127.0.0.1:9/x" onerror="window.hit=1"><script>window.hit=1</script>'
HOSTILE = SCRIPT + "&\"'\x00\ud800\u202e javascript:alert(1)"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with started_chromium() as browser:
        yield browser


@pytest.mark.parametrize("kind", ["resumed", "cached", "running", "killed", "interrupted", "failed in shard"])
def test_every_run_has_every_section_and_its_states(kind: str, views: dict[str, RunView]) -> None:
    view = views[kind]
    page = render_report(view)
    assert re.findall(r'<section id="(\w+)"', page) == NAMES
    assert f'data-state="{view.state}"' in page.partition("</h1>")[0]
    table = part(page, "stages").partition("</table>")[0]
    rows = re.findall(
        r'<tr><th scope="row">([^<]*)</th>(?:(?!</td>).)*?data-state="([^"]*)">(.*?)</tr>', table, re.DOTALL
    )
    assert [(stage, state) for stage, state, _ in rows] == [(stage.name, stage.state) for stage in view.stages]
    assert all(f"{state}</span>" in row for _, state, row in rows), "by its word too"
    # Names of figures are unique, and nothing is cut from a page.
    figures(page)
    assert "cannot be shown" not in page and "<script" not in page and len(page.encode()) < MOST_BYTES


@NEEDS_CHROMIUM
def test_the_first_screen_answers(views: dict[str, RunView], chromium: Browser, tmp_path: Path) -> None:
    change = Change(name="train.epochs", before="1", now="2")
    previous = PreviousRun(id="before", changes=[change], data_known=True)
    view = views["failed in train"].model_copy(update={"previous": previous})
    (tmp_path / "report.html").write_text(render_report(view))
    with opened(chromium, tmp_path / "report.html") as shown:
        summary = shown.page.locator("#summary")
        box = summary.bounding_box()
        assert box is not None and box["y"] + box["height"] <= 900
        text = shown.page.inner_text("body").partition("Stages of this run")[0].replace("\xa0", " ")
        assert summary.locator("a", has_text="log").count() == 1
    answers = ["failed", "train cannot <b>work</b>", "mend it", "The same command", "output of shard, profile"]
    answers += ["Test ", "Export", "Cost", "Preemptions", "train.epochs 1 \u2192 2 (run before)", "samples: train"]
    assert [answer for answer in answers if answer not in text] == []


@NEEDS_CHROMIUM
@pytest.mark.parametrize(("kind", "width"), [("resumed", 320), ("failed in export", 1920), ("train", 320)])
def test_a_page_is_quiet_and_nothing_is_cut_off(
    kind: str, width: int, views: dict[str, RunView], chromium: Browser, tmp_path: Path
) -> None:
    page = render_stage(views["resumed"], kind) if kind in STAGES else render_report(views[kind])
    (tmp_path / "page.html").write_text(page)
    with opened(chromium, tmp_path / "page.html", width=width) as shown:
        shown.check_quiet()
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
        shown.page.emulate_media(color_scheme="dark")
        assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 18, 23)"


@pytest.mark.parametrize("stage", STAGES)
def test_the_page_of_a_stage_has_its_sections(stage: str, views: dict[str, RunView]) -> None:
    page = render_stage(views["resumed"], stage)
    assert re.findall(r'<section id="(\w+)"', page) == OF_STAGES[stage]
    targets = [target for target in re.findall(r'href="([^"]*)"', page) if target != "data:,"]
    assert all(target.startswith(("#", "https://console.cloud.google.com/")) for target in targets)


def spoil(value: Any) -> Any:
    """Return a document's values with every text replaced but those that decide what is shown."""
    if isinstance(value, dict):
        return {key: spoil(each) for key, each in value.items()}
    if isinstance(value, list):
        return [spoil(each) for each in value]
    kept = ("", "image_classification", "accuracy", "show")
    return HOSTILE if isinstance(value, str) and value not in kept else value


def hostile(view: RunView) -> RunView:
    """Return the view with text that would be a script in every place that may hold any text."""
    original = view.model_dump()
    values = spoil(original)
    for place, curve in enumerate(values["curves"]):
        curve["name"] = f"{HOSTILE}{place}"
    for place, stage in enumerate(values["stages"]):
        stage["name"] = f"{HOSTILE}{place}"
    for _ in range(10):
        try:
            return RunView.model_validate(values)
        except ValidationError as errors:
            # A name, a hash or one of a few words: no other text can be in a document.
            for error in errors.errors():
                *folders, name = error["loc"]
                target, source = values, original
                for folder in folders:
                    target, source = target[folder], source[folder]
                target[name] = source[name]
    raise AssertionError("no hostile view")


@NEEDS_CHROMIUM
def test_names_from_a_run_are_text(views: dict[str, RunView], chromium: Browser, tmp_path: Path) -> None:
    view = hostile(views["resumed"])
    (tmp_path / "report.html").write_text(render_report(view), encoding="utf-8")
    with opened(chromium, tmp_path / "report.html") as shown:
        shown.check_quiet()
        assert shown.page.evaluate("window.hit") is None
        assert [each.get_attribute("data-section") for each in shown.page.locator("section").all()] == NAMES
        assert shown.page.locator("script, img:not([src^='data:image/jpeg;base64,'])").count() == 0
        assert shown.page.locator("#classes tbody th").first.text_content() == (
            HOSTILE.replace("\x00", "\ufffd").replace("\ud800", "\ufffd").replace("\u202e", "\ufffd")
        )
        assert "cannot be shown" not in shown.page.inner_text("body")


def test_links_lead_to_known_places_only(views: dict[str, RunView]) -> None:
    href = beside("file:///lines/a%20b")
    assert href("file:///lines/a%20b/train/log.txt") == "../../train/log.txt"
    assert href("file:///lines/a%20b/../x") == "file:///lines/a%20b/../x"
    assert href('file:///lines/a%20b/"<x>') == "../../%22%3Cx%3E"
    assert elsewhere("gs://b/a b") == "https://console.cloud.google.com/storage/browser/_details/b/a%20b"
    assert console("gs://b/x/") == "https://console.cloud.google.com/storage/browser/b/x", "a folder is no object"
    for uri in ("javascript:alert(1)", "data:text/html,x", "https://example.com", "memory://x", "//example.com"):
        assert href(uri) is elsewhere(uri) is console(uri) is None
    view = views["fresh"]
    evil = Attempt(
        name="a", started_at=None, ended_at=None, exit_code=0, error="", folder="x", log="javascript:alert(1)"
    )
    stages = [view.stages[0].model_copy(update={"attempts": [evil]})]
    page = render_report(view.model_copy(update={"stages": stages, "console": "javascript:alert(2)"}))
    assert 'href="javascript' not in page


def test_a_log_in_a_bucket_is_linked_in_the_console(views: dict[str, RunView]) -> None:
    folder, run = "gs://bucket/train/attempts/a b", "https://console.cloud.google.com/vertex-ai/pipelines/runs/1"
    attempt = Attempt(name="a b", started_at=None, ended_at=None, exit_code=0, error="", folder=folder, log=None)
    view = views["fresh"]
    stages = [view.stages[2].model_copy(update={"attempts": [attempt]})]
    page = part(render_report(view.model_copy(update={"stages": stages, "console": run})), "overview")
    assert 'href="https://console.cloud.google.com/storage/browser/bucket/train/attempts/a%20b"' in page
    assert f'<a href="{run}">logs, by the run&#39;s page</a>' in page
    local = part(render_report(view), "stages")
    assert f'href="../../train/attempts/{view.id}/log.txt"' in local


@pytest.mark.parametrize("stage", ["shard", "train"])
def test_later_sections_name_the_stage_that_failed(stage: str, views: dict[str, RunView]) -> None:
    page = render_report(views[f"failed in {stage}"])
    assert re.findall(r'id="error-(\w+)"', page) == [stage]
    for later in STAGES[STAGES.index(stage) + 1 :]:
        name = {"train": "curves", "shard": "data"}.get(later, later)
        assert f"stage {later}: not started, stage {stage}: failed ({stage} cannot" in absent(page)[name]


def test_a_large_run_stays_below_the_limit_and_names_what_is_left_out(views: dict[str, RunView]) -> None:
    view, long = views["fresh"], "<&a very long name" * 100
    assert view.shards is not None and view.evaluation is not None
    classes = [f"class {place} {long}" for place in range(1000)]
    rejected = [Rejected(path=f"{place}{long}", reason=long) for place in range(3000)]
    loss = next(curve for curve in view.curves if curve.name == "train/loss")
    details = view.evaluation.details
    outcomes = [{"name": name, "samples": 5, "predicted": 5, "right": place % 5} for place, name in enumerate(classes)]
    evaluation = view.evaluation.model_copy(
        update={"details": details | {"classes": outcomes, "confusion": [(n, n - 1, 1) for n in range(1, 1000)]}}
    )
    many = view.model_copy(
        update={
            "name": long,
            "shards": view.shards.model_copy(update={"classes": classes, "rejected": rejected}),
            "evaluation": evaluation,
            "curves": [loss.model_copy(update={"name": f"{n}{long}", "rows": 10**6}) for n in range(50)],
            "missing": [Missing(what=f"document {place}", reason=long) for place in range(500)],
            "config": {"run": {f"key{place}": long for place in range(200)}},
        }
    )
    page = render_report(many)
    assert len(page.encode()) < MOST_BYTES and all(f'data-section="{name}"' in page for name in NAMES)
    assert all(len(render_stage(many, stage).encode()) < MOST_BYTES for stage in STAGES)
    words = said(page)
    for remark in ("Of 1,000 classes", "the lowest recall", "more curves are not shown", "more files are not shown"):
        assert remark in words, remark
    assert "more pairs are not shown" in words and "characters are not shown" in words


def test_a_section_that_cannot_be_drawn_has_the_reason(views: dict[str, RunView]) -> None:
    view = views["fresh"]
    assert view.evaluation is not None
    first, *others = view.evaluation.details["classes"]
    details = view.evaluation.details | {"classes": [first | {"samples": 10**400}, *others]}
    broken = view.model_copy(update={"evaluation": view.evaluation.model_copy(update={"details": details})})
    page = render_report(broken)
    assert re.findall(r'<section id="(\w+)"', page) == NAMES
    assert page.count("cannot be shown") == 1 and "OverflowError" in said(part(page, "results"))
    assert part(page, "training") == part(render_report(view), "training")
