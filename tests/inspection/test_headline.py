"""One run reads the same wherever it is looked at: the same numbers in the same words."""

from __future__ import annotations

import json
import re
from html import unescape
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import ExportManifest, GoodputRecord, Headline, RunRecord
from contracts.proof import verification_uri
from inspection.find import find_place
from inspection.headline import RunHeadline, binomial_interval, headline, make_headline
from inspection.metrics import stage_metrics
from inspection.money import find_money
from inspection.read import read_run
from inspection.report.page import render_report
from inspection.runs import RunRow, list_runs
from inspection.terminal import print_run, print_runs, to_json
from inspection.view import RunView
from tests.export_fields import make_verification
from tests.inspection.lines import Planted, plant

# The price table knows it: the least is its spot price, the most its on-demand price.
SPOT = {"resources": {"machine": {"type": "n1-standard-4"}, "strategy": "SPOT"}, "cloud": {"region": "us-central1"}}


@pytest.fixture
def line(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "photos"


def look(planted: Planted) -> RunView:
    return read_run(find_place(str(planted.folder)), pictures=False)


def listed(planted: Planted) -> RunRow:
    return next(entry for entry in list_runs(str(planted.line.parent)) if entry.id == planted.run_id)


def record_of(planted: Planted) -> RunRecord:
    return RunRecord.parse((planted.folder / "run.json").read_bytes(), where="run.json")


def words(html: str) -> str:
    """Return what a reader of a page sees."""
    return " ".join(unescape(re.sub("<[^>]*>", " ", html)).replace("\u00a0", " ").split())


def printed(show: Any, given: Any) -> str:
    show(given, stream := StringIO())
    return " ".join(stream.getvalue().split())


def texts(result: RunHeadline) -> dict[str, str]:
    return {figure.name: figure.text for figure in result.figures if figure.text}


def read_outputs(planted: Planted, view: RunView, entry: RunRow) -> dict[str, str]:
    """Return the text of each output of a run; the figures of the page are checked one by one."""
    page = render_report(view)
    for name, text in texts(headline(view)).items():
        if name not in ("state", "export"):
            (shown,) = re.findall(f'data-figure="overview.{name}">([^<]*)<', page)
            assert shown.replace("\u00a0", " ") == text, name
    return {
        "page": words(page),
        "terminal": printed(print_run, view),
        "terminal's list": printed(print_runs, [entry]),
    }


def test_every_door_says_the_same(line: Path, small_shards: str) -> None:
    planted = plant(line, small_shards, kind="resumed", sections=SPOT)
    view, entry = look(planted), listed(planted)
    result = headline(view)
    assert entry.headline == result
    assert json.loads(to_json(view))["headline"] == json.loads(result.model_dump_json())
    assert result.baseline == "baseline 33.33 % (always red)" and result.baseline in result.figure("metric").note
    assert result.figure("metric").value == 0.9375 and result.figure("export").value is None
    figures = texts(result)
    assert set(figures) == {"state", "metric", "export", "duration", "goodput", "preemptions", "cost"}
    assert figures["metric"] == "93.75 %" and figures["export"] == "fp16, unproven" and figures["preemptions"] == "1"
    assert re.fullmatch(r"[\d.]+ USD", figures["cost"]) and "spot machines; prices: read 20" in result.figures[-1].note
    outputs = read_outputs(planted, view, entry)
    for output, content in outputs.items():
        for name, text in figures.items():
            # The list rounds durations, and its head has the unit of costs.
            shown = text.removesuffix(" USD") if output == "terminal's list" else text
            unlisted = output == "terminal's list" and name in ("duration", "goodput")
            assert shown in content or unlisted, (output, name)
    for figure in result.figures:
        if figure.name not in ("state", "duration", "export"):
            assert figure.note in outputs["terminal"], figure.name


def test_vertex_metrics_and_the_experiment_have_the_same_numbers(line: Path, small_shards: str) -> None:
    planted = plant(line, small_shards, kind="resumed", sections=SPOT)
    view, record = look(planted), record_of(planted)
    result = headline(view)
    assert view.checkpoint is not None
    row = record.row
    for numbers in (stage_metrics(view.checkpoint, view, view.goodput), row):
        assert numbers["train_test_accuracy"] == result.metric_value
        assert (numbers["train_test_accuracy_low"], numbers["train_test_accuracy_high"]) == (
            result.metric_low,
            result.metric_high,
        )
        assert numbers["train_cost_usd"] == result.cost_usd
        assert numbers["train_goodput_percent"] == result.goodput_percent
        assert numbers["train_preemptions"] == result.preemptions
    assert row["run_wall_s"] == result.wall_s and row["export_proven"] == 0
    # And what the headline does not have.
    assert view.export is not None and stage_metrics(view.export, view).items() <= row.items()
    assert (row["train_steps"], row["train_epochs"], row["export_latency_ms"]) == (180, 2, 1.5)


# --- verified since ---------------------------------------------------------------------------------------------------


def verify(planted: Planted) -> None:
    """Leave what `shardline verify` leaves on a GPU of the engine."""
    document = ExportManifest.load(planted.uris["export"])
    uri = verification_uri(planted.uris["export"], document.engine)
    assert uri is not None
    storage.replace(uri, make_verification(document).to_json())


def test_the_newest_verification_wins_at_every_door(line: Path, small_shards: str) -> None:
    planted = plant(line, small_shards)
    assert [entry.headline.verdict for entry in list_runs(str(line.parent))] == ["unproven: not run on a GPU"]
    verify(planted)
    view = look(planted)
    export = headline(view).figure("export")
    assert (export.text, export.note) == ("fp16, proven", "on NVIDIA L4 (sm89)")
    assert listed(planted).headline == headline(view)
    assert "fp16, proven" in words(render_report(view)) and "fp16, proven" in printed(print_run, view)
    assert "unproven" not in printed(print_runs, [listed(planted)])
    assert view.export is not None
    assert stage_metrics(view.export, view)["export_proven"] == 1


# --- reused -----------------------------------------------------------------------------------------------------------


def test_what_an_earlier_run_trained_is_marked_and_counted_once(line: Path, small_shards: str) -> None:
    first = plant(line, small_shards, sections=SPOT)
    again = plant(line, small_shards, kind="cached", run_id="20261122-090000-0001", sections=SPOT)
    view = look(again)
    result = headline(view)
    assert listed(again).headline == result and result.training_reused
    for name in ("goodput", "preemptions", "cost"):
        assert result.text(name) == f"{headline(look(first)).text(name)} (reused)"
    assert "reused" not in result.text("metric") + result.text("duration")
    rows = [record_of(planted).row for planted in (first, again)]
    assert "train_cost_usd" in rows[0] and not {"train_cost_usd", "train_node_hours"} & set(rows[1])
    assert rows[1]["train_reused_cost_usd"] == rows[0]["train_cost_usd"]


# --- arithmetic and words ---------------------------------------------------------------------------------------------


def test_the_interval_of_a_share() -> None:
    """Against the values of Newcombe, Two-sided confidence intervals for the single proportion, 1998, table I."""
    for right, samples, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611)):
        assert binomial_interval(right / samples, samples) == pytest.approx((low, high), abs=5e-5)
    assert binomial_interval(1.0, 29)[1] == 1.0


@pytest.mark.parametrize(
    ("task", "metric", "value", "text", "has_interval"),
    [
        ("image_classification", "accuracy", 0.9943, "99.43 %", True),
        ("image_classification", "f1_macro", 0.5, "50.00 %", False),
        ("own", "distance", 0.00004, "4.000e-05", False),
        ("own", "accuracy", 0.9938, "0.9938", False),
    ],
)
def test_a_metric_in_words(task: str, metric: str, value: float, text: str, has_interval: bool) -> None:
    result = make_headline(
        state="succeeded",
        task=task,
        result=(Headline(metric=metric, direction="max"), value),
        samples=500,
        left_out=2,
    )
    assert result.text("metric") == text
    # Means over classes say over how many they are not.
    assert ("2 classes without a sample left out" in result.figure("metric").note) == (metric == "f1_macro")
    assert ("95 % interval" in result.figure("metric").note) == has_interval == (result.metric_low is not None)


# Half an hour on four machines.
ACCOUNT = GoodputRecord(
    **dict.fromkeys(("productive_s", "start_up_s", "data_wait_s", "checkpoint_s", "evaluation_s"), 0.0),
    **dict.fromkeys(("between_attempts_s", "lost_s", "recovery_s", "stop_s"), 0.0),
    **dict.fromkeys(("attempts", "starts", "steps", "lost_steps", "preemptions", "crashes"), 1),
    wall_s=1800.0,
    node_hours=2.0,
    goodput_percent=50.0,
    preemptions_per_node_hour=None,
)  # type: ignore[arg-type]


def test_what_is_no_number_is_not_known() -> None:
    value = float("nan")
    money, _ = find_money({"resources": {"price_usd_per_h": 40.0}}, ACCOUNT)
    assert money is not None
    result = make_headline(
        state="failed",
        goodput=ACCOUNT.model_copy(update={"goodput_percent": value, "wall_s": value}),
        money=money.model_copy(update={"cost_usd": value}),
        wall_s=value,
    )
    assert set(texts(result)) == {"state", "preemptions"}
    assert not any(re.search(r"\b(nan|inf)\b", figure.note) for figure in result.figures)


@pytest.mark.parametrize("nodes", ["auto", 4])
def test_a_price_is_of_all_machines_together(nodes: Any) -> None:
    money, reason = find_money({"resources": {"nodes": nodes, "price_usd_per_h": 40.0}}, ACCOUNT)
    assert money is not None and reason == ""
    assert (money.cost_usd, money.node_hours) == (pytest.approx(20.0), 2.0)
    money, reason = find_money({"resources": {}}, ACCOUNT)
    assert money is None and "resources.machine.type" in reason and "resources.price_usd_per_h" in reason
