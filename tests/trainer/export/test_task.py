from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file

from contracts import storage
from contracts.artifacts import (
    MANIFEST_NAME,
    CheckpointManifest,
    ExportManifest,
    FileEntry,
    ShardManifest,
    find_damage,
)
from contracts.artifacts.signature import Signature
from contracts.config import ExportSection, ModelSection, RunConfig
from contracts.errors import EXIT_TRY_AGAIN, ConfigError
from contracts.stage import run_stage
from tests.trainer.data.conftest import evaluation_batches
from tests.trainer.export.conftest import MODEL, Finished, write_checkpoint
from tests.trainer.export.engines.engine_double import EngineDouble
from trainer.export import inputs, making, targets, workshop
from trainer.export.gates import parity
from trainer.export.gates.parity import Limits, open_graph
from trainer.export.graph import onnx_graph
from trainer.export.targets import Builder, choose_runtime, gpu_target
from trainer.export.task import export
from trainer.model.build import parameters_sha256
from trainer.tasks.image import build_network
from trainer.tasks.loading import load_task

REPOSITORY = Path(__file__).parents[3]
SERVED = "triton/classifier/1/model.onnx"
L4: dict[str, Any] = {"runtime": "tensorrt_rtx", "targets": ["l4"]}
T4 = {**L4, "targets": ["t4"]}
ONNX = {"runtime": "onnxruntime_tensorrt"}


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


def finished(line: Any) -> ExportManifest:
    (path,) = line.manifests
    uri = storage.normalise(path.parent)
    manifest = ExportManifest.load(uri)
    assert find_damage(uri, manifest.owned_files()) is None
    assert manifest.is_sealed
    return manifest


def status_of(manifest: ExportManifest) -> dict[tuple[str, str], str]:
    return {(gate.precision, gate.name): gate.status for gate in manifest.gates}


def test_a_checkpoint_becomes_an_engine_with_its_proof(finished_line: Finished) -> None:
    """All of it as a user runs it: every step a process."""
    line = finished_line.line
    assert finished_line.code == 0, finished_line.err
    folder = line.manifests[0].parent
    uri = storage.normalise(folder)
    # Neither torch, ONNX Runtime nor the builder says a word of its own.
    assert (finished_line.out, finished_line.err) == (uri + "\n", "")
    manifest = finished(line)
    assert {entry.name for entry in manifest.owned_files()} | {MANIFEST_NAME} == {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    }
    check_engine(manifest, folder)
    check_proof(manifest)
    check_accuracy(manifest, line, folder)
    assert json.loads((folder / "labels.json").read_text()) == [str(digit) for digit in range(10)]
    weights = load_file(folder / "model.safetensors")
    assert parameters_sha256(weights) == manifest.checkpoint_sha256
    check_plain_transformers(folder, line)
    assert "0.5" in (folder / "preprocess.json").read_text()
    assert manifest.engines[0].target in (folder / "MODEL_CARD.md").read_text()
    check_events(line, uri)
    assert all(cost["peak_bytes"] > 10 << 20 for cost in manifest.steps.values())
    assert manifest.calibration is not None and manifest.calibration.samples == 160
    # Only the process that traces has torch's graph tools in memory.
    assert manifest.steps["fp16"]["peak_bytes"] < manifest.steps["trace"]["peak_bytes"]


def check_plain_transformers(folder: Path, line: Any) -> None:
    """Its from_pretrained loads the export's folder, and computes what the trained network computes."""
    from transformers import AutoModelForImageClassification

    theirs: Any = AutoModelForImageClassification.from_pretrained(folder, local_files_only=True).eval()
    shards_uri, checkpoint_uri = (storage.normalise(line.folder / name) for name in ("shards", "train"))
    checkpoint, shards = CheckpointManifest.load(checkpoint_uri), ShardManifest.load(shards_uri)
    config = RunConfig.model_validate(line.config)
    ours = inputs.Inputs(
        checkpoint_uri, checkpoint, shards_uri, shards, Builder("tensorrt_rtx", "1", ("sm89",)), config
    )
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(theirs(pixel_values=images).logits, ours.load_model()(images), rtol=0, atol=1e-6)
    assert list(theirs.config.id2label.values()) == checkpoint.classes


def check_engine(manifest: ExportManifest, folder: Path) -> None:
    (engine,) = manifest.engines
    assert (engine.name, engine.target) == ("model.fp16.sm89.engine", "sm89")
    assert hashlib.sha256((folder / engine.name).read_bytes()).hexdigest() == engine.sha256
    assert engine.onnx_sha256 == hashlib.sha256((folder / SERVED).read_bytes()).hexdigest()
    assert engine.builder.startswith("tensorrt_rtx 1.")
    assert (engine.min_batch, engine.opt_batch, engine.max_batch) == (1, 8, 10)
    assert [(one.mode, one.name, one.dtype, one.shape) for one in engine.tensors] == [
        ("input", "images", "float", [-1, 3, 32, 32]),
        ("output", "logits", "float", [-1, 10]),
    ]
    assert manifest.inputs == {"images": ["batch", 3, 32, 32]}


def check_proof(manifest: ExportManifest) -> None:
    assert set(manifest.parity["onnx"]) == {"fp32", "fp16"}
    for found in manifest.parity["onnx"].values():
        assert found.passed is True
        assert found.samples == manifest.test_samples == 64
        assert found.ran.startswith("onnxruntime ")
    assert {found.ran for found in manifest.parity["engine"].values()} == {"not run: no GPU"}
    assert manifest.verdict == "unproven"
    status = status_of(manifest)
    assert {key: value for key, value in status.items() if value != "passed" and key[1] != "top1"} == {
        ("fp16", "engine sm89"): "not run",
        ("fp32", "evaluation"): "not run",
    }
    assert set(status) >= {
        *(("fp32", name) for name in ("parity", "top1", "batch", "program")),
        *(("fp16", name) for name in ("parity", "top1")),
    }
    assert [(attempt.precision, attempt.outcome) for attempt in manifest.tried] == [("fp32", "kept"), ("fp16", "kept")]


def check_accuracy(manifest: ExportManifest, line: Any, folder: Path) -> None:
    """Count right answers of the published graph once more, one sample at a time."""
    shards_uri = storage.normalise(line.folder / "shards")
    shards = ShardManifest.load(shards_uri)
    task = load_task(RunConfig.model_validate({"data": {"image_size": 32}}), shards)
    run = open_graph(folder / SERVED, threads=1)
    batches = [batch for batch, *_ in evaluation_batches(shards_uri, shards, "test", task, 1)]
    right = sum(int(run({"images": one["images"].numpy()})["logits"].argmax()) == int(one["label"]) for one in batches)
    assert manifest.headline_values["fp16"] == right / len(batches)
    assert set(manifest.metrics) == {"torch", "fp32", "fp16"}


def check_events(line: Any, uri: str) -> None:
    events = events_of(line)
    names = [event["event"] for event in events]
    progress = [event for event in events if event["event"] == "progress"]
    assert names == ["start", "folder", "ready", *["progress"] * len(progress), "finish"]
    total = len(progress)
    assert [(event["done"], event["total"]) for event in progress] == [
        (number, total) for number in range(1, total + 1)
    ]
    assert events[-1]["uri"] == uri
    assert "fp16 engines by tensorrt_rtx" in events[-1]["made"]


@pytest.mark.usefixtures("graph_at_hand", "in_this_process")
def test_a_finished_export_is_found_again_without_torch(line: Any) -> None:
    assert run_stage("export", export, line.arguments(export={"precision": "fp32", **L4})) == 0
    before = line.manifests[0].stat().st_mtime_ns
    program = (
        "import sys; from contracts.stage import run_stage; from trainer.export import task\n"
        "code = run_stage('export', task.export, sys.argv[1:])\n"
        "print([name for name in ('torch', 'onnx', 'numpy', 'tensorrt_rtx') if name in sys.modules])\n"
        "sys.exit(code)"
    )
    arguments = line.arguments(export={"precision": "fp32", **L4})
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "[]"
    assert line.manifests[0].stat().st_mtime_ns == before


@pytest.mark.usefixtures("graph_at_hand", "in_this_process")
def test_what_a_killed_attempt_left_is_not_beside_the_manifest(line: Any) -> None:
    arguments = [*line.arguments(export={"precision": "fp32", **L4})]
    assert run_stage("export", export, arguments) == 0
    folder = line.manifests[0].parent
    (folder / MANIFEST_NAME).unlink()
    (folder / "model.fp16.sm89.engine").write_bytes(b"of another precision")
    assert run_stage("export", export, arguments) == 0
    finished(line)
    assert not (folder / "model.fp16.sm89.engine").exists()


@pytest.mark.usefixtures("graph_at_hand", "in_this_process")
def test_fp32_makes_no_fp16_and_looks_at_no_training_image(line: Any) -> None:
    assert run_stage("export", export, line.arguments(export={**L4, "precision": "fp32"})) == 0
    manifest = finished(line)
    assert [engine.name for engine in manifest.engines] == ["model.fp32.sm89.engine"]
    assert [engine.target for engine in manifest.engines] == ["sm89"]
    status = status_of(manifest)
    assert {status["fp32", f"engine {engine.target}"] for engine in manifest.engines} == {"not run"}
    assert [graph.precision for graph in manifest.graphs] == ["fp32"]
    assert set(manifest.parity["onnx"]) == {"fp32"}
    assert manifest.calibration is None


@pytest.mark.usefixtures("in_this_process")
def test_int8_keeps_the_digits_right(digits_line: Any) -> None:
    assert run_stage("export", export, digits_line.arguments(export={"precision": "int8", **ONNX})) == 0
    manifest = finished(digits_line)
    assert manifest.precision == "int8"
    assert (manifest.engines, manifest.graph().name) == ([], SERVED)
    assert (served := manifest.served) is not None and served.graph_level == 2
    assert served.lacks == ["ONNX Runtime's TensorRT provider", "int8 arithmetic"]
    assert f"serves {SERVED} (sha256 {served.sha256[:12]}) ran by onnxruntime" in events_of(digits_line)[-1]["made"]
    assert served.sha256 in (digits_line.manifests[0].parent / "MODEL_CARD.md").read_text()
    status = status_of(manifest)
    assert {status["int8", name] for name in ("parity", "top1", "metric")} == {"passed"}
    assert status["int8", "speed"] == "not run"
    assert manifest.headline_values["fp32"] > 0.95
    assert manifest.headline_values["fp32"] - manifest.headline_values["int8"] <= 0.005


@pytest.mark.usefixtures("in_this_process")
def test_a_model_that_int8_damages_falls_back_and_says_why(digits_line: Any, digits: Any, tmp_path: Path) -> None:
    shards = ShardManifest.load(storage.normalise(tmp_path / "shards"))
    shutil.rmtree(tmp_path / "train")
    write_checkpoint(tmp_path / "train", digits.damaged, shards)
    assert run_stage("export", export, digits_line.arguments(export={"precision": "int8", **ONNX})) == 0
    manifest = finished(digits_line)
    assert (manifest.precision, manifest.asked_precision) == ("fp16", "int8")
    assert [(one.precision, one.outcome) for one in manifest.tried] == [
        ("fp32", "kept"),
        ("int8", "failed"),
        ("fp16", "kept"),
    ]
    assert "int8 parity: it does not compute what torch computes (" in manifest.tried[1].reason
    assert "min_cosine" in manifest.tried[1].reason
    assert [graph.precision for graph in manifest.graphs] == ["fp32", "fp16"]
    assert "int8" in (digits_line.manifests[0].parent / "MODEL_CARD.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("graph_at_hand", "in_this_process")
def test_fp16_that_fails_falls_back_to_fp32_where_the_target_has_it(
    line: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(parity.LIMITS, "fp16", Limits(relative_error=1e-9, min_cosine=1.0, top1_agreement=1.0))
    message = refuse(line, capfd, export=T4)
    assert "has no fp32 for sm75 (t4)" in message
    assert run_stage("export", export, line.arguments(export=L4)) == 0
    manifest = finished(line)
    assert manifest.precision == "fp32"
    failed = [attempt for attempt in manifest.tried if attempt.outcome == "failed"]
    assert 1 <= len(failed) <= 4
    assert {attempt.precision for attempt in failed} == {"fp16"}
    assert "parity failed" in failed[-1].reason
    assert manifest.tried[-1].reason == "what was tried before failed its gates"


@pytest.mark.usefixtures("graph_at_hand", "in_this_process")
def test_a_graph_that_computes_something_else_is_not_published(
    line: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write = onnx_graph.export_graph

    def zero_a_filter(model: torch.nn.Module, path: Path, **settings: Any) -> Any:
        found = write(model, path, **settings)
        graph = onnx.load(path)
        tensor = max(graph.graph.initializer, key=lambda item: len(item.dims))
        weights = onnx.numpy_helper.to_array(tensor).copy()
        weights[0] = 0
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(weights), tensor.name))
        onnx.save(graph, path)
        return found

    monkeypatch.setattr(onnx_graph, "export_graph", zero_a_filter)
    assert run_stage("export", export, line.arguments(export=L4)) == 1
    assert line.manifests == []
    message = capfd.readouterr().err
    assert "fp32 parity: it does not compute what torch computes (samples 64, relative_error" in message


class MixesTheBatch(torch.nn.Module):
    """What an image's logits are depends on the others of its batch."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(images)
        return logits + logits.mean(dim=0, keepdim=True)


@pytest.mark.usefixtures("in_this_process")
def test_a_graph_whose_images_are_not_alone_is_not_published(
    line: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    load = inputs.Inputs.load_model
    monkeypatch.setattr(inputs.Inputs, "load_model", lambda self: MixesTheBatch(load(self)).eval())
    assert run_stage("export", export, line.arguments(export=L4)) == 1
    assert line.manifests == []
    assert "fp32 batch: a sample's outputs depend on the others of its batch" in capfd.readouterr().err


@pytest.mark.usefixtures("graph_at_hand", "in_this_process")
def test_a_bundle_that_prepares_otherwise_is_not_published(
    line: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write = making.write_bundle

    def write_wrong(folder: Path, *given: Any, **named: Any) -> None:
        write(folder, *given, **named)
        said = json.loads((folder / "preprocess.json").read_text())
        (folder / "preprocess.json").write_text(json.dumps({**said, "std": [0.5, 0.1, 0.1]}))

    monkeypatch.setattr(making, "write_bundle", write_wrong)
    assert run_stage("export", export, line.arguments(export={"precision": "fp32", **ONNX})) == 1
    assert line.manifests == []
    assert "the shipped preprocessing is not the trainer's; nothing is published" in capfd.readouterr().err


@pytest.mark.usefixtures("graph_at_hand", "in_this_process")
def test_an_evaluation_of_other_weights_is_refused(line: Any, capfd: pytest.CaptureFixture[str]) -> None:
    (line.folder / "train" / "evaluation.json").write_text("{}")
    entry = FileEntry.of(storage.normalise(line.folder / "train"), "evaluation.json").model_dump()
    rewrite(line.folder / "train", evaluation={**entry, "crc32c": "00000000"})
    assert "is damaged: evaluation.json has crc32c" in refuse(line, capfd, export=L4)


def limit_file_size() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))


@pytest.mark.slow
def test_a_full_disk_is_worth_another_attempt_and_leaves_nothing(line: Any) -> None:
    command = [sys.executable, "-m", "trainer.export.task", *line.arguments(export={"precision": "fp32", **L4})]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, preexec_fn=limit_file_size)
    assert done.returncode == EXIT_TRY_AGAIN, done.stderr
    assert "no room is left on the disk" in done.stderr
    assert line.manifests == []


# The stage, which kills itself behind the event whose message begins with the first argument.
KILLED_AT = """
import os, signal, sys
from contracts.stage import run_stage
from trainer.export import task
at, tell = sys.argv.pop(1), task._Steps.done
def done(self, message):
    tell(self, message)
    if message.startswith(at):
        os.kill(os.getpid(), signal.SIGKILL)
task._Steps.done = done
run_stage("export", task.export)
"""


@pytest.mark.slow
@pytest.mark.parametrize("at", ["fp32 graph", "fp32 graph and its parity", "fp16 graph", "1 engines", "program"])
def test_an_export_that_is_killed_leaves_nothing_that_looks_finished(line: Any, at: str) -> None:
    arguments = line.arguments(export=L4)
    command = [sys.executable, "-c", KILLED_AT, at, *arguments]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        assert process.wait() == -signal.SIGKILL
    finally:
        process.kill()
    assert any(event.get("message", "").startswith(at) for event in events_of(line))
    assert line.manifests == []
    # Its steps end with it.
    wait_for(lambda: not alive_in_group(process.pid))
    assert run_stage("export", export, arguments) == 0
    finished(line)


def alive_in_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_gpu_that_only_tensorrt_has_is_refused_without_it(
    line: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "gpu_target", lambda: "sm90")
    for settings in ({}, {"runtime": "tensorrt"}, {"runtime": "tensorrt_rtx"}):
        said = refuse(line, capfd, export=settings)
        assert "sm90" in said or "tensorrt is not installed" in said
        assert 'pip install "shardline[tensorrt]"' in said


@pytest.mark.usefixtures("graph_at_hand", "in_this_process")
@pytest.mark.parametrize(("version", "known"), [("11.3.0.14", True), ("11.9.0.1", False)])
def test_a_plan_lies_where_triton_looks_for_it(
    line: Any, monkeypatch: pytest.MonkeyPatch, version: str, known: bool
) -> None:
    """TensorRT and its GPU are planted: ONNX Runtime runs what stands for the plan."""
    monkeypatch.setattr(targets, "gpu_target", lambda: "sm90")
    monkeypatch.setattr(targets, "version_of", lambda module: version)
    monkeypatch.setattr(targets.importlib.util, "find_spec", lambda name: object())

    def plant(builder: Builder, signature: Signature, batches: tuple[int, int, int], step: Any) -> EngineDouble:
        return EngineDouble(signature, batches[2], name=builder.name, target="sm90")

    monkeypatch.setattr(making.engine_run, "runner_here", plant)
    assert run_stage("export", export, line.arguments(export={"precision": "fp32"})) == 0
    manifest, folder = finished(line), line.manifests[0].parent
    (plan,), served = manifest.engines, manifest.served
    assert plan.name == "triton/classifier/1/model.plan" and served is not None
    assert (served.model, served.sha256, served.runtime, served.graph_level) == (
        plan.name,
        plan.sha256,
        "tensorrt",
        None,
    )
    assert served.ran == f"tensorrt {version} on a double (sm90)"
    # Only a server has not run it.
    assert (manifest.verdict, served.lacks) == ("proven", [])
    assert manifest.graph().name == json.loads((folder / "preprocess.json").read_text())["model"] == "model.fp32.onnx"
    said = [(folder / name).read_text() for name in ("MODEL_CARD.md", "triton/README.md")]
    assert ["no known Triton loads this" in text for text in said] == [not known] * 2
    assert ("docker run" in said[1]) == known


def test_bf16_is_refused_by_name(line: Any, capfd: pytest.CaptureFixture[str]) -> None:
    message = refuse(line, capfd, export={**L4, "precision": "bf16"})
    assert "export.precision" in message and "use fp16" in message


def test_a_checkpoint_of_another_model_is_refused(line: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert "checkpoint of another model" in refuse(line, capfd, model={"architecture": "vit", "arguments": {}})


def test_arguments_that_training_took_from_weights_are_those_of_the_export(
    line: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    model = {"architecture": "resnet", "weights": "/gone", "arguments": {}}
    trained = {"model_type": "resnet", "depths": [1, 1]}
    rewrite(line.folder / "shards", fingerprint="6" * 16)
    rewrite(line.folder / "train", model={**model, "arguments": trained})
    # The next check: it gets there.
    assert "was trained on shards 5555555555555555" in refuse(line, capfd, model=model)
    assert "checkpoint of another model" in refuse(line, capfd, model={**model, "weights": ""})


@pytest.mark.parametrize(("name", "value"), [("image_size", 64), ("mean", [0.4, 0.5, 0.5])])
def test_another_transform_is_refused(line: Any, capfd: pytest.CaptureFixture[str], name: str, value: Any) -> None:
    assert f"data.{name} is" in refuse(line, capfd, data={name: value})


def test_shards_that_it_was_not_trained_on_are_refused(line: Any, capfd: pytest.CaptureFixture[str]) -> None:
    rewrite(line.folder / "shards", fingerprint="6" * 16)
    assert "was trained on shards 5555555555555555" in refuse(line, capfd)


@pytest.mark.usefixtures("in_this_process")
def test_an_empty_test_split_is_refused(line: Any, capfd: pytest.CaptureFixture[str]) -> None:
    shards = ShardManifest.load(storage.normalise(line.folder / "shards"))
    splits = shards.model_dump()["splits"]
    rewrite(line.folder / "shards", splits={**splits, "test": splits["validation"]})
    assert "test split of the shards is empty" in refuse(line, capfd)


@pytest.mark.parametrize(("precision", "samples"), [("int8", 127), ("fp16", 0)])
def test_too_little_to_calibrate_with_is_refused_before_any_step(
    line: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, precision: str, samples: int
) -> None:
    steps: list[Any] = []
    monkeypatch.setattr(workshop, "run_step", lambda function, *given, **named: steps.append(function))
    manifest = json.loads((line.folder / "shards" / MANIFEST_NAME).read_text())
    manifest["splits"]["train"] |= {"samples": samples, "samples_by_class": [samples] + [0] * 9}
    rewrite(line.folder / "shards", splits=manifest["splits"])
    message = refuse(line, capfd, export=ONNX | {"precision": precision})
    assert f"the training split of the shards has {samples} sample(s) to calibrate with" in message
    assert "sharding.splits" in message
    assert steps == []


@pytest.mark.usefixtures("in_this_process")
def test_damaged_weights_are_refused(line: Any, capfd: pytest.CaptureFixture[str]) -> None:
    train = line.folder / "train"
    weights = train / CheckpointManifest.load(storage.normalise(train)).files[0].name
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert "crc32c" in refuse(line, capfd)


@pytest.mark.usefixtures("in_this_process")
def test_weights_of_another_shape_are_refused(line: Any, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(line.folder / "train")
    wider = build_network(ModelSection.model_validate(MODEL), num_classes=11, image_size=32)
    write_checkpoint(line.folder / "train", wider, ShardManifest.load(storage.normalise(line.folder / "shards")))
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
    target = gpu_target()
    assert target is not None
    settings = {} if find_spec("tensorrt") else {"runtime": "tensorrt_rtx", "targets": [target]}
    try:
        choose_runtime(ExportSection.model_validate(settings))
    except ConfigError as error:
        pytest.skip(error.given)
    assert run_stage("export", export, line.arguments(export=settings)) == 0
    manifest = finished(line)
    # An ONNX file that Triton runs by a provider which is not here stays unproven.
    assert manifest.verdict == ("proven" if find_spec("tensorrt") else "unproven")
    assert all(found.passed for found in manifest.parity["engine"].values())
