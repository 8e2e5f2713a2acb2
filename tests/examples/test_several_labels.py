"""Several labels for each image: kills, and the whole line on images that are drawn."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from contracts import storage
from contracts.artifacts import CheckpointManifest, EvaluationReport, ExportManifest
from contracts.artifacts.multilabel import MultilabelDetails, thresholds_of
from tests.examples.own_task import BATCH, EPOCHS, REPOSITORY, SAMPLES, SLOT, shardline, training_sections
from tests.scores import average_precision
from tests.trainer.test_kills import kill_in, make

DRAW, CONFIG = REPOSITORY / "examples" / "several_labels.py", REPOSITORY / "configs" / "several-labels.yaml"
LEAST_AVERAGE_PRECISION = 0.9


def draw(folder: Path, images: int) -> Path:
    """Return the list of images that are drawn."""
    subprocess.run([sys.executable, DRAW, folder, f"--images={images}"], check=True, timeout=60)
    return folder / "labels.jsonl"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's configuration with a few samples, a narrow network, and mixed images."""
    folder = tmp_path_factory.mktemp("few")
    values = yaml.safe_load(CONFIG.read_text())
    values["run"]["root"] = str(folder / "runs")
    values["sharding"]["source"] = str(draw(folder / "raw", SAMPLES))
    values["data"]["augment"] = {"mixup_alpha": 0.2}
    values["model"]["arguments"] |= {"embedding_size": 4, "hidden_sizes": [4, 8]}
    values["train"] |= {"global_batch_size": BATCH, "epochs": EPOCHS}
    values["parallel"] = {"slot_size": SLOT}
    values["checkpoint"] = {"every_steps": 2}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture(scope="module")
def shards(config: Path) -> str:
    done = shardline("shard", config)
    assert done.returncode == 0, done.stderr
    return storage.normalise(done.stdout.splitlines()[-1])


def evaluation_of(folder: str) -> EvaluationReport:
    entry = CheckpointManifest.load(folder).evaluation
    assert entry is not None
    return EvaluationReport.load(entry.uri(folder))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_kill_changes_no_bit(config: Path, shards: str, tmp_path: Path) -> None:
    """Nor one while thresholds are chosen, or while the test split is evaluated with them."""
    values = training_sections(yaml.safe_load(config.read_text()), ranks=2)
    whole, cut = (make(tmp_path, name, shards, values) for name in ("whole", "cut"))
    assert kill_in(whole, ()) == []
    # After the validation of each epoch the next evaluation of a process is the calibration, and then comes the test.
    pauses = ("backward:3:1", f"evaluation:{EPOCHS + 1}:0", "evaluation:2:1")
    assert [at for at, _ in kill_in(cut, pauses)] == list(pauses)
    found, expected = (CheckpointManifest.load(one.output) for one in (cut, whole))
    assert (found.parameters_sha256, found.metrics) == (expected.parameters_sha256, expected.metrics)
    assert found.calibration == expected.calibration and len(expected.calibration["thresholds"]) == 4
    assert evaluation_of(cut.output).details == evaluation_of(whole.output).details
    assert expected.headline is not None and expected.headline.metric == "average_precision"


@pytest.mark.line
@pytest.mark.timeout(600)
def test_the_whole_line(tmp_path: Path) -> None:
    """Mean average precision, thresholds, and an ONNX model whose gates pass and whose program says the labels."""
    root, listed = tmp_path / "runs", draw(tmp_path / "raw", 300)
    done = shardline("run", CONFIG, f"run.root={root}", f"sharding.source={listed}", "profile=off", timeout=500)
    assert done.returncode == 0, done.stderr
    line = root / "colours"
    (training,) = line.glob("train/*/manifest.json")
    trained = CheckpointManifest.load(storage.normalise(training.parent))
    report = evaluation_of(storage.normalise(training.parent))
    assert report.metrics["average_precision"] >= LEAST_AVERAGE_PRECISION
    details = MultilabelDetails.of(report)
    assert details is not None
    assert [one.threshold for one in details.classes] == thresholds_of(trained.calibration, 4)
    (exported,) = line.glob("export/*/manifest.json")
    manifest = ExportManifest.load(storage.normalise(exported.parent))
    assert [gate for gate in manifest.gates if gate.status == "failed"] == []
    assert {gate.name for gate in manifest.gates if gate.status == "passed"} >= {"parity", "metric", "program"}
    check_served(exported.parent, listed)
    check_looked_at(line, report)


def check_served(folder: Path, listed: Path) -> None:
    """The shipped program ranks and says the labels of all drawn images as well as was measured."""
    rows = [json.loads(row) for row in listed.read_text().splitlines()][:100]
    images = [str(listed.parent / row["uri"]) for row in rows]
    names = [one["label"] for one in json.loads((folder / "labels.json").read_text())]
    answers = [json.loads(text) for text in predict(folder, *images, "--top=4")]
    scores = np.array([[dict(zip(answer["labels"], answer["scores"], strict=True))[name] for name in names]
                       for answer in answers])  # fmt: skip
    labels = np.array([[name in row["label"] for name in names] for row in rows])
    precisions = [average_precision(labels[:, place], scores[:, place]) for place in range(len(names))]
    assert np.mean(precisions) >= LEAST_AVERAGE_PRECISION
    thresholds = np.array([one["threshold"] for one in json.loads((folder / "labels.json").read_text())])
    said = [set(json.loads(text)["labels"]) for text in predict(folder, *images)]
    assert said == [{names[place] for place in np.flatnonzero(row)} for row in scores >= thresholds]


def predict(folder: Path, *arguments: str) -> list[str]:
    command = [sys.executable, "-I", str(folder / "predict.py"), "-o", "json", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()


def check_looked_at(line: Path, report: EvaluationReport) -> None:
    """The run's page has the table of labels and the worst samples."""
    done = shardline("report", line)
    assert done.returncode == 0, done.stderr
    page = Path(done.stdout.splitlines()[-1]).read_text()
    assert 'id="label-outcomes"' in page and 'id="worst"' in page
    assert f"{report.metrics['average_precision']:.2%}".replace("%", "") in page
