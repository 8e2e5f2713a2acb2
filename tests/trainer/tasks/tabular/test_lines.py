"""Tasks of tables through the whole line: trainings that are killed, other numbers of ranks, and two known tables."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from sklearn.datasets import load_breast_cancer, load_diabetes

from contracts import storage
from contracts.artifacts import CheckpointManifest, EvaluationReport, ExportManifest, ShardManifest
from tests.trainer.tasks.tabular.tables import write_shards
from tests.trainer.test_kills import kill_in, make
from tests.trainer.test_task import logs
from tests.trainer.test_worlds import run, run_until
from trainer.data.order.cursor import slot_requests
from trainer.data.order.resolve import make_order
from trainer.drill.trace import ENVIRONMENT, read_trace

REPOSITORY = Path(__file__).parents[4]
TASKS = ("tabular_classification", "tabular_regression")
BATCH, SLOT, EPOCHS = 10, 3, 6
# Steps are so short that six epochs end before the first checkpoint is written.
LONG_EPOCHS = 60


def sections(task: str, *, ranks: int, epochs: int = EPOCHS) -> dict[str, Any]:
    return {
        "task": {"name": task},
        "model": {"architecture": "mlp", "arguments": {"width": 16, "dropout": 0.2}},
        "train": {"global_batch_size": BATCH, "epochs": epochs, "learning_rate": 1e-2},
        "parallel": {"slot_size": SLOT},
        "checkpoint": {"every_steps": 2},
        "resources": {"ranks": ranks, "max_attempts": 20},
    }


@pytest.fixture(scope="module", params=TASKS)
def task(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def shards(task: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_shards(tmp_path_factory.mktemp("tables") / "raw", task)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_kill_changes_no_bit(task: str, shards: str, tmp_path: Path) -> None:
    whole, cut = (make(tmp_path, name, shards, sections(task, ranks=2)) for name in ("whole", "cut"))
    assert kill_in(whole, ()) == []
    pauses = ("forward:4:0", "backward:9:1")
    assert [at for at, _ in kill_in(cut, pauses)] == list(pauses)
    found, expected = (CheckpointManifest.load(one.output) for one in (cut, whole))
    assert (found.parameters_sha256, found.metrics) == (expected.parameters_sha256, expected.metrics)
    assert expected.headline is not None and expected.headline.metric == {"c": "accuracy", "r": "r2"}[task[8]]
    reports = [
        EvaluationReport.load(one.evaluation.uri(training.output))
        for one, training in ((found, cut), (expected, whole))
        if one.evaluation is not None
    ]
    assert len(reports) == 2 and reports[0].details == reports[1].details != {}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_other_numbers_of_ranks_see_the_same_samples(
    task: str, shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "trace"))
    root = tmp_path / "train"
    for attempt, ranks, step in (("a", 2, 4), ("b", 3, 10)):
        run_until(step, root, shards, attempt, sections(task, ranks=ranks, epochs=LONG_EPOCHS), has_saved=True)
    done = run(root, shards, "c", sections(task, ranks=1, epochs=LONG_EPOCHS))
    assert done.returncode == 0, done.stderr
    assert "ranks 2 -> 3" in logs(root, "b") and "ranks 3 -> 1" in logs(root, "c")
    (best,) = root.glob("*/manifest.json")
    order = CheckpointManifest.load(storage.normalise(best.parent)).order
    assert order is not None
    made = make_order(order, shards, ShardManifest.load(shards), seed=0)
    expected: dict[int, list[int]] = {}
    for request in slot_requests(
        0, order=made, epochs=LONG_EPOCHS, global_batch_size=BATCH, slot_size=SLOT, rank=0, ranks=1
    ):
        expected.setdefault(request.step, []).extend(request.samples)
    assert {number: step.samples for number, step in read_trace(tmp_path / "trace").items()} == expected


def write_known(path: Path, name: str) -> None:
    """Write a table of scikit-learn as CSV, its label in the last column."""
    if name == "cancer":
        table = load_breast_cancer()
        labels = [str(table.target_names[one]) for one in table.target]
    else:
        table = load_diabetes(scaled=False)
        labels = table.target.tolist()
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*table.feature_names, "label"])
        writer.writerows([*row, label] for row, label in zip(table.data.tolist(), labels, strict=True))


KNOWN: dict[str, dict[str, Any]] = {
    "cancer": {
        "task": "tabular_classification",
        "kind": "class",
        "metric": "accuracy",
        "least": 0.95,
        "train": {"epochs": 6, "learning_rate": 3e-3},
    },
    "diabetes": {
        "task": "tabular_regression",
        "kind": "number",
        "metric": "r2",
        "least": 0.4,
        "train": {"epochs": 40, "learning_rate": 1e-3},
    },
}


@pytest.mark.line
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", KNOWN)
def test_known_tables_end_in_a_proven_graph(name: str, tmp_path: Path) -> None:
    known, source, config = KNOWN[name], tmp_path / f"{name}.csv", tmp_path / "config.yaml"
    write_known(source, name)
    config.write_text(
        yaml.safe_dump(
            {
                "run": {"name": name, "root": str(tmp_path / "runs")},
                "task": {"name": known["task"]},
                "sharding": {
                    "source": str(source),
                    "fields": {
                        "numbers": {"columns": ["*"], "kind": "numbers"},
                        "label": {"column": "label", "kind": known["kind"]},
                    },
                    "splits": {"train": 0.65, "validation": 0.15, "test": 0.2},
                },
                "model": {"architecture": "mlp"},
                "train": {"global_batch_size": 32, **known["train"]},
                "parallel": {"slot_size": 32},
                "profile": "off",
                "resources": {"ranks": 1},
                "export": {"runtime": "tensorrt_rtx", "targets": ["l4"]},
            }
        )
    )
    done = shardline("run", config, timeout=500)
    assert done.returncode == 0, done.stderr
    (evaluation,) = (tmp_path / "runs").glob("*/train/*/checkpoints/*/evaluation.json")
    report = EvaluationReport.load(storage.normalise(evaluation))
    assert report.metrics[known["metric"]] >= known["least"]
    (exported,) = (tmp_path / "runs").glob("*/export/*/manifest.json")
    manifest = ExportManifest.load(storage.normalise(exported.parent))
    gates = {(gate.name, gate.precision): gate for gate in manifest.gates}
    assert [gate for gate in manifest.gates if gate.status == "failed"] == []
    assert gates["parity", "fp32"].status == gates["bundle", "fp32"].status == "passed"
    assert manifest.model_signature.inputs["numbers"].dtype == "float32"
    # Whoever predicts on the rows gets what was measured on them.
    answered = shardline("predict", exported.parent, source)
    assert answered.returncode == 0, answered.stderr
    answers = [json.loads(line) for line in answered.stdout.splitlines()]
    assert answers[0].keys() == ({"label", "score"} if known["kind"] == "class" else {"value"})
    with source.open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(answers) == len(rows)
    if known["kind"] == "class":
        right = sum(answer["label"] == row["label"] for answer, row in zip(answers, rows, strict=True))
        assert right / len(rows) >= known["least"]


def shardline(*arguments: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipelines.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, cwd=REPOSITORY)
