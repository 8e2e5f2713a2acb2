from __future__ import annotations

import copy
import io
import json
import os
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
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, ExportManifest, ShardManifest, find_damage
from contracts.config import ExportSection, ModelSection, RunConfig
from contracts.errors import ConfigError
from contracts.proof import verdict
from contracts.stage import run_stage
from tests.trainer.data.conftest import evaluation_batches
from tests.trainer.export.conftest import IMAGE_SIZE, MODEL, Line, write_checkpoint, write_shards
from trainer.export import compare, engine, inputs, making, runtime
from trainer.export.compare import Limits
from trainer.export.engine import open_graph
from trainer.export.runtime import Builder, choose_runtime, gpu_target
from trainer.export.task import export
from trainer.model.build import parameters_sha256
from trainer.tasks.image import build_network
from trainer.tasks.loading import load_task

REPOSITORY = Path(__file__).parents[3]
SERVED = "triton/classifier/1/model.onnx"
L4: dict[str, Any] = {"runtime": "tensorrt_rtx", "target": "l4"}
ONNX = {"runtime": "onnx"}


def events_of(line: Line) -> list[dict[str, Any]]:
    (file,) = sorted((line.folder / "export").glob("attempts/*/events.jsonl"))[-1:]
    return [json.loads(text) for text in file.read_text().splitlines()]


def rewrite(folder: Path, **values: Any) -> None:
    content = json.loads((folder / MANIFEST_NAME).read_text())
    (folder / MANIFEST_NAME).write_text(json.dumps({**content, **values}))


def refuse(line: Line, capfd: pytest.CaptureFixture[str], **sections: dict[str, Any]) -> str:
    """Run the stage, which must end with exit code 2 and leave nothing that looks finished; return its message."""
    assert run_stage("export", export, line.arguments(**sections)) == 2
    assert line.manifests == []
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def finished(line: Line) -> ExportManifest:
    (path,) = line.manifests
    uri = storage.normalise(path.parent)
    manifest = ExportManifest.load(uri)
    assert find_damage(uri, manifest.owned_files()) is None
    assert manifest.inconsistency() is None
    return manifest


def statuses(manifest: ExportManifest) -> list[tuple[str, str, str, str]]:
    return [(gate.precision, gate.name, gate.file, gate.status) for gate in manifest.gates]


def test_a_checkpoint_becomes_an_engine_with_its_proof(line: Line) -> None:
    """All of it as a user runs it: every step a process."""
    command = [sys.executable, "-m", "trainer.export.task", *line.arguments(export=L4)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    folder = line.manifests[0].parent
    uri = storage.normalise(folder)
    # Neither torch, ONNX Runtime nor the builder prints anything.
    assert (done.stdout, done.stderr) == (uri + "\n", "")
    manifest = finished(line)
    assert {entry.name for entry in manifest.owned_files()} | {MANIFEST_NAME} == {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    }
    assert statuses(manifest) == [
        ("fp32", "parity", "model.fp32.onnx", "passed"),
        ("fp32", "metric", "model.fp32.onnx", "passed"),
        ("fp16", "parity", "model.fp16.onnx", "passed"),
        ("fp16", "metric", "model.fp16.onnx", "passed"),
        ("fp32", "program", "predict.py", "passed"),
    ]
    built = manifest.engine
    assert built is not None and built.name == manifest.served == "model.fp16.sm89.engine"
    assert (built.target, built.opt_batch, built.max_batch) == ("sm89", 8, 10)
    assert built.onnx_sha256 == manifest.graph("fp16").sha256
    assert verdict(manifest) == "unproven: not run on a GPU"
    assert verdict(manifest) in (folder / "MODEL_CARD.md").read_text()
    check_accuracy(manifest, line, folder)
    assert parameters_sha256(load_file(folder / "model.safetensors")) == manifest.checkpoint_sha256
    check_plain_transformers(folder, line)
    events = events_of(line)
    progress = [event for event in events if event["event"] == "progress"]
    assert [event["event"] for event in events] == ["start", "folder", "ready", *["progress"] * len(progress), "finish"]
    assert [(event["done"], event["total"]) for event in progress] == [(number, 6) for number in range(1, 7)]
    assert events[-1]["made"] == "fp16, model.fp16.sm89.engine; unproven: not run on a GPU"
    assert all(cost["peak_bytes"] > 10 << 20 for cost in manifest.steps.values())
    assert [each.batch for each in manifest.latency] == [1, 8]
    check_reuse(line)


def check_reuse(line: Line) -> None:
    """A finished export is found again, without torch."""
    before = line.manifests[0].stat().st_mtime_ns
    program = (
        "import sys; from contracts.stage import run_stage; from trainer.export import task\n"
        "code = run_stage('export', task.export, sys.argv[1:])\n"
        "print([name for name in ('torch', 'onnx', 'numpy', 'tensorrt_rtx') if name in sys.modules])\n"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", program, *line.arguments(export=L4)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.splitlines()[-1]) == (0, "", "[]")
    assert line.manifests[0].stat().st_mtime_ns == before


def check_plain_transformers(folder: Path, line: Line) -> None:
    """Its from_pretrained loads the export's folder, and computes what the trained network computes."""
    from transformers import AutoModelForImageClassification

    theirs: Any = AutoModelForImageClassification.from_pretrained(folder, local_files_only=True).eval()
    shards_uri, checkpoint_uri = (storage.normalise(line.folder / name) for name in ("shards", "train"))
    checkpoint, shards = CheckpointManifest.load(checkpoint_uri), ShardManifest.load(shards_uri)
    config = RunConfig.model_validate(line.config)
    ours = inputs.Inputs(checkpoint_uri, checkpoint, shards_uri, shards, Builder("tensorrt_rtx", "1", "sm89"), config)
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(theirs(pixel_values=images).logits, ours.load_model()(images), rtol=0, atol=1e-6)
    assert list(theirs.config.id2label.values()) == checkpoint.classes


def check_accuracy(manifest: ExportManifest, line: Line, folder: Path) -> None:
    """Count right answers of the published graph once more, one sample at a time."""
    shards_uri = storage.normalise(line.folder / "shards")
    shards = ShardManifest.load(shards_uri)
    task = load_task(RunConfig.model_validate({"data": {"image_size": 32}}), shards)
    run = open_graph(folder / manifest.graph().name, threads=1)
    batches = [batch for batch, *_ in evaluation_batches(shards_uri, shards, "test", task, 1)]
    right = sum(int(run({"images": one["images"].numpy()})["logits"].argmax()) == int(one["label"]) for one in batches)
    assert manifest.headline_values["fp16"] == right / len(batches)


@pytest.mark.usefixtures("graph_at_hand", "in_this_process")
def test_another_setting_makes_another_export_and_what_a_killed_attempt_left_goes(line: Line) -> None:
    settings: dict[str, Any] = {"precision": "fp32", **L4}
    for changes, exports in (({}, 1), ({"allow_unproven": True}, 1), ({"runtime": "onnx", "target": None}, 2)):
        assert run_stage("export", export, line.arguments(export={**settings, **changes})) == 0
        assert len(line.manifests) == exports
    (folder,) = (path.parent for path in line.manifests if list(path.parent.glob("*.engine")))
    (folder / MANIFEST_NAME).unlink()
    (folder / "model.fp16.sm89.engine").write_bytes(b"of another precision")
    assert run_stage("export", export, line.arguments(export=settings)) == 0
    assert len(line.manifests) == 2 and not (folder / "model.fp16.sm89.engine").exists()


@pytest.fixture(scope="module")
def digits() -> nn.Module:
    """A network that was trained on the images of `read_digits`: some seconds on one core."""
    pictures = read_digits()["train"]
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(content)).convert("RGB")) for content, _ in pictures])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div(255).sub(0.5).div(0.25)
    labels = torch.tensor([label for _, label in pictures])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_network(ModelSection.model_validate(MODEL), num_classes=10, image_size=IMAGE_SIZE).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        for _ in range(4):
            for batch in torch.randperm(len(images)).split(32):
                loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return model.eval()


def read_digits() -> dict[str, list[tuple[bytes, int]]]:
    """Return PNG files and labels of the digits by split, shuffled by a fixed seed."""
    digits = np.load(REPOSITORY / "examples" / "digits.npz")
    images, labels = digits["images"], digits["labels"].tolist()
    pictures = []
    for place in np.random.default_rng(0).permutation(len(labels)).tolist():
        grey = Image.fromarray(np.rint(images[place] * (255 / 16)).astype(np.uint8))
        stream = io.BytesIO()
        grey.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC).save(stream, "PNG", compress_level=1)
        pictures.append((stream.getvalue(), labels[place]))
    return {"train": pictures[:-659], "validation": pictures[-659:-539], "test": pictures[-300:]}


def damage_for_int8(model: nn.Module) -> nn.Module:
    """Return a copy that computes the same in fp32 and fp16, and in which int8 cannot hold the activations of blocks.

    One channel between the two convolutions of each block is 2,048 times as large, and the second convolution's weights
    for it as much smaller. One scale for the whole tensor then has no step left for the other channels.
    """
    damaged, factor = copy.deepcopy(model), 2.0**11
    for block in [module for name, module in damaged.named_modules() if name.endswith("layers.0")]:
        first, second = block.layer[0], block.layer[1]
        with torch.no_grad():
            # The one that matters least: what it loses to fp16's small numbers is not seen.
            channel = int(second.convolution.weight.abs().sum(dim=(0, 2, 3)).argmin())
            first.normalization.weight[channel] *= factor
            first.normalization.bias[channel] *= factor
            second.convolution.weight[:, channel] /= factor
    return damaged.eval()


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("is_damaged", [False, True])
def test_int8_keeps_the_digits_right_or_falls_back_and_says_why(
    digits: nn.Module, is_damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = write_shards(tmp_path / "shards", samples=0, splits=read_digits())
    write_checkpoint(tmp_path / "train", damage_for_int8(digits) if is_damaged else digits, shards)
    config = {"data": {"image_size": IMAGE_SIZE}, "model": MODEL, "export": {"max_batch": 64}}
    line = Line(tmp_path, config)
    monkeypatch.setattr(making, "CALIBRATION_SAMPLES", 128)
    assert run_stage("export", export, line.arguments(export={"precision": "int8", **ONNX})) == 0
    manifest = finished(line)
    tried = [(attempt.precision, attempt.outcome) for attempt in manifest.tried]
    assert (manifest.asked_precision, manifest.engine, manifest.served) == ("int8", None, SERVED)
    assert manifest.headline_values["torch"] > 0.95
    if is_damaged:
        assert tried == [("int8", "failed"), ("fp16", "kept")]
        assert "metric of" in manifest.tried[0].reason and "accuracy is" in manifest.tried[0].reason
        assert [graph.precision for graph in manifest.graphs] == ["fp32", "fp16"]
        assert not list(line.manifests[0].parent.glob("*int8*"))
    else:
        assert tried == [("int8", "kept")]
        assert manifest.headline_values["torch"] - manifest.headline_values["int8"] <= 0.005


@pytest.mark.usefixtures("graph_at_hand", "in_this_process")
def test_fp16_that_fails_ends_the_stage_where_the_target_has_no_fp32(
    line: Line, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(compare.LIMITS, "fp16", Limits(relative_error=1e-9, min_cosine=1.0))
    assert run_stage("export", export, line.arguments(export={**L4, "target": "t4"})) == 1
    message = capfd.readouterr().err
    assert "has no fp32 for sm75 (t4)" in message and "fp16: outputs of the model in fp16 differ from fp32" in message
    assert line.manifests == []


@pytest.mark.usefixtures("graph_at_hand", "in_this_process")
@pytest.mark.parametrize(("change", "words"), [("graph", "differ from torch's"), ("bundle", "shipped")])
def test_what_fails_a_gate_is_not_published(
    line: Line, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], change: str, words: str
) -> None:
    """The gates themselves: test_faults.py, test_program_gate.py."""
    write = making.write_bundle

    def write_wrong(folder: Path, *given: Any, **named: Any) -> None:
        write(folder, *given, **named)
        preprocessing = json.loads((folder / "preprocess.json").read_text())
        (folder / "preprocess.json").write_text(json.dumps({**preprocessing, "std": [0.5, 0.1, 0.1]}))

    if change == "graph":
        monkeypatch.setitem(compare.LIMITS, "fp32", Limits(relative_error=1e-12, min_cosine=1.0))
    else:
        monkeypatch.setattr(making, "write_bundle", write_wrong)
    assert run_stage("export", export, line.arguments(export={"precision": "fp32", **ONNX})) == 1
    assert line.manifests == []
    message = capfd.readouterr().err
    assert words in message and "nothing is published" in message


# The stage, which kills itself behind the event whose message begins with the first argument.
KILLED_AT = """
import os, signal, sys
from contracts.stage import run_stage
from trainer.export import making, task
at, report = sys.argv.pop(1), making.Export.report
def report_and_die(self, message):
    report(self, message)
    if message.startswith(at):
        os.kill(os.getpid(), signal.SIGKILL)
making.Export.report = report_and_die
run_stage("export", task.export)
"""


@pytest.mark.slow
@pytest.mark.parametrize("at", ["fp32 graph", "predict.py"])
def test_an_export_that_is_killed_leaves_nothing_that_looks_finished(line: Line, at: str) -> None:
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


def copy_graph(graph: Path, engine: Path, **settings: Any) -> None:
    """Stand for `build_engine`, where ONNX Runtime runs the graph in place of the engine."""
    shutil.copyfile(graph, engine)


@pytest.mark.usefixtures("graph_at_hand", "in_this_process")
def test_a_plan_lies_where_triton_looks_for_it(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT and its GPU are planted: ONNX Runtime runs what stands for the plan, so no arithmetic is proven."""

    for module in (runtime, making):
        monkeypatch.setattr(module, "gpu_target", lambda: "sm90")
    monkeypatch.setattr(runtime, "version_of", lambda module: "11.9.0.1")
    monkeypatch.setattr(runtime.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(engine, "build_engine", copy_graph)
    monkeypatch.setattr(engine, "open_engine", lambda path, builder, signature: open_graph(path, threads=1))
    monkeypatch.setattr(engine, "device_name", lambda: "a double (sm90)")
    assert run_stage("export", export, line.arguments(export={"precision": "fp32"})) == 0
    manifest, folder = finished(line), line.manifests[0].parent
    assert manifest.engine is not None
    assert manifest.served == manifest.engine.name == "triton/classifier/1/model.plan"
    assert verdict(manifest) == "proven on a double (sm90)"
    assert [gate.name for gate in manifest.gates if gate.device] == ["parity", "metric"]
    assert manifest.graph().name == json.loads((folder / "preprocess.json").read_text())["model"] == "model.fp32.onnx"
    assert "no known Triton loads this" in (folder / "MODEL_CARD.md").read_text()


@pytest.mark.usefixtures("graph_at_hand", "in_this_process")
def test_an_engine_that_fails_on_its_gpu_is_tried_again_and_falls_back(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU of the target is planted, and ONNX Runtime runs the fp32 graph in place of engines."""
    failing = iter(["load", "outputs"])

    def open_engine(path: Path, builder: Builder, signature: Any) -> Any:
        run, failure = open_graph(path.with_name("model.fp32.onnx"), threads=1), next(failing, "")
        if failure == "load":
            raise engine.CheckFailed(f"{path.name} does not load")
        factor = 1.1 if failure == "outputs" else 1.0
        return lambda inputs: {name: array * factor for name, array in run(inputs).items()}

    for module in (runtime, making):
        monkeypatch.setattr(module, "gpu_target", lambda: "sm89")
    monkeypatch.setattr(engine, "build_engine", copy_graph)
    monkeypatch.setattr(engine, "open_engine", open_engine)
    monkeypatch.setattr(engine, "device_name", lambda: "a double (sm89)")
    assert run_stage("export", export, line.arguments(export=L4)) == 0
    manifest = finished(line)
    assert (manifest.precision, manifest.served) == ("fp32", "model.fp32.sm89.engine")
    assert [attempt.outcome for attempt in manifest.tried] == ["failed", "failed", "kept"]
    assert verdict(manifest) == "proven on a double (sm89)"
    # The engine of a failed try does not ship, and its gates are not those of the one that does.
    assert [path.name for path in line.manifests[0].parent.glob("*.engine")] == [manifest.served]
    assert {gate.status for gate in manifest.gates} == {"passed"}


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"model": {"architecture": "vit", "arguments": {}}}, ("checkpoint of another model",)),
        ({"data": {"image_size": 64}}, ("data.image_size is",)),
    ],
)
def test_a_configuration_that_is_not_the_checkpoint_s_is_refused(
    line: Line, capfd: pytest.CaptureFixture[str], sections: dict[str, Any], words: tuple[str, ...]
) -> None:
    message = refuse(line, capfd, **sections)
    assert all(word in message for word in words), message


def test_arguments_that_training_took_from_weights_are_those_of_the_export(
    line: Line, capfd: pytest.CaptureFixture[str]
) -> None:
    model = {"architecture": "resnet", "weights": "/gone", "arguments": {}}
    trained = {"model_type": "resnet", "depths": [1, 1]}
    rewrite(line.folder / "shards", fingerprint="6" * 16)
    rewrite(line.folder / "train", model={**model, "arguments": trained})
    # The next check: it gets there.
    assert "was trained on shards 5555555555555555" in refuse(line, capfd, model=model)
    assert "checkpoint of another model" in refuse(line, capfd, model={**model, "weights": ""})


def test_too_little_to_calibrate_with_is_refused_before_any_step(
    line: Line, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Any] = []
    monkeypatch.setattr(making, "run_step", lambda function, *given, **named: steps.append(function))
    manifest = json.loads((line.folder / "shards" / MANIFEST_NAME).read_text())
    manifest["splits"]["train"] |= {"samples": 127, "samples_by_class": [127] + [0] * 9}
    rewrite(line.folder / "shards", splits=manifest["splits"])
    message = refuse(line, capfd, export=ONNX | {"precision": "int8"})
    assert "the training split of the shards has 127 sample(s) to calibrate with" in message
    assert "sharding.splits" in message
    assert steps == []


@pytest.mark.usefixtures("in_this_process")
def test_weights_that_are_not_the_checkpoint_s_are_refused(line: Line, capfd: pytest.CaptureFixture[str]) -> None:
    train = line.folder / "train"
    weights = train / CheckpointManifest.load(storage.normalise(train)).files[0].name
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert "crc32c" in refuse(line, capfd)


@pytest.mark.gpu
def test_the_engine_computes_what_torch_computes(line: Line) -> None:
    target = gpu_target()
    assert target is not None
    settings = {} if find_spec("tensorrt") else {"runtime": "tensorrt_rtx", "target": target}
    try:
        choose_runtime(ExportSection.model_validate(settings))
    except ConfigError as error:
        pytest.skip(error.given)
    assert run_stage("export", export, line.arguments(export=settings)) == 0
    assert verdict(finished(line)).startswith("proven on ")
