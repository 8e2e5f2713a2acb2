"""Cases of the GPU check that train: precision, layout, FSDP2, out of memory, a kill, augmentation, a profile.

Each is one line of lines.py. A training is the stage's own command; nothing here is a loop. Nothing but the standard
library is imported before a case runs, so that what is not installed stops its own lines alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import Any

from benchmarks.gpu.setting import Details, Setting, module_command
from benchmarks.gpu.stages import Failed, StageRun, check_learning, require_success, run_stage, start_stage, train

# --- what a step computes in ------------------------------------------------------------------------------------------


def fp32(setting: Setting) -> Details:
    """Training in fp32 (with TF32, the default)."""
    return check_learning(setting, train(setting, "fp32", {}))


def bf16(setting: Setting) -> Details:
    """Training in bf16."""
    return check_learning(setting, train(setting, "bf16", {"train": {"precision": "bf16"}}))


def fp16(setting: Setting) -> Details:
    """Training in fp16 with its loss scale."""
    changes = {"train": {"precision": "fp16", "non_finite": "skip"}}
    run = train(setting, "fp16", changes)
    scales = run.scalars("train/loss_scale")
    return check_learning(setting, run) | {"last_loss_scale": scales[-1] if scales else None}


def channels_last(setting: Setting) -> Details:
    """Training in bf16 with channels last."""
    changes = {"train": {"precision": "bf16", "channels_last": True}}
    return check_learning(setting, train(setting, "channels-last", changes))


def compiled(setting: Setting) -> Details:
    """Training in bf16 under torch.compile."""
    changes = {"train": {"precision": "bf16", "compile": "on"}}
    return check_learning(setting, train(setting, "compile", changes))


# --- peers ------------------------------------------------------------------------------------------------------------


def bare_ddp(setting: Setting) -> Details:
    """Samples per second of a bare DDP loop on resident data."""
    return _peer(setting, "bare_ddp")


def lightning(setting: Setting) -> Details:
    """Samples per second of Lightning's Trainer on resident data."""
    return _peer(setting, "lightning")


def _peer(setting: Setting, kind: str) -> Details:
    torchrun = module_command("torch.distributed.run", "--standalone", "--local-addr=127.0.0.1")
    command = [
        *torchrun,
        f"--nproc-per-node={setting.ranks}",
        "--module",
        "benchmarks.gpu.peers",
        kind,
        setting.to_json(),
    ]
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
    ddp = train(setting, precision["train"]["precision"], precision).scalars("train/loss")[0]
    found = check_learning(setting, train(setting, name, {**precision, "parallel": parallel}))
    if abs(found["first_loss"] - ddp) > 0.1 * ddp:
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
    words = ("slot size", "precision", "activation checkpointing", "fsdp")
    found = {"slot_size": slot_size, "exit_code": code, "message": message}
    if code != 2 or "out of memory" not in message.lower():
        raise Failed(f"exit code {code}, not 2 with 'out of memory' in error.json", **found, log=run.log)
    if missing := [word for word in words if word not in message.replace("_", " ")]:
        raise Failed(f"the message does not name {', '.join(missing)}", **found)
    return found


def resume(setting: Setting) -> Details:
    """All ranks are killed by SIGKILL; training goes on from the newest checkpoint and ends as undisturbed.

    On a CPU it ends in the same bits. On a GPU none are promised (cuDNN's kernels may add in another order): whether
    they are the same is recorded, and step, position and test loss must agree.
    """
    undisturbed = train(setting, "fp32", {})
    code, run = _train_with_kill(setting)
    require_success(run, code, "train")
    said = [event["message"] for event in run.events("log") if "continues from" in event["message"]]
    one, other = _last_checkpoint(undisturbed), _last_checkpoint(run)
    same_bits = [file["crc32c"] for file in one["files"]] == [file["crc32c"] for file in other["files"]]
    losses = [stage.manifest["metrics"]["test_loss"] for stage in (undisturbed, run)]
    found = {"bits_equal": same_bits, "test_loss_undisturbed": losses[0], "test_loss": losses[1], "said": said}
    if not said:
        raise Failed("training did not go on from a checkpoint", **found, log=run.log)
    if (one["step"], one["position"]) != (other["step"], other["position"]):
        raise Failed(f"ended at step {other['step']}, undisturbed at {one['step']}", **found)
    if not setting.on_gpu and not same_bits:
        raise Failed("the last checkpoint has other bits than the undisturbed one", **found)
    if abs(losses[1] - losses[0]) > 0.25 * losses[0]:
        raise Failed("the test loss is not that of the undisturbed training", **found)
    return found


def _train_with_kill(setting: Setting) -> tuple[int, StageRun]:
    """Hold the ranks in step 25, when checkpoints are written every 10 steps, kill them, and wait for the end."""
    from tests.support.pauses import PAUSE_AT, PAUSE_FILE
    from tests.support.traced import find_ranks

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


def gpu_augmentation(setting: Setting) -> Details:
    """RandAugment and colour jitter on the GPU: the CPU's pixels within 1 of 255 but for 1 of 1,000, and it learns."""
    import numpy as np
    import torch

    from contracts.config import DataSection
    from trainer.tasks.images.augment.draw import Augmentation, AugmentationPlan
    from trainer.tasks.images.augment.pixel_ops import apply_plan

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
    return check_learning(setting, train(setting, "gpu-augmentation", {"data": data})) | found


def profile_trace(setting: Setting) -> Details:
    """The profiling stage on one configuration: traces, and on a GPU the indicators that come from kernels."""
    config = setting.with_changes({})
    slot_size, workers = setting.global_batch_size // setting.ranks, config["data"]["num_workers"]
    tried: dict[str, Any] = {"slot_sizes": [slot_size], "num_workers": [workers], "prefetch_factors": [4]}
    tried |= {"precisions": ["fp32"], "channels_last": [False], "compile": [False]}
    tried |= {"activation_checkpointing": ["none"], "window_s": 0.2, "budget_s": 60, "trace_steps": 3}
    run = run_stage(setting, "profile", "profile", {"profile": tried})
    traces = {path.name: path.stat().st_size for path in sorted(run.output.glob("traces/*.json.gz"))}
    indicators = run.manifest["indicators"] or {}
    names = ("step_s", "data_time_fraction", "gpu_busy_fraction", "kernels_per_step", "mfu", "profiler_ratio")
    found = {"traces": traces, "indicators": {name: indicators.get(name) for name in names}}
    found["findings"] = [f"{one['rule']} {one['title']}" for one in run.manifest["findings"]]
    if len(traces) != setting.ranks or not indicators.get("step_s"):
        raise Failed(f"{len(traces)} traces of {setting.ranks} ranks", **found, warnings=run.manifest["warnings"])
    if setting.on_gpu and not 0 < (indicators["gpu_busy_fraction"] or 0) <= 1:
        raise Failed(f"GPU busy {indicators['gpu_busy_fraction']}", **found, warnings=run.manifest["warnings"])
    return found
