"""`shardline report`, `inspect` and `runs` as commands: what they print, and what they refuse."""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import inspection.read
from contracts import storage
from contracts.artifacts import RunRecord
from contracts.errors import ErrorDocument
from pipelines import local
from pipelines.cli import app
from tests.inspection.lines import plant

RUN = "20261122-070000-0001"


@pytest.fixture
def root(tmp_path: Path, small_shards: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    plant(tmp_path / "runs" / "photos", small_shards, kind="resumed", run_id=RUN)
    return tmp_path


def test_the_page_is_written_into_the_runs_folder(root: Path) -> None:
    answer = CliRunner().invoke(app, ["report", "runs/photos"])
    assert answer.exit_code == 0, answer.stderr
    page = root / "runs" / "photos" / "runs" / RUN / "report.html"
    assert answer.stdout.splitlines() == [str(page.relative_to(root))]
    assert page.read_text().startswith("<!DOCTYPE html>")
    linked = re.findall(r'href="(\.\./\.\./[^"]*)"', page.read_text())
    assert linked
    assert all((page.parent / target).parent.is_dir() for target in linked)
    assert 'data-figure="profile.slot_size"' in page.read_text()


def test_what_is_no_page_is_not_replaced(root: Path) -> None:
    (root / "mine").write_text("precious")
    answer = CliRunner().invoke(app, ["report", RUN, "--to", "mine"])
    assert answer.exit_code == 2 and "is not a report of a run" in answer.stderr
    assert (root / "mine").read_text() == "precious"
    for _ in range(2):
        assert CliRunner().invoke(app, ["report", RUN, "--to", "page.html"]).exit_code == 0


def test_inspect_prints_one_run_or_what_differs_between_two(root: Path, small_shards: str) -> None:
    other = "20261122-080000-0001"
    plant(root / "runs" / "other", small_shards, run_id=other, sections={"train": {"epochs": 7}})
    answer = CliRunner().invoke(app, ["inspect", RUN])
    assert answer.exit_code == 0 and "test accuracy     93.75 %" in answer.stdout, answer.output
    found = json.loads(CliRunner().invoke(app, ["inspect", RUN, "-o", "json"]).stdout)
    assert found["goodput"]["preemptions"] == 1
    answer = CliRunner().invoke(app, ["inspect", RUN, other])
    assert answer.exit_code == 0 and "train.epochs" in answer.stdout, answer.output
    changes = json.loads(CliRunner().invoke(app, ["inspect", RUN, other, "-o", "json"]).stdout)
    assert {"train.epochs", "run.name", "preemptions"} <= {change["name"] for change in changes}


def test_data_show_takes_a_run(root: Path) -> None:
    by_run = CliRunner().invoke(app, ["data", "describe", RUN])
    assert by_run.exit_code == 0, by_run.stderr
    assert "3 classes" in by_run.stdout and "train: 70 samples" in by_run.stdout
    answer = CliRunner().invoke(app, ["data", "describe", "nowhere"])
    assert answer.exit_code == 2 and "is no run that has shards" in answer.stderr


def test_runs_lists_them(root: Path, small_shards: str) -> None:
    plant(root / "runs" / "other", small_shards, kind="failed", run_id="20261122-080000-0001")
    answer = CliRunner().invoke(app, ["runs"])
    assert answer.exit_code == 0, answer.stderr
    assert f"photos/{RUN}" in answer.stdout and "other/20261122-080000-0001" in answer.stdout
    listed = json.loads(CliRunner().invoke(app, ["runs", "runs", "-o", "json"]).stdout)
    assert {line["name"]: line["state"] for line in listed} == {"photos": "succeeded", "other": "failed"}
    filtered = json.loads(
        CliRunner().invoke(app, ["runs", "state=failed", "train.epochs=2", "train.max_steps=null", "-o", "json"]).stdout
    )
    assert [row["name"] for row in filtered] == ["other"]
    answer = CliRunner().invoke(app, ["runs", "runs", "train.colour=red"])
    assert answer.exit_code == 2 and "train.colour=red is no filter of runs" in answer.stderr
    rows = list(csv.DictReader(CliRunner().invoke(app, ["runs", "-o", "csv"]).stdout.splitlines()))
    assert [(row["name"], row["state"]) for row in rows] == [(line["name"], line["state"]) for line in listed]
    assert json.loads(rows[0]["headline"]) == listed[0]["headline"]


def test_a_line_with_outputs_and_no_run_says_so(root: Path) -> None:
    shutil.rmtree(root / "runs" / "photos" / "runs")
    for command in (["report"], ["inspect"], ["runs"]):
        answer = CliRunner().invoke(app, [*command, "runs/photos"])
        assert "outputs of stages" in answer.output and "records a run" in answer.output
    described = CliRunner().invoke(app, ["data", "describe", "runs/photos"])
    assert described.exit_code == 0 and "3 classes" in described.stdout


@pytest.mark.parametrize("damaged", [False, True])
def test_a_failed_run_prints_its_error_once(
    root: Path, small_shards: str, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    planted = plant(root / "runs" / "digits", small_shards, kind="failed")
    record = RunRecord.parse((planted.folder / "run.json").read_bytes(), where="run.json")
    error = ErrorDocument(kind="ConfigError", exit_code=2, message="stage train: train cannot <b>work</b>")
    outcome = local.LineRun(storage.normalise(planted.line), record, error)
    monkeypatch.setattr(local, "run_line", lambda *_, **__: outcome)
    if damaged:
        monkeypatch.setattr(inspection.read, "read_run", lambda *_, **__: 1 / 0)
    (root / "a.yaml").write_text("{}")
    answer = CliRunner().invoke(app, ["run", "a.yaml"])
    assert answer.exit_code == 2 and answer.output.count("train cannot <b>work</b>") == 1
