from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, ExportManifest, ShardManifest, find_damage
from contracts.stage import run_stage
from trainer.data.loader import evaluation_batches
from trainer.data.transforms import EvaluationTransform
from trainer.export import engine_run, onnx_graph, precision, targets
from trainer.export.parity import open_graph
from trainer.export.task import export


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (targets, engine_run):
        monkeypatch.setattr(module, "gpu_target", lambda: None)


@pytest.fixture
def graph_at_hand(exported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the session's graph, which is of the same weights, instead of exporting it again."""
    monkeypatch.setattr(onnx_graph, "export_graph", lambda model, path, **settings: shutil.copy(exported.fp32, path))


def events_of(line: Any) -> list[dict[str, Any]]:
    (file,) = sorted((line.folder / "export").glob("attempts/*/events.jsonl"))[-1:]
    return [json.loads(text) for text in file.read_text().splitlines()]


def rewrite(folder: Path, **values: Any) -> None:
    content = json.loads((folder / MANIFEST_NAME).read_text())
    (folder / MANIFEST_NAME).write_text(json.dumps({**content, **values}))


def refuse(line: Any, capfd: pytest.CaptureFixture[str], **sections: dict[str, Any]) -> str:
    """Run the stage, which must end with exit code 2 and leave nothing that looks finished; return its message."""
    assert run_stage("export", export, line.arguments(**sections)) == 2
    assert line.manifests == []
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.usefixtures("no_gpu")
def test_a_checkpoint_becomes_an_engine_with_its_proof(line: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_stage("export", export, line.arguments()) == 0
    captured = capfd.readouterr()
    (path,) = line.manifests
    uri = storage.normalise(path.parent)
    # Neither torch, ONNX Runtime nor the builder says a word of its own.
    assert (captured.out, captured.err) == (uri + "\n", "")
    manifest = ExportManifest.load(uri)
    assert find_damage(uri, manifest.owned_files()) is None
    assert {entry.name for entry in manifest.owned_files()} | {MANIFEST_NAME} == {
        file.name for file in path.parent.iterdir()
    }
    check_engine(manifest, path.parent)
    check_proof(manifest)
    check_accuracy(manifest, line, path.parent)
    assert json.loads((path.parent / "labels.json").read_text()) == [str(digit) for digit in range(10)]
    preprocess = json.loads((path.parent / "preprocess.json").read_text())
    assert preprocess["image_size"] == 32
    assert preprocess["steps"][-1] == {"op": "normalise", "mean": [0.5] * 3, "std": [0.25] * 3}
    check_events(line, uri)


def check_engine(manifest: ExportManifest, folder: Path) -> None:
    engine = manifest.engine
    assert engine.name == "model.fp16.engine"
    assert hashlib.sha256((folder / engine.name).read_bytes()).hexdigest() == engine.sha256
    assert engine.builder.startswith("tensorrt_rtx 1.")
    assert (engine.min_batch, engine.opt_batch, engine.max_batch) == (1, 4, 10)
    assert engine.targets == list(targets.DEFAULT_TARGETS)
    assert manifest.inputs == {"images": ["batch", 3, 32, 32]}


def check_proof(manifest: ExportManifest) -> None:
    assert set(manifest.parity["onnx"]) == {"fp32", "fp16"}
    for found in manifest.parity["onnx"].values():
        assert found.passed is True
        assert found.samples == manifest.test_samples == 24
        assert found.ran.startswith("onnxruntime ")
    engine = manifest.parity["engine"]["fp16"]
    assert (engine.ran, engine.passed, engine.relative_error) == ("not run: no GPU", None, None)


def check_accuracy(manifest: ExportManifest, line: Any, folder: Path) -> None:
    """Count right answers of the published graph once more, one sample at a time."""
    shards_uri = storage.normalise(line.folder / "shards")
    transform = EvaluationTransform(32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    run = open_graph(folder / "model.fp16.onnx", threads=1)
    batches = list(evaluation_batches(shards_uri, ShardManifest.load(shards_uri), "test", transform, 1))
    right = sum(int(run(images.numpy()).argmax()) == int(labels) for images, labels in batches)
    assert manifest.accuracy["fp16"] == right / len(batches)
    assert set(manifest.accuracy) == {"torch", "fp32", "fp16"}


def check_events(line: Any, uri: str) -> None:
    events = events_of(line)
    names = [event["event"] for event in events]
    assert names == ["start", "folder", "ready", *["progress"] * 5, "finish"]
    progress = [event for event in events if event["event"] == "progress"]
    assert [(event["done"], event["total"]) for event in progress] == [(number, 5) for number in range(1, 6)]
    assert events[-1]["uri"] == uri
    assert "model.fp16.engine" in events[-1]["made"]


@pytest.mark.usefixtures("no_gpu", "graph_at_hand")
def test_a_finished_export_is_found_again_without_torch(line: Any) -> None:
    assert run_stage("export", export, line.arguments()) == 0
    before = line.manifests[0].stat().st_mtime_ns
    program = (
        "import sys; from contracts.stage import run_stage; from trainer.export import task, targets\n"
        "targets.gpu_target = lambda: None\n"
        "code = run_stage('export', task.export, sys.argv[1:])\n"
        "print([name for name in ('torch', 'onnx', 'numpy', 'tensorrt_rtx') if name in sys.modules])\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program, *line.arguments()], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "[]"
    assert line.manifests[0].stat().st_mtime_ns == before


@pytest.mark.usefixtures("no_gpu", "graph_at_hand")
def test_fp32_makes_no_fp16(line: Any) -> None:
    assert run_stage("export", export, line.arguments(export={"precision": "fp32"})) == 0
    manifest = ExportManifest.load(storage.normalise(line.manifests[0].parent))
    assert manifest.engine.name == "model.fp32.engine"
    assert set(manifest.parity["onnx"]) == set(manifest.parity["engine"]) == {"fp32"}
    assert not (line.manifests[0].parent / "model.fp16.onnx").exists()
    assert events_of(line)[-2]["total"] == 4


@pytest.mark.usefixtures("no_gpu", "graph_at_hand")
def test_a_graph_that_computes_something_else_is_not_published(
    line: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    convert = precision.convert_to_fp16

    def convert_badly(source: Path, target: Path) -> None:
        convert(source, target)
        graph = onnx.load(target)
        weights = graph.graph.initializer[0]
        weights.raw_data = bytes(len(weights.raw_data) // 2) + weights.raw_data[len(weights.raw_data) // 2 :]
        onnx.save(graph, target)

    monkeypatch.setattr(precision, "convert_to_fp16", convert_badly)
    assert run_stage("export", export, line.arguments()) == 1
    assert line.manifests == []
    assert "onnx fp16 on 24 samples" in capfd.readouterr().err


def test_a_checkpoint_of_another_model_is_refused(line: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert "checkpoint of another model" in refuse(line, capfd, model={"architecture": "vit", "arguments": {}})


@pytest.mark.parametrize(("name", "value"), [("image_size", 64), ("mean", [0.4, 0.5, 0.5]), ("std", [1.0, 1.0, 1.0])])
def test_another_transform_is_refused(line: Any, capfd: pytest.CaptureFixture[str], name: str, value: Any) -> None:
    assert f"data.{name} is" in refuse(line, capfd, data={name: value})


def test_shards_that_it_was_not_trained_on_are_refused(line: Any, capfd: pytest.CaptureFixture[str]) -> None:
    rewrite(line.folder / "shards", fingerprint="6" * 16)
    assert "was trained on shards 5555555555555555" in refuse(line, capfd)


def test_an_empty_test_split_is_refused(line: Any, capfd: pytest.CaptureFixture[str]) -> None:
    shards = ShardManifest.load(storage.normalise(line.folder / "shards"))
    splits = shards.model_dump()["splits"]
    rewrite(line.folder / "shards", splits={**splits, "test": splits["train"]})
    assert "test split of the shards is empty" in refuse(line, capfd)


def test_batch_sizes_out_of_order_are_refused(line: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert "larger than max_batch" in refuse(line, capfd, export={"opt_batch": 11})


def test_damaged_weights_are_refused(line: Any, capfd: pytest.CaptureFixture[str]) -> None:
    train = line.folder / "train"
    weights = train / CheckpointManifest.load(storage.normalise(train)).files[0].name
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert "crc32c" in refuse(line, capfd)


def test_weights_of_another_shape_are_refused(line: Any, capfd: pytest.CaptureFixture[str]) -> None:
    rewrite(line.folder / "train", classes=[str(number) for number in range(11)])
    assert "are not those of its model" in refuse(line, capfd)


def test_a_folder_without_a_finished_training_is_refused(line: Any, capfd: pytest.CaptureFixture[str]) -> None:
    (line.folder / "train" / MANIFEST_NAME).unlink()
    assert "nothing finished there" in refuse(line, capfd)


def test_inputs_are_named_when_they_are_missing(line: Any, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = line.arguments()
    assert run_stage("export", export, arguments[:-2]) == 2
    assert "no --shards given" in capfd.readouterr().err


@pytest.mark.gpu
def test_the_engine_computes_what_torch_computes(line: Any) -> None:
    assert run_stage("export", export, line.arguments()) == 0
    manifest = ExportManifest.load(storage.normalise(line.manifests[0].parent))
    assert manifest.parity["engine"]["fp16"].passed is True
