"""The segmentation example: a task of one's own through training, kills, other numbers of ranks, and the whole line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from sklearn.metrics import jaccard_score

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
EXAMPLE = REPOSITORY / "examples" / "segmentation"
LEAST_MEAN_IOU = 0.85
SAMPLES, BATCH, SLOT, EPOCHS = 60, 10, 3, 6


def shardline(*arguments: object, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipelines.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, cwd=REPOSITORY)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that draw.py writes; read only."""
    folder = tmp_path_factory.mktemp("shapes") / "raw"
    subprocess.run([sys.executable, EXAMPLE / "draw.py", folder], check=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def config(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's configuration with a few of the samples and a narrow network."""
    folder = tmp_path_factory.mktemp("few")
    rows = (shapes / "shapes.csv").read_text().splitlines()[: SAMPLES + 1]
    (shapes / "few.csv").write_text("\n".join(rows) + "\n")
    values = yaml.safe_load((EXAMPLE / "config.yaml").read_text())
    values["run"]["root"] = str(folder / "runs")
    values["code"]["path"] = str(EXAMPLE)
    values["task"]["arguments"]["width"] = 2
    values["sharding"] |= {"source": str(shapes / "few.csv"), "splits": {"train": 0.6, "validation": 0.2, "test": 0.2}}
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


def sections(config: Path, *, ranks: int) -> dict[str, Any]:
    values = yaml.safe_load(config.read_text())
    values["resources"] = {"ranks": ranks, "max_attempts": 20}
    return {name: values[name] for name in STAGE_KEYS["train"] if name in values}


@pytest.mark.line
@pytest.mark.timeout(600)
def test_a_kill_changes_no_bit(config: Path, shards: str, tmp_path: Path) -> None:
    values = sections(config, ranks=2)
    whole, cut = (make(tmp_path, name, shards, values) for name in ("whole", "cut"))
    assert kill_in(whole, ()) == []
    pauses = ("forward:4:0", "backward:9:1")
    assert [at for at, _ in kill_in(cut, pauses)] == list(pauses)
    found, expected = (CheckpointManifest.load(one.output) for one in (cut, whole))
    assert (found.parameters_sha256, found.metrics) == (expected.parameters_sha256, expected.metrics)
    assert expected.headline is not None and expected.headline.metric == "mean_iou"


@pytest.mark.line
@pytest.mark.timeout(600)
def test_other_numbers_of_ranks_see_the_same_samples(
    config: Path, shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "trace"))
    root = tmp_path / "train"
    for attempt, ranks, step in (("a", 2, 4), ("b", 3, 10)):
        run_until(step, root, shards, attempt, sections(config, ranks=ranks))
    done = run(root, shards, "c", sections(config, ranks=1))
    assert done.returncode == 0, done.stderr
    assert "ranks 2 -> 3" in logs(root, "b") and "ranks 3 -> 1" in logs(root, "c")
    manifest = ShardManifest.load(shards)
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
    assert {number: step.samples for number, step in read_trace(tmp_path / "trace").items()} == expected


@pytest.mark.line
@pytest.mark.timeout(900)
def test_the_whole_line(shapes: Path, tmp_path: Path) -> None:
    """Mean IoU, an ONNX model whose gates pass on its own signature, and an engine."""
    root = tmp_path / "runs"
    done = shardline(
        "run", EXAMPLE / "config.yaml", f"run.root={root}", f"sharding.source={shapes}/shapes.csv", timeout=800
    )
    assert done.returncode == 0, done.stderr
    line = root / "shapes"
    (evaluation,) = line.glob("train/*/checkpoints/*/evaluation.json")
    report = EvaluationReport.load(storage.normalise(evaluation))
    assert report.metrics["mean_iou"] >= LEAST_MEAN_IOU
    (exported,) = line.glob("export/*/manifest.json")
    manifest = ExportManifest.load(storage.normalise(exported.parent))
    assert [gate for gate in manifest.gates if gate.status == "failed"] == []
    assert "passed" in {gate.status for gate in manifest.gates}
    (engine,) = manifest.engines
    assert (exported.parent / engine.name).stat().st_size > 0
    check_served(exported.parent, report, shapes)
    listed = json.loads(shardline("runs", line, "-o", "json").stdout)
    assert "mean_iou" in json.dumps(listed)


def check_served(folder: Path, report: EvaluationReport, shapes: Path) -> None:
    """The ONNX model alone reaches, on all drawn samples, about what training measured on its test split."""
    import onnxruntime
    from PIL import Image

    (graph,) = folder.glob("triton/*/1/model.onnx")
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    images, masks = (
        np.stack([np.asarray(Image.open(path)) for path in sorted((shapes / kind).glob("*.png"))[:100]])
        for kind in ("images", "masks")
    )
    given = images.transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1
    (logits,) = session.run(["logits"], {"image": given})
    found = jaccard_score(masks.ravel(), logits.argmax(axis=1).ravel(), average="macro")
    assert found == pytest.approx(report.metrics["mean_iou"], abs=0.05)
