"""A figure of a run is equal in report, stage artifacts, terminal, JSON and experiment, of real runs of each kind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from contracts.artifacts import RunRecord
from inspection.find import find_place
from inspection.headline import headline
from inspection.metrics import stage_metrics
from inspection.read import read_run
from inspection.report.page import render_report, render_stage
from inspection.runs import list_runs
from inspection.view import RunView
from pipelines.cli import app
from tests.page_text import figures
from tests.test_line import REPOSITORY, command, descendants, shardline, write_config

STATES = {
    "succeeded": "succeeded",
    "failed": "failed",
    "diverged": "failed",
    "interrupted": "interrupted",
    "resumed": "succeeded",
    "killed": "stopped",
    "running": "running",
}
# Figures by the names of their metrics.
METRICS = {
    "train_goodput_percent": "goodput_percent",
    "train_preemptions": "preemptions",
    "train_cost_usd": "cost_usd",
    "train_test_accuracy": "metric_value",
    "train_test_accuracy_low": "metric_low",
    "train_test_accuracy_high": "metric_high",
}


@pytest.fixture
def runs(pictures: Path, tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Folder of a run of each kind, in one line, so that they share the shards."""
    folder = tmp_path
    config = write_config(
        folder,
        pictures,
        profile={"method": "off"},
        parallel={"slot_size": 4},
        data={"num_workers": 0},
        resources={"threads": 1, "price_usd_per_h": 3600.0},
        checkpoint={"every_steps": 3},
        export={"runtime": "onnx", "precision": "fp32"},
    )
    line, folders = folder / "runs" / "small", {}

    def newest() -> Path:
        return max((line / "runs").glob("*/run-start.json")).parent

    def begin(*overrides: str) -> subprocess.Popen[bytes]:
        """Start a run; return once it has made some steps."""
        before = set((line / "train" / "attempts").iterdir())
        process = subprocess.Popen(command("run", config, *overrides), cwd=REPOSITORY, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for attempt in set((line / "train" / "attempts").iterdir()) - before:
                if (attempt / "events.jsonl").exists() and '"steps"' in (attempt / "events.jsonl").read_text():
                    return process
            time.sleep(0.05)
        pytest.fail("training was not reached")

    assert shardline("run", config).returncode == 0
    folders["succeeded"] = newest()
    sweep = ("profile.method=sweep", "data.num_workers=3", "profile.num_workers=[0, 1]")
    assert shardline("run", config, *sweep).returncode == 2
    folders["failed"] = newest()
    diverging = ("train.epochs=4", "train.learning_rate=1e30", "train.clip_grad_norm=1e9")
    assert shardline("run", config, *diverging).returncode == 2
    folders["diverged"] = newest()
    process = begin("train.epochs=40")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    folders["interrupted"] = newest()
    assert shardline("run", config, "train.epochs=40").returncode == 0
    folders["resumed"] = newest()
    killed = begin("train.epochs=2000")
    for pid in [killed.pid, *descendants(killed.pid)]:
        os.kill(pid, signal.SIGKILL)
    killed.wait()
    folders["killed"] = newest()
    process = begin("train.epochs=3000")
    folders["running"] = newest()
    yield folders
    process.send_signal(signal.SIGINT)
    process.wait(60)


def read(folder: Path) -> RunView:
    return read_run(find_place(str(folder)), pictures=False)


def texts(view: RunView) -> dict[str, str]:
    """Return the figures that are known; a run that goes on has others a moment later."""
    moving = ("duration", "goodput", "cost") if view.state == "running" else ()
    return {one.name: one.text for one in headline(view).figures if one.text and one.name not in moving}


@pytest.mark.line
@pytest.mark.timeout(900)
def test_a_figure_is_equal_wherever_it_is_shown(runs: dict[str, Path]) -> None:
    for kind, folder in runs.items():
        check_figures(folder, kind)


def check_figures(folder: Path, kind: str) -> None:
    view = read(folder)
    expected = texts(view)
    assert view.state == STATES[kind]
    assert {"preemptions"} <= set(expected) or kind == "failed"
    row = next(row for row in list_runs(str(folder.parents[2])) if row.id == folder.name)
    answer = CliRunner().invoke(app, ["inspect", str(folder), "-o", "json"])
    given = json.loads(answer.stdout)["headline"]
    page = render_report(view)
    terminal = " ".join(CliRunner().invoke(app, ["inspect", str(folder)]).stdout.split())
    words = " ".join(unescape(re.sub("<[^>]*>", " ", page)).replace("\u00a0", " ").split())
    for name, text in expected.items():
        assert row.headline.text(name) == text, name  # type: ignore[arg-type]
        assert next(one["text"] for one in given["figures"] if one["name"] == name) == text, name
        assert text in terminal and text in words, name
    check_numbers(folder, view)
    shown = figures(page)
    for stage in view.stages:
        if stage.state in ("done", "reused"):
            # The section of the report is the page of the stage.
            same = figures(render_stage(view, stage.name))
            assert {name: shown.get(name) for name in same} == same


def check_numbers(folder: Path, view: RunView) -> None:
    """The metrics artifact of the training and the row of the experiment have the headline's numbers."""
    numbers: dict[str, Any] = headline(view).model_dump()
    rows = [stage_metrics(view.checkpoint, view, view.goodput)] if view.checkpoint is not None else []
    if (folder / "run.json").exists():
        record = RunRecord.parse((folder / "run.json").read_bytes(), where="run.json")
        rows.append(record.row)
        assert rows[-1]["run_wall_s"] == numbers["wall_s"]
    for row in rows:
        for metric, field in METRICS.items():
            assert row.get(metric) == numbers[field], metric
