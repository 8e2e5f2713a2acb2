"""Cases of the GPU check that take a trained network: its evaluation beside the CPU's, and its export."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks.gpu.setting import CLASSES, Details, Setting, find_missing
from benchmarks.gpu.stages import Failed, NotRun, StageRun, run_stage, train

if TYPE_CHECKING:
    import torch

    from trainer.export.inputs import Inputs

# What the export takes from torch to ONNX, and on to an engine and Triton's files.
ONNX = ("onnx", "onnxscript", "onnxruntime")
ENGINE = (*ONNX, "onnxconverter_common", "tritonclient")
# Largest relative difference of the mean loss, of a fp32 evaluation on this device from one on the CPU.
EVALUATION_TOLERANCE = 1e-4


def evaluation(setting: Setting) -> Details:
    """The test split, evaluated on this device by all ranks, beside an evaluation of the same weights on the CPU."""
    import torch

    # Evaluation computes as training does: on a GPU, TF32 would be the difference that is found.
    run = train(setting, "evaluation", {"train": {"tf32": False}}) if setting.on_gpu else train(setting, "fp32", {})
    metrics, right, loss, samples = run.manifest["metrics"], 0, 0.0, 0
    inputs = _inputs(setting, run)
    with torch.inference_mode():
        model = inputs.load_model()
        for images, labels in _test_batches(inputs):
            logits = model(images)
            loss += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
            right += int((logits.argmax(1) == labels).sum())
            samples += len(labels)
    found = {
        "samples": samples,
        "loss": metrics["test_loss"],
        "loss_on_cpu": loss / samples,
        "right": round(metrics["test_accuracy"] * metrics["test_samples"]),
        "right_on_cpu": right,
    }
    if samples != metrics["test_samples"]:
        raise Failed(f"evaluated {metrics['test_samples']:.0f} samples of {samples}", **found)
    difference = abs(found["loss"] / found["loss_on_cpu"] - 1)
    # Written so that a NaN fails.
    if not difference <= EVALUATION_TOLERANCE:
        raise Failed(f"the loss differs from the CPU's by {difference:.1e} (limit {EVALUATION_TOLERANCE})", **found)
    if abs(found["right"] - right) > 1:
        raise Failed(f"{found['right']} right answers, on the CPU {right}", **found)
    return found | {"relative_difference": difference}


def _inputs(setting: Setting, run: StageRun) -> Inputs:
    """Return a finished training as the export takes it."""
    from contracts import storage
    from contracts.artifacts import CheckpointManifest, ShardManifest
    from contracts.config import RunConfig
    from trainer.export.inputs import Inputs
    from trainer.export.targets import Builder

    uri, shards = storage.normalise(run.output), storage.normalise(setting.shards)
    manifest = ShardManifest.load(shards)
    checkpoint = CheckpointManifest.load(uri)
    config = RunConfig.model_validate({"model": checkpoint.model, "data": checkpoint.data})
    return Inputs(uri, checkpoint, shards, manifest, Builder("onnxruntime_tensorrt", "", ()), config)


def _test_batches(inputs: Inputs) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield images [B, 3, S, S] float32 and labels [B] of the test split, read in this process."""
    from trainer.data.evaluation import evaluation_batches

    for batch, _ in evaluation_batches(inputs.shards_uri, inputs.shards, "test", inputs.load_task(), 64):
        yield batch["images"], batch["label"]


def export_onnx(setting: Setting) -> Details:
    """The fp32 ONNX graph in ONNX Runtime beside torch on this device."""
    import numpy as np
    import onnxruntime  # type: ignore[import-untyped]
    import torch

    from trainer.export.graph.onnx_graph import EXAMPLE_BATCH, export_graph
    from trainer.model.build import example_inputs

    inputs = _inputs(setting, train(setting, "fp32", {}))
    model = inputs.load_model()
    path = setting.path / "onnx" / "model.onnx"
    path.parent.mkdir(exist_ok=True)
    task = inputs.load_task()
    signature, example = task.signature, example_inputs(task, EXAMPLE_BATCH)
    export_graph(model, path, signature=signature, example=example, opset=20)
    images, _ = next(_test_batches(inputs))
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    with torch.inference_mode():
        expected = model.to(setting.device)(images.to(setting.device)).cpu().numpy()
    found: Details = {"onnx_bytes": path.stat().st_size, "relative_error": {}}
    available = onnxruntime.get_available_providers()
    for provider in ("CPUExecutionProvider", "CUDAExecutionProvider"):
        if provider not in available:
            found["relative_error"][provider] = "not run: this ONNX Runtime does not have it"
            continue
        session = onnxruntime.InferenceSession(path, providers=[provider])
        logits = np.asarray(session.run(None, {"images": images.numpy()})[0])
        error = float(np.abs(logits - expected).max() / np.ptp(expected))
        found["relative_error"][provider] = error
        if not error <= 1e-3 or logits.shape[1] != CLASSES:
            raise Failed(f"{provider}: logits differ by {error:.1e} of their range (limit 1e-3)", **found)
    return found


def export_engine(setting: Setting) -> Details:
    """The export stage for this GPU, engine and gates; on a CPU for sm89, which only proves that it builds."""
    from contracts.config import ExportSection
    from contracts.errors import ConfigError
    from trainer.export.targets import choose_runtime

    target = setting.capability or "sm89"
    chosen: Details = {"runtime": "tensorrt_rtx", "targets": [target]}
    if setting.on_gpu and importlib.util.find_spec("tensorrt") is not None:
        chosen = {"runtime": "tensorrt"}
    reasons = []
    try:
        builder = choose_runtime(ExportSection.model_validate(chosen))
    except ConfigError as error:
        reasons.append(error.given)
    if missing := find_missing(ENGINE):
        reasons.append(f"not installed: {', '.join(missing)}")
    if reasons:
        raise NotRun("; ".join(reasons))
    training = train(setting, "fp32", {})
    changes = {"export": {**chosen, "opt_batch": 4, "max_batch": 8, "calibration_samples": 128}}
    run = run_stage(setting, "export", "export", changes, f"--checkpoint={training.output}")
    gates = {f"{gate['name']} {gate['precision']}": gate["status"] for gate in run.manifest["gates"]}
    found = {"builder": builder.name, "verdict": run.manifest["verdict"], "gates": gates}
    engine = gates.get(f"engine {target} {run.manifest['precision']}")
    if setting.on_gpu and engine != "passed":
        raise Failed(f"the engine's gate is {engine}", **found)
    return found
