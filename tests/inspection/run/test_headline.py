"""One run reads the same wherever it is looked at: the same numbers in the same words."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from html import unescape
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from components.experiment import describe_metrics
from contracts import storage
from contracts.artifacts import ExportManifest, RunRecord
from contracts.proof import verification_uri
from inspection.metrics import stage_metrics
from inspection.page import render_report
from inspection.report import print_table, to_markdown
from inspection.run.find import find_place
from inspection.run.headline import RunHeadline, binomial_interval, headline, make_headline
from inspection.run.read import read_run
from inspection.run.summary import RunLine, list_runs
from inspection.run.view import RunView
from inspection.terminal import print_run, print_runs, to_json
from tests.export_fields import make_verification
from tests.inspection.lines import Planted, alive, leave_lock, plant
from tests.inspection.planted import make_checkpoint, make_goodput, make_money

# The price table knows it: the least is its spot price, the most its on-demand price.
SPOT = {"resources": {"machine": {"type": "n1-standard-4"}, "strategy": "SPOT"}, "cloud": {"region": "us-central1"}}


@pytest.fixture
def line(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "photos"


def look(planted: Planted) -> RunView:
    return read_run(find_place(str(planted.folder)), pictures=False)


def listed(planted: Planted) -> RunLine:
    return next(entry for entry in list_runs(str(planted.line.parent)) if entry.id == planted.run_id)


def record_of(planted: Planted) -> RunRecord:
    return RunRecord.parse((planted.folder / "run.json").read_bytes(), where="run.json")


def words(html: str) -> str:
    """Return what a reader of a page sees."""
    return " ".join(unescape(re.sub("<[^>]*>", " ", html)).replace("\u00a0", " ").split())


def printed(show: Any, given: Any) -> str:
    show(given, stream := StringIO())
    return " ".join(stream.getvalue().split())


def texts(found: RunHeadline) -> dict[str, str]:
    return {figure.name: figure.text for figure in found.figures if figure.text}


def look_at_doors(planted: Planted, view: RunView, entry: RunLine) -> dict[str, str]:
    """Return what a reader sees at each door that any run has; the figures of the page are checked one by one."""
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
    view, entry, record = look(planted), listed(planted), record_of(planted)
    found = headline(view)
    assert entry.headline == found
    assert json.loads(to_json(view))["headline"] == json.loads(found.model_dump_json())
    said = texts(found)
    assert set(said) == {"state", "metric", "export", "duration", "goodput", "preemptions", "cost"}
    assert said["metric"] == "93.75 %" and said["export"] == "fp16, unproven" and said["preemptions"] == "1"
    assert re.fullmatch(r"[\d.]+ USD", said["cost"]) and "spot machines; prices: read 20" in found.figures[-1].note
    doors = look_at_doors(planted, view, entry)
    doors |= {"run's table": printed(print_table, record).replace(" │ ", " "), "report.md": to_markdown(record)}
    for door, told in doors.items():
        for name, text in said.items():
            if door in ("run's table", "report.md") and name == "duration":
                continue
            assert text in told, (door, name)
    for door in ("page", "terminal", "report.md"):
        for figure in found.figures:
            if figure.name not in ("state", "duration", "export"):
                assert figure.note in doors[door], (door, figure.name)


def test_vertex_metrics_and_the_experiment_have_the_same_numbers(line: Path, small_shards: str) -> None:
    planted = plant(line, small_shards, kind="resumed", sections=SPOT)
    view, record = look(planted), record_of(planted)
    found = headline(view)
    assert view.checkpoint is not None
    row = describe_metrics(record, view)
    for numbers in (stage_metrics(view.checkpoint, view, view.goodput), row):
        assert numbers["train_test_accuracy"] == found.metric_value
        assert (numbers["train_test_accuracy_low"], numbers["train_test_accuracy_high"]) == (
            found.metric_low,
            found.metric_high,
        )
        assert numbers["train_cost_usd"] == found.cost_usd
        assert numbers["train_goodput_percent"] == found.goodput_percent
        assert numbers["train_preemptions"] == found.preemptions
    assert row["run_wall_s"] == found.wall_s and row["export_proven"] == 0


# --- runs that go on --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["running", "killed", "failed"])
def test_every_door_says_the_same_of_a_run_without_a_result(line: Path, small_shards: str, kind: Any) -> None:
    planted = plant(line, small_shards, kind=kind, sections=SPOT)
    if kind == "killed":
        leave_lock(planted)
    with alive(planted) if kind == "running" else nullcontext():
        entry, view = listed(planted), look(planted)
    said, shown = texts(entry.headline), texts(headline(view))
    assert said["state"] == {"killed": "stopped"}.get(kind, kind) and said["preemptions"] == "0"
    assert {"goodput", "cost", "duration"} <= set(said)
    if kind == "running":
        # It went on between two readings.
        del said["duration"], shown["duration"]
    assert said == shown
    for door, told in look_at_doors(planted, view, entry).items():
        for name, text in said.items():
            assert text in told, (door, name)
    assert "in stage train" in headline(view).figure("state").note or kind == "killed"
    if kind == "failed":
        numbers = describe_metrics(record_of(planted), view)
        assert (numbers["train_goodput_percent"], numbers["train_cost_usd"], numbers["run_wall_s"]) == (
            entry.headline.goodput_percent,
            entry.headline.cost_usd,
            entry.headline.wall_s,
        )


def test_what_training_came_to_is_in_the_list_while_the_export_runs(line: Path, small_shards: str) -> None:
    planted = plant(line, small_shards)
    (planted.folder / "run.json").unlink()
    with alive(planted):
        assert listed(planted).headline.text("metric") == "93.75 %"


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
    assert describe_metrics(record_of(planted), view)["export_proven"] == 1


# --- reused -----------------------------------------------------------------------------------------------------------


def test_what_an_earlier_run_trained_is_marked_and_counted_once(line: Path, small_shards: str) -> None:
    first = plant(line, small_shards, sections=SPOT)
    again = plant(line, small_shards, kind="cached", run_id="20261122-090000-0001", sections=SPOT)
    view = look(again)
    found = headline(view)
    assert listed(again).headline == found and found.training_reused
    for name in ("goodput", "preemptions", "cost"):
        assert found.text(name) == f"{headline(look(first)).text(name)} (reused)"
    assert "reused" not in found.text("metric") + found.text("duration")
    rows = [describe_metrics(record_of(planted), look(planted)) for planted in (first, again)]
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
        ("image_classification", "accuracy", 0.9938, "99.38 %", True),
        ("image_classification", "f1_macro", 0.5, "50.00 %", False),
        ("own", "distance", 0.00004, "4.000e-05", False),
        ("own", "accuracy", 0.9938, "0.9938", False),
    ],
)
def test_a_metric_in_words(task: str, metric: str, value: float, text: str, has_interval: bool) -> None:
    found = make_headline(
        state="succeeded",
        task=task,
        found=(make_checkpoint(["a"]).headline.model_copy(update={"metric": metric}), value),  # type: ignore[union-attr]
        samples=500,
        left_out=2,
    )
    assert found.text("metric") == text
    # Means over classes say over how many they are not.
    assert ("2 classes without a sample left out" in found.figure("metric").note) == (metric == "f1_macro")
    assert ("95 % interval" in found.figure("metric").note) == has_interval == (found.metric_low is not None)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_not_known(value: float) -> None:
    found = make_headline(
        state="failed",
        goodput=make_goodput(goodput_percent=value, wall_s=value),
        money=make_money().model_copy(update={"cost_usd": value}),
        wall_s=value,
    )
    assert set(texts(found)) == {"state", "preemptions"}
    assert not any(re.search(r"\b(nan|inf)\b", figure.note) for figure in found.figures)


def test_a_record_without_a_count_of_samples_has_no_interval(line: Path, small_shards: str) -> None:
    planted = plant(line, small_shards)
    path = planted.folder / "run.json"
    document = json.loads(path.read_bytes())
    del document["results"]["test_samples"]
    path.write_text(json.dumps(document))
    found = listed(planted).headline
    assert found.metric_value == 0.9375 and found.metric_low is None and found.samples is None
