"""The lines of the GPU check, one function each: `python -m benchmarks.gpu.cases NAME SETTING` runs one of them.

A function returns what it found, and raises `Failed` or `NotRun`. Trainings are the stage's own command. Nothing but the
standard library is imported before a function runs, so that what is not installed stops its own lines alone.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.setting import CLASSES, Setting, module_command
from benchmarks.gpu.stages import Failed, NotRun, StageRun, check_learning, require_success, run_stage, start_stage
from benchmarks.gpu.stages import train as train_stage

Details = dict[str, Any]

TRAINER = (
    *("torch", "numpy", "pydantic", "yaml", "google_crc32c", "simplejpeg", "PIL", "safetensors", "tensorboard"),
    "transformers",
)
ONNX = (*TRAINER, "onnx", "onnxscript", "onnxruntime")
# Largest relative difference of the mean loss, of a fp32 evaluation on this device from one on the CPU.
EVALUATION_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Line:
    """One line of the result."""

    name: str
    run: Callable[[Setting], Details]
    needs: tuple[str, ...] = TRAINER
    """Modules that must be installed."""
    without_gpu: str = ""
    """Why it is not run on a CPU; empty: it is."""
    alone: bool = False
    """Whether nothing may run beside it: it measures time, or fills the memory."""
    limit_s: float = 90.0


# --- what a step computes in ------------------------------------------------------------------------------------------


def fp32(setting: Setting) -> Details:
    """Training in fp32 (with TF32, the default)."""
    return check_learning(setting, train_stage(setting, "fp32", {}))


def bf16(setting: Setting) -> Details:
    """Training in bf16."""
    return check_learning(setting, train_stage(setting, "bf16", {"train": {"precision": "bf16"}}))


def fp16(setting: Setting) -> Details:
    """Training in fp16 with its loss scale."""
    changes = {"train": {"precision": "fp16", "non_finite": "skip"}}
    run = train_stage(setting, "fp16", changes)
    scales = run.scalars("train/loss_scale")
    return check_learning(setting, run) | {"last_loss_scale": scales[-1] if scales else None}


def channels_last(setting: Setting) -> Details:
    """Training in bf16 with channels last."""
    changes = {"train": {"precision": "bf16", "channels_last": True}}
    return check_learning(setting, train_stage(setting, "channels-last", changes))


def compiled(setting: Setting) -> Details:
    """Training in bf16 under torch.compile."""
    changes = {"train": {"precision": "bf16", "compile": "on"}}
    return check_learning(setting, train_stage(setting, "compile", changes))


# --- peers ------------------------------------------------------------------------------------------------------------


def bare_ddp(setting: Setting) -> Details:
    """Samples per second of a bare DDP loop on resident data."""
    return _peer(setting, "bare_ddp")


def lightning(setting: Setting) -> Details:
    """Samples per second of Lightning's Trainer on resident data."""
    return _peer(setting, "lightning")


def _peer(setting: Setting, kind: str) -> Details:
    torchrun = module_command("torch.distributed.run", "--standalone", f"--nproc-per-node={setting.ranks}")
    command = [*torchrun, "--module", "benchmarks.gpu.peers", kind, setting.to_json()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"the loop ended with exit code {done.returncode}", log=done.stderr[-3000:])
    return {"samples_per_s": json.loads(done.stdout.splitlines()[-1])}


# --- how the network is spread, and what goes wrong -------------------------------------------------------------------


def fsdp(setting: Setting) -> Details:
    """FSDP2: learns, and begins with the losses of DDP in the same precision."""
    return _fsdp(setting, "fsdp", {"strategy": "fsdp"})


def fsdp_cpu_offload(setting: Setting) -> Details:
    """FSDP2 with parameters and optimizer in the host's memory."""
    return _fsdp(setting, "fsdp-cpu-offload", {"strategy": "fsdp", "cpu_offload": True})


def _fsdp(setting: Setting, name: str, parallel: dict[str, Any]) -> Details:
    precision = {"train": {"precision": "bf16" if setting.on_gpu else "fp32"}}
    ddp = train_stage(setting, precision["train"]["precision"], precision).scalars("train/loss")[0]
    found = check_learning(setting, train_stage(setting, name, {**precision, "parallel": parallel}))
    if abs(found["first_loss"] - ddp) > 0.05 * ddp:
        raise Failed(f"mean loss of the first steps {found['first_loss']}, of DDP {ddp:.4f}", **found)
    return found | {"first_loss_ddp": round(ddp, 4)}


def out_of_memory(setting: Setting) -> Details:
    """A slot that cannot fit ends with exit code 2 and says what to lower."""
    # ResNet-50 takes about 80 MB per sample of 224 px in fp32; a fifth of that is more than any GPU has.
    slot_size = setting.memory_bytes // 16_000_000
    run, process = start_stage(
        setting, "train", "out-of-memory", {"train": {"global_batch_size": slot_size * setting.ranks}}
    )
    code, message = process.wait(), str(run.error.get("message", ""))
    words = ("slot_size", "precision", "activation_checkpointing", "fsdp")
    found = {"slot_size": slot_size, "exit_code": code, "message": message, "named": [w for w in words if w in message]}
    if code != 2 or "out of memory" not in message.lower():
        raise Failed(f"exit code {code}, not 2 with 'out of memory' in error.json", **found, log=run.log)
    if len(found["named"]) < len(words):
        raise Failed(f"the message does not name {', '.join(w for w in words if w not in message)}", **found)
    return found


def resume(setting: Setting) -> Details:
    """All ranks are killed by SIGKILL; training goes on from the newest checkpoint and ends as undisturbed.

    On a CPU it ends in the same bits. On a GPU none are promised (cuDNN's kernels may add in another order): whether they
    are the same is recorded, and step, position and test loss must agree.
    """
    undisturbed = train_stage(setting, "fp32", {})
    code, run = _train_with_kill(setting)
    require_success(run, code, "train")
    said = [event["message"] for event in run.events("log") if "continues from" in event["message"]]
    one, other = _last_checkpoint(undisturbed), _last_checkpoint(run)
    same_bits = [file["crc32c"] for file in one["files"]] == [file["crc32c"] for file in other["files"]]
    losses = [stage.manifest["metrics"]["test_loss"] for stage in (undisturbed, run)]
    found = {"bits_equal": same_bits, "test_loss_undisturbed": losses[0], "test_loss": losses[1], "said": said[-1:]}
    if not said:
        raise Failed("training did not go on from a checkpoint", **found, log=run.log)
    if (one["step"], one["position"]) != (other["step"], other["position"]):
        raise Failed(f"ended at step {other['step']}, undisturbed at {one['step']}", **found)
    if not setting.on_gpu and not same_bits:
        raise Failed("the last checkpoint has other bits than the undisturbed one", **found)
    if abs(losses[1] - losses[0]) > 0.1 * losses[0]:
        raise Failed("the test loss is not that of the undisturbed training", **found)
    return found


def _train_with_kill(setting: Setting) -> tuple[int, StageRun]:
    """Hold the ranks in step 25, when checkpoints are written every 10 steps, kill them, and wait for the end."""
    from trainer.drill.pauses import PAUSE_AT, PAUSE_FILE
    from trainer.drill.training import find_ranks

    held = setting.path / "resume" / "held.jsonl"
    run, process = start_stage(
        setting,
        "train",
        "resume",
        {"checkpoint": {"every_steps": 10}},
        environment={PAUSE_AT: "optimizer:25", PAUSE_FILE: str(held)},
    )
    while process.poll() is None:
        if held.exists() and any(run.events("checkpoint")):
            for pid in find_ranks(process.pid).values():
                os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.1)
    return process.wait(), run


def _last_checkpoint(run: StageRun) -> Details:
    return dict(json.loads(max(run.output.glob("checkpoints/*/manifest.json")).read_bytes()))


# --- beside the steps -------------------------------------------------------------------------------------------------


def evaluation(setting: Setting) -> Details:
    """The test split, evaluated on this device by all ranks, beside an evaluation of the same weights on the CPU."""
    import torch

    run = train_stage(setting, "fp32", {})
    metrics, right, loss, samples = run.manifest["metrics"], 0, 0.0, 0
    with torch.inference_mode():
        model, batches = _load_trained(setting, run)
        for images, labels in batches:
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


def _load_trained(setting: Setting, run: StageRun) -> tuple[Any, Any]:
    """Return the trained network on the CPU and the batches of the test split."""
    from contracts import storage
    from contracts.artifacts import CheckpointManifest, ShardManifest
    from contracts.config import DataSection
    from trainer.data.loader import evaluation_batches
    from trainer.export.inputs import Inputs
    from trainer.export.targets import Builder

    uri, shards = storage.normalise(run.output), storage.normalise(setting.shards)
    manifest = ShardManifest.load(shards)
    inputs = Inputs(uri, CheckpointManifest.load(uri), shards, manifest, Builder("none", "", ()), DataSection())
    return inputs.load_model(), evaluation_batches(shards, manifest, "test", inputs.transform, 64)


def gpu_augmentation(setting: Setting) -> Details:
    """RandAugment and colour jitter on the GPU: the CPU's pixels within 1 of 255 but for 1 of 1,000, and it learns."""
    import numpy as np
    import torch

    from contracts.config import DataSection
    from trainer.data.augment.draw import Augmentation, AugmentationPlan
    from trainer.data.augment.pixel_ops import apply_plan

    names = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
    data = {"augment_device": "gpu", "augment": {"rand_augment_ops": 2, **names}}
    section = DataSection.model_validate({"image_size": setting.image_size, **data})
    random = np.random.default_rng(0)
    drawn = [Augmentation.of(section).draw(random) for _ in range(128)]
    plan = AugmentationPlan(np.array([one for one, _ in drawn]), np.array([strengths for _, strengths in drawn]))
    side = setting.image_size
    images = torch.from_numpy(random.integers(0, 256, (128, 3, side, side), dtype=np.uint8))
    difference = (apply_plan(images.cuda(), plan).cpu().int() - apply_plan(images, plan).int()).abs()
    found = {"share_of_other_pixels": float((difference > 1).float().mean()), "largest": int(difference.max())}
    if not found["share_of_other_pixels"] <= 1e-3:
        raise Failed("the GPU's pixels are not the CPU's", **found)
    return check_learning(setting, train_stage(setting, "gpu-augmentation", {"data": data})) | found


def profile_trace(setting: Setting) -> Details:
    """The profiling stage on one configuration: traces, and on a GPU the indicators that come from kernels."""
    config = setting.with_changes({})
    slot_size, workers = setting.global_batch_size // setting.ranks, config["data"]["num_workers"]
    tried: dict[str, Any] = {"slot_sizes": [slot_size], "num_workers": [workers], "prefetch_factors": [4]}
    tried |= {"precisions": ["fp32"], "channels_last": [False], "compile": [False]}
    tried |= {"activation_checkpointing": ["none"], "window_s": 0.2, "budget_s": 15, "trace_steps": 3}
    run = run_stage(setting, "profile", "profile", {"profile": tried})
    traces = {path.name: path.stat().st_size for path in sorted(run.output.glob("traces/*"))}
    indicators = run.manifest["indicators"] or {}
    names = ("step_s", "data_time_fraction", "gpu_busy_fraction", "kernels_per_step", "mfu", "profiler_ratio")
    found = {"traces": traces, "indicators": {name: indicators.get(name) for name in names}}
    found["findings"] = [f"{one['rule']} {one['title']}" for one in run.manifest["findings"]]
    if len(traces) != setting.ranks or not indicators.get("step_s"):
        raise Failed(f"{len(traces)} traces of {setting.ranks} ranks", **found, warnings=run.manifest["warnings"])
    if setting.on_gpu and not 0 < (indicators["gpu_busy_fraction"] or 0) <= 1:
        raise Failed(f"GPU busy {indicators['gpu_busy_fraction']}", **found, warnings=run.manifest["warnings"])
    return found


# --- export -----------------------------------------------------------------------------------------------------------


def export_onnx(setting: Setting) -> Details:
    """The fp32 ONNX graph in ONNX Runtime beside torch on this device."""
    import numpy as np
    import onnxruntime
    import torch

    from trainer.export.onnx_graph import INPUT_NAME, export_graph, join_graph

    model, batches = _load_trained(setting, train_stage(setting, "fp32", {}))
    traced, path = setting.path / "onnx" / "traced.onnx", setting.path / "onnx" / "model.onnx"
    traced.parent.mkdir(exist_ok=True)
    export_graph(model, traced, image_size=setting.image_size, opset=20)
    join_graph(traced, path)
    images, _ = next(iter(batches))
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
        logits = np.asarray(session.run(None, {INPUT_NAME: images.numpy()})[0])
        error = float(np.abs(logits - expected).max() / np.ptp(expected))
        found["relative_error"][provider] = error
        if not error <= 1e-3 or logits.shape[1] != CLASSES:
            raise Failed(f"{provider}: logits differ by {error:.1e} of their range (limit 1e-3)", **found)
    return found


def export_engine(setting: Setting) -> Details:
    """The export stage for this GPU, engine and gates; on a CPU for sm89, which only proves that it builds."""
    from contracts.errors import ConfigError
    from trainer.export.targets import RTX_TARGETS, choose_builder

    target = setting.capability or "sm89"
    try:
        builder = choose_builder([target])
    except ConfigError as error:
        reason = f"TensorRT-RTX builds engines for {', '.join(RTX_TARGETS)}, not for {target}; " * (
            target not in RTX_TARGETS
        )
        raise NotRun(reason + error.given) from None
    training = train_stage(setting, "fp32", {})
    changes = {"export": {"targets": [target], "opt_batch": 4, "max_batch": 8, "calibration_samples": 128}}
    run = run_stage(setting, "export", "export", changes, f"--checkpoint={training.output}")
    gates = {f"{gate['name']} {gate['precision']}": gate["status"] for gate in run.manifest["gates"]}
    found = {"builder": builder.name, "verdict": run.manifest["verdict"], "gates": gates}
    if setting.on_gpu and run.manifest["verdict"] != "proven":
        raise Failed(f"the verdict is {run.manifest['verdict']}", **found)
    return found


def gpu_tests(setting: Setting) -> Details:
    """All tests that are marked gpu."""
    from benchmarks.gpu.marked_tests import run_marked_tests

    return run_marked_tests(setting.path)


NO_GPU = "no GPU"
LINES = (
    Line("fp32", fp32, alone=True),
    Line("bf16", bf16, alone=True),
    Line("fp16", fp16, without_gpu=f"{NO_GPU}: fp16 is slower than fp32 on a CPU", alone=True),
    Line("channels_last", channels_last, without_gpu=NO_GPU, alone=True),
    Line("compile", compiled, without_gpu=f"{NO_GPU}: compiling takes minutes on a CPU", alone=True, limit_s=150),
    Line("bare ddp", bare_ddp, alone=True),
    Line("lightning", lightning, needs=(*TRAINER, "lightning"), alone=True),
    Line("out of memory", out_of_memory, without_gpu=NO_GPU, alone=True),
    Line("fsdp", fsdp),
    Line("fsdp cpu_offload", fsdp_cpu_offload, without_gpu=NO_GPU),
    Line("resume", resume, limit_s=120),
    Line("evaluation", evaluation),
    Line("gpu augmentation", gpu_augmentation, without_gpu=NO_GPU),
    Line("profile trace", profile_trace, limit_s=120),
    Line("export onnx", export_onnx, needs=ONNX),
    Line("export engine", export_engine, needs=(*ONNX, "onnxconverter_common", "tritonclient"), limit_s=180),
    Line("gpu tests", gpu_tests, needs=(*TRAINER, "pytest", "pytest_timeout"), without_gpu=NO_GPU, limit_s=180),
)


def main() -> None:
    """Run a line and print what came of it as JSON, the last line of stdout."""
    name, text = sys.argv[1:]
    line = next(line for line in LINES if line.name == name)
    result: Details = {"status": "passed", "why": "", "details": {}}
    try:
        result["details"] = line.run(Setting.from_json(text))
    except NotRun as reason:
        result |= {"status": "not run", "why": str(reason)}
    except Failed as error:
        result |= {"status": "failed", "why": error.why, "details": error.details}
    except Exception as error:  # noqa: BLE001 - the entry of a process is where everything ends
        where = traceback.format_exc()[-3000:]
        result |= {"status": "failed", "why": f"{type(error).__name__}: {error}"[:500], "details": {"traceback": where}}
    print(json.dumps(_finite(result)), flush=True)


def _finite(value: Any) -> Any:
    """Return a value with floats that JSON does not have as text."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    main()
