"""What only a GPU shows: `make test-gpu`. Without one, what a CPU allows runs, and the rest is skipped by name.

Each stage, and the bare loop, is a process of its own with a limit of time: a hang or a crash ends its test alone.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from contracts import storage
from contracts.artifacts import ExportManifest
from contracts.proof import proven_on
from tests.gpu.stages import CLASSES, LIMIT_S, Machine, StageRun, resumes, write_shards
from tests.support.pauses import PAUSE_AT, PAUSE_FILE
from tests.support.traced import HOOKS, find_ranks
from trainer.launch.machine import num_gpus

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]
needs_gpu = pytest.mark.skipif(num_gpus() == 0, reason="needs an NVIDIA GPU")
VARIANTS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16, channels last": {"precision": "bf16", "channels_last": True},
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    gpus, memory = num_gpus(), 0
    if gpus:
        import pynvml

        pynvml.nvmlInit()
        memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total
    found = Machine(tmp_path_factory.mktemp("gpu"), gpus, memory)
    write_shards(found)
    return found


@pytest.mark.parametrize("variant", ["fp32", pytest.param("bf16, channels last", marks=needs_gpu)])
def test_training_learns_and_its_rate_stands_beside_a_bare_loop(
    machine: Machine, variant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step that waits for the device or the loader would show here; the ratio is printed, not judged."""
    ours = machine.rate(machine.train(variant, {"train": VARIANTS[variant]}))
    given = {"model": machine.model, "image_size": machine.image_size, "classes": CLASSES, "batch": machine.batch}
    given |= {"precision": "fp32", "channels_last": False, **VARIANTS[variant]}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={machine.ranks}"]
    command = [*launch, "--module", "tests.gpu.bare_ddp", json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    bare = float(done.stdout.splitlines()[-1])
    with capsys.disabled():
        print(f"\n{variant}, {machine.device}: {ours:.0f} samples/s, bare DDP {bare:.0f}: {ours / bare:.2f}")


@needs_gpu
def test_a_compiled_network_learns(machine: Machine) -> None:
    machine.train("compile", {"train": {"precision": "bf16", "compile": "on"}})


def test_a_sharded_network_learns_and_begins_with_the_loss_of_ddp(machine: Machine) -> None:
    ddp = machine.train("fp32", {}).scalars("train/loss")[0]
    fsdp = machine.train("fsdp", {"parallel": {"strategy": "fsdp"}}).scalars("train/loss")[0]
    assert fsdp == pytest.approx(ddp, rel=0.1)


def test_ranks_that_are_killed_go_on_from_a_checkpoint(machine: Machine) -> None:
    """Held in step 25 of 60, with a checkpoint every 10. On a CPU it ends in the same bits as undisturbed."""
    undisturbed, held = machine.train("fp32", {}), machine.folder / "held.jsonl"
    environment = {**HOOKS, PAUSE_AT: "optimizer:25", PAUSE_FILE: str(held)}
    process = machine.start("train", "killed", {"checkpoint": {"every_steps": 10}}, **environment)
    run, deadline = StageRun(machine.folder / "killed", 0), time.monotonic() + LIMIT_S
    try:
        while not (held.exists() and list(run.output.glob("checkpoints/*/manifest.json"))):
            assert process.poll() is None and time.monotonic() < deadline, run.log[-2000:]
            time.sleep(0.1)
        for pid in find_ranks(process.pid).values():
            os.kill(pid, signal.SIGKILL)
        assert process.wait(LIMIT_S) == 0, run.error
    finally:
        process.kill()
    assert max(resumes(run)) >= 10
    one, other = undisturbed.manifest, run.manifest
    assert (other["step"], other["position"]) == (one["step"], one["position"])
    assert other["metrics"]["test_loss"] == pytest.approx(one["metrics"]["test_loss"], rel=0.25)
    if not machine.gpus:
        assert other["parameters_sha256"] == one["parameters_sha256"]


@needs_gpu
def test_a_slot_that_cannot_fit_ends_with_2_and_says_what_to_lower(machine: Machine) -> None:
    # ResNet-50 takes about 80 MB per sample of 224 px in fp32; a fifth of that is more than any GPU has.
    batch = machine.memory_bytes // 16_000_000 * machine.ranks
    run = machine.run("train", "out-of-memory", {"train": {"global_batch_size": batch}})
    message = run.error.replace("_", " ")
    assert run.code == 2 and "out of memory" in message.lower(), message
    assert all(word in message for word in ("slot size", "precision", "activation checkpointing", "fsdp"))


def test_a_profile_has_a_trace_of_each_rank(machine: Machine) -> None:
    """On a GPU it also says how busy the kernels keep it."""
    tried: dict[str, Any] = {
        "slot_sizes": [machine.batch // machine.ranks],
        "num_workers": [machine.config({})["data"]["num_workers"]],
    }
    tried |= {"method": "sweep", "window_s": 0.2, "budget_s": 60}
    pinned = {"data": {"prefetch_factor": 4}, "train": {"compile": "off"}}
    run = machine.run("profile", "profile", {"profile": tried, **pinned})
    assert run.code == 0, run.error
    assert len(list(run.output.glob("traces/*.json.gz"))) == machine.ranks
    indicators = run.manifest["indicators"]
    assert indicators["step_s"] > 0
    assert not machine.gpus or 0 < indicators["gpu_busy_fraction"] <= 1


@pytest.mark.parametrize("runtime", ["onnx", pytest.param("tensorrt", marks=needs_gpu)])
def test_what_is_exported_passes_its_gates_here(machine: Machine, runtime: str) -> None:
    """The gates run the served file: an ONNX file on the CPU, a plan on this GPU, which proves it."""
    needs = ("onnx", "onnxscript", "onnxruntime", *(["tensorrt"] if runtime == "tensorrt" else []))
    if missing := [name for name in needs if importlib.util.find_spec(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    trained = machine.train("fp32", {})
    settings = {"runtime": runtime, "precision": "fp16", "max_batch": 8}
    run = machine.run("export", f"export-{runtime}", {"export": settings}, f"--checkpoint={trained.output}")
    assert run.code == 0, run.error
    document = ExportManifest.load(storage.normalise(run.output))
    gates = [gate for gate in document.gates if gate.file == document.served]
    assert {gate.name for gate in gates} >= {"parity", "metric"}
    assert {gate.status for gate in gates} == {"passed"}, gates
    assert bool(proven_on(document)) == (runtime == "tensorrt"), document.gates
