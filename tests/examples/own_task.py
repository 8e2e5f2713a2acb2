"""An example of an own task through kills, other numbers of ranks and the whole line: what the tests share."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyarrow import parquet

from contracts import storage
from contracts.artifacts import CheckpointManifest, EvaluationReport, ExportManifest, ShardManifest
from contracts.config import STAGE_KEYS
from tests.support.trace import ENVIRONMENT, read_trace
from tests.trainer.test_kills import kill_in, make
from tests.trainer.test_task import logs
from tests.trainer.test_worlds import run, run_until
from trainer.data.cursor import slot_requests
from trainer.data.order import make_order

REPOSITORY = Path(__file__).parents[2]
SAMPLES, BATCH, SLOT, EPOCHS = 60, 10, 3, 6


def shardline(*arguments: object, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipelines.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, cwd=REPOSITORY)


@dataclass(frozen=True)
class OwnTask:
    """An example: what draw.py writes, and shards of a few of its samples."""

    code: Path
    """Folder of task.py and config.yaml."""
    raw: Path
    """Folder that draw.py has written; read only."""
    table: str
    """Name of the table in it."""
    values: dict[str, Any]
    """The example's configuration with a few of the samples and a narrow network."""
    shards: str
    """URI of their shards."""

    def sections(self, ranks: int) -> dict[str, Any]:
        """Return the sections of the training stage."""
        return training_sections(self.values, ranks)


def training_sections(values: dict[str, Any], ranks: int) -> dict[str, Any]:
    """Return the sections of the training stage of a configuration, on so many ranks."""
    values = {**values, "resources": {"ranks": ranks, "max_attempts": 20}}
    return {name: values[name] for name in STAGE_KEYS["train"] if name in values}


def make_own_task(name: str, table: str, folder: Path) -> OwnTask:
    """Draw an example's samples, and shard a few of them."""
    code, raw = REPOSITORY / "examples" / name, folder / "raw"
    subprocess.run([sys.executable, code / "draw.py", raw], check=True, timeout=120)
    rows = (raw / table).read_text().splitlines()[: SAMPLES + 1]
    (raw / "few.csv").write_text("\n".join(rows) + "\n")
    values = yaml.safe_load((code / "config.yaml").read_text())
    values["run"]["root"] = str(folder / "runs")
    values["code"]["path"] = str(code)
    values["task"]["arguments"]["width"] = 2
    values["sharding"] |= {"source": str(raw / "few.csv"), "splits": {"train": 0.6, "validation": 0.2, "test": 0.2}}
    values["train"] |= {"global_batch_size": BATCH, "epochs": EPOCHS}
    values["parallel"] = {"slot_size": SLOT}
    values["checkpoint"] = {"every_steps": 2}
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    done = shardline("shard", folder / "config.yaml")
    assert done.returncode == 0, done.stderr
    return OwnTask(code, raw, table, values, storage.normalise(done.stdout.splitlines()[-1]))


def check_kills(task: OwnTask, folder: Path, headline: str) -> None:
    """Show that kills change no bit."""
    whole, cut = (make(folder, name, task.shards, task.sections(ranks=2)) for name in ("whole", "cut"))
    assert kill_in(whole, ()) == []
    pauses = ("forward:4:0", "backward:9:1")
    assert [at for at, _ in kill_in(cut, pauses)] == list(pauses)
    found, expected = (CheckpointManifest.load(training.output) for training in (cut, whole))
    assert (found.parameters_sha256, found.metrics) == (expected.parameters_sha256, expected.metrics)
    assert expected.headline is not None and expected.headline.metric == headline


def check_other_ranks(task: OwnTask, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Show that a training on 2, then 3, then 1 ranks sees each sample of each step."""
    monkeypatch.setenv(ENVIRONMENT, str(folder / "trace"))
    root = folder / "train"
    for attempt, ranks, step in (("a", 2, 4), ("b", 3, 10)):
        run_until(step, root, task.shards, attempt, task.sections(ranks))
    done = run(root, task.shards, "c", task.sections(ranks=1))
    assert done.returncode == 0, done.stderr
    assert "ranks 2 -> 3" in logs(root, "b") and "ranks 3 -> 1" in logs(root, "c")
    manifest = ShardManifest.load(task.shards)
    (best,) = root.glob("*/manifest.json")
    order = CheckpointManifest.load(storage.normalise(best.parent)).order
    assert order is not None
    expected: dict[int, list[int]] = {}
    for request in slot_requests(
        0,
        order=make_order(order, manifest, seed=0),
        epochs=EPOCHS,
        global_batch_size=BATCH,
        slot_size=SLOT,
        rank=0,
        ranks=1,
    ):
        expected.setdefault(request.step, []).extend(request.samples)
    assert {number: step.samples for number, step in read_trace(folder / "trace").items()} == expected


@dataclass(frozen=True)
class Line:
    """A finished run of an example."""

    folder: Path
    report: EvaluationReport
    """Of the test split."""
    predictions: list[dict[str, Any]]
    """Rows of test-predictions.parquet."""
    export: Path
    manifest: ExportManifest


def run_line(task: OwnTask, folder: Path) -> Line:
    """Run the example's own configuration from files to an engine; all gates must pass."""
    root, source = folder / "runs", task.raw / task.table
    done = shardline("run", task.code / "config.yaml", f"run.root={root}", f"sharding.source={source}", timeout=800)
    assert done.returncode == 0, done.stderr
    (line,) = root.iterdir()
    (evaluation,) = line.glob("train/*/checkpoints/*/evaluation.json")
    report = EvaluationReport.load(storage.normalise(evaluation))
    predictions = parquet.read_table(evaluation.with_name("test-predictions.parquet")).to_pylist()
    assert len(predictions) == report.samples
    (exported,) = line.glob("export/*/manifest.json")
    manifest = ExportManifest.load(storage.normalise(exported.parent))
    assert [gate for gate in manifest.gates if gate.status == "failed"] == []
    assert {gate.name for gate in manifest.gates if gate.status == "passed"} >= {"parity", "metric"}
    assert manifest.engine is not None and manifest.served == manifest.engine.name
    assert (exported.parent / manifest.served).stat().st_size > 0
    assert report.headline.metric in shardline("runs", line, "-o", "json").stdout
    return Line(line, report, predictions, exported.parent, manifest)


def predict(line: Line, *paths: Path) -> list[Any]:
    """Return the answers of `shardline predict` to files that nobody has labelled."""
    done = shardline("predict", line.folder, *paths, "-o", "json")
    assert done.returncode == 0, done.stderr
    answers = [json.loads(text) for text in done.stdout.splitlines()]
    assert [answer["file"] for answer in answers] == list(map(str, paths))
    return [answer["answer"] for answer in answers]


def open_graph(line: Line) -> Any:
    """Open the ONNX model of an export, which needs nothing of this repository."""
    import onnxruntime

    return onnxruntime.InferenceSession(line.export / line.manifest.graph().name, providers=["CPUExecutionProvider"])
