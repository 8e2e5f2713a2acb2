"""Sections of a page on their own: what cannot be drawn, and what words claim."""

from __future__ import annotations

import re
from typing import Any

import pytest

from contracts.artifacts import EvaluationReport
from inspection.page import SECTIONS, render_report, render_stage
from inspection.page.links import console
from inspection.run.view import AttemptView, Missing, RunView
from tests.inspection import planted
from tests.page_text import figures, part, said

HUGE = 10**400


def huge_evaluation() -> EvaluationReport:
    """Counts that a schema takes and no division does."""
    found = planted.make_evaluation()
    first, *others = found.details["classes"]
    return found.model_copy(update={"details": found.details | {"classes": [first | {"samples": HUGE}, *others]}})


def test_a_section_that_cannot_be_drawn_says_so_and_the_others_are_drawn() -> None:
    view = planted.fresh(evaluation=huge_evaluation())
    sound = render_report(planted.fresh())
    page = render_report(view)
    assert re.findall(r'<section id="(\w+)"', page) == [name for name, _ in SECTIONS]
    assert "This part cannot be shown" in said(part(page, "results"))
    assert "OverflowError" in said(part(page, "results"))
    assert "Results" in said(part(page, "results"))
    assert part(page, "time") == part(sound, "time")
    assert page.count("This part cannot be shown") == 1
    stage = render_stage(view, "train")
    assert "This part cannot be shown" in said(part(stage, "results"))
    assert 'id="goodput"' in stage


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_time_that_is_no_number_is_no_number_in_words_either(value: float) -> None:
    fields = ("checkpoint_s", "wall_s", "between_attempts_s", "preemptions_per_node_hour", "goodput_percent")
    for name in fields:
        page = part(render_report(planted.fresh(goodput=planted.make_goodput(**{name: value}))), "time")
        # Widths of the bar too.
        assert not re.search(r"\b(nan|inf)\b", page), page
        assert "cannot be shown" not in page
        assert "productive" in page


def test_what_was_saved_is_what_on_demand_would_have_cost_more() -> None:
    money = planted.make_money().model_copy(update={"cost_usd": 22.0, "on_demand_usd": 30.0})
    assert figures(render_report(planted.fresh(money=money)))["money.saved"] == 8.0


def test_an_unknown_cost_has_its_reason_and_what_to_set() -> None:
    reason = "no price of a3-megagpu-8g is known: set resources.price_usd_per_h"
    view = planted.fresh(money=None, missing=[Missing(what="cost", reason=reason)])
    words = said(part(render_report(view), "time"))
    assert "no price of a3-megagpu-8g is known" in words
    assert "of all machines together" in words and "of one machine" not in words
    assert "resources.machine.type" in words


def test_a_best_checkpoint_is_of_the_steps_that_training_had() -> None:
    trained = planted.make_checkpoint(planted.CLASSES).model_copy(update={"best_step": 144, "step": 144})
    view = planted.fresh(checkpoint=trained, goodput=planted.make_goodput(steps=216))
    assert "Step 144 of 216 that the training had" in said(part(render_report(view), "results"))
    # Of a reused training nobody has told.
    bare = said(part(render_report(view.model_copy(update={"goodput": None})), "results"))
    assert "Step 144, epoch" in bare and "of 144" not in bare


def drawn(view: RunView) -> list[tuple[str, str]]:
    return re.findall(r'<tr data-stage="([^"]*)" data-state="([^"]*)"', render_report(view))


VERTEX: dict[str, Any] = {"place": "vertex", "config": {"register": {"upload": True}}}
UPLOADED = {"verdict": "uploaded", "resourceName": "projects/1/locations/l/models/2@1"}


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({**VERTEX}, "not started"),
        ({**VERTEX, "registration": {"verdict": "refused", "proof": "unproven: not run on a GPU"}}, "done"),
        ({"registration": UPLOADED}, "done"),
        ({**VERTEX, "state": "running"}, "waiting"),
        ({**VERTEX, "place": "local"}, None),
        ({}, None),
    ],
)
def test_the_registry_is_the_last_row_where_the_run_has_it(changes: dict[str, Any], state: str | None) -> None:
    names = [("shard", "done"), ("profile", "done"), ("train", "done"), ("export", "done")]
    assert drawn(planted.fresh(**changes)) == names + ([("register", state)] if state else [])


def test_an_attempt_in_a_bucket_leads_to_its_folder_and_to_the_services_logs() -> None:
    folder = "gs://bucket/flowers/train/attempts/a b"
    attempt = AttemptView(name="a b", started_at=None, ended_at=None, exit_code=0, error="", folder=folder, log=None)
    stages = [planted.make_stage("train", attempts=[attempt], uri="gs://bucket/flowers/train/0123")]
    run = "https://console.cloud.google.com/vertex-ai/pipelines/runs/1"
    page = part(render_report(planted.fresh(stages=stages, console=run)), "overview")
    assert 'href="https://console.cloud.google.com/storage/browser/bucket/flowers/train/attempts/a%20b"' in page
    assert f'<a href="{run}">logs, by the run&#39;s page</a>' in page
    # A folder has no page of details.
    assert "_details" not in page
    local = attempt.model_copy(update={"folder": "file:///lines/train/attempts/a"})
    page = part(render_report(planted.fresh(stages=[planted.make_stage("train", attempts=[local])])), "overview")
    assert "logs, by" not in page


def test_a_folders_address_is_not_an_objects() -> None:
    assert console("gs://b/x/") == "https://console.cloud.google.com/storage/browser/b/x"
    assert console("gs://b/x") == "https://console.cloud.google.com/storage/browser/_details/b/x"
