"""The arms of benchmarks/checkpoints.py: `checkpoints_arms.py save JSON`, and `votes JSON` as ranks under torchrun.

Each prints a line of JSON: seconds by name, round by round.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from contracts import storage
from contracts.artifacts import CheckpointManifest
from contracts.config import CheckpointSection, RunConfig
from tests.trainer.tasks.for_tests import task_of
from trainer.checkpoint.manager import CheckpointManager
from trainer.model.precision import Numerics
from trainer.parallel.process_group import Rank
from trainer.step import Stepper
from trainer.supervise.signals import StopRequest
from trainer.supervise.vote import Vote

# How long training was held, and how long until the checkpoint was durable.
Seconds = dict[str, float]
# Vision transformers of 25 and of 100 million parameters; pictures as small as they take.
MODELS: dict[str, dict[str, int]] = {
    "25M": {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6, "num_hidden_layers": 14},
    "100M": {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 14},
}


def make_stepper(size: str) -> Stepper:
    """Return a network with the state of its optimizer, as after a step."""
    config = RunConfig.model_validate(
        {
            "data": {"image_size": 32},
            "model": {"architecture": "vit", "arguments": MODELS[size]},
            "train": {"optimizer": "adamw"},
        }
    )
    rank = Rank(0, 0, 1, torch.device("cpu"))
    stepper = Stepper(config, task_of(config, 10), rank, Numerics.of(config.train), lambda message: None)
    stepper.warm_up(1)
    for parameter in stepper.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    stepper.update(0, 1e-3)
    return stepper


class Save:
    """The ways to save one state into one folder."""

    def __init__(self, size: str, folder: Path) -> None:
        self._folder = folder
        self._stepper = make_stepper(size)
        self._sources = [tensor for group in self._stepper.state().values() for tensor in group.values()]
        self._targets = [torch.empty_like(tensor) for tensor in self._sources]
        # keep_last: nothing is deleted inside the clock.
        rules = CheckpointSection(every_steps=1, keep_last=1_000_000)
        self._manager = CheckpointManager(storage.normalise(folder / "ours"), attempt="a", rules=rules)
        self._manager.resume()
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=False, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=False
            )
        )
        self._step = 0

    def about(self) -> dict[str, int]:
        """Return what is saved."""
        return {
            "parameters": sum(parameter.numel() for parameter in self._stepper.model.parameters()),
            "tensors": len(self._sources),
            "bytes": sum(tensor.nbytes for tensor in self._sources),
        }

    def copy(self) -> Seconds:
        """Copy into buffers that have been written to before: what a save cannot do without."""
        began = time.perf_counter()
        torch._foreach_copy_(self._targets, self._sources)
        return {"held": time.perf_counter() - began}

    def ours(self) -> Seconds:
        """Save as the loop does (trainer/train.py), and wait for the commit."""
        self._step += 1
        began = time.perf_counter()
        guard = self._stepper.guard
        guard.read(guard.tensors().tolist())
        taken = self._manager.save(_manifest(self._step), self._stepper.local_state())
        held = time.perf_counter() - began
        assert taken
        self._manager.wait()
        return {"held": held, "durable": time.perf_counter() - began}

    def dcp_async(self) -> Seconds:
        """Save by DCP in a thread, staged into shared memory that is kept."""
        began = time.perf_counter()
        future = dcp.async_save(self._state(), checkpoint_id=self._place(), async_stager=self._stager)
        held = time.perf_counter() - began
        future.result()  # type: ignore[union-attr]
        return {"held": held, "durable": time.perf_counter() - began}

    def dcp_save(self) -> Seconds:
        """Save by DCP as it comes: it calls fsync."""
        began = time.perf_counter()
        dcp.save(self._state(), checkpoint_id=self._place())
        return {"durable": time.perf_counter() - began}

    def torch_save(self) -> Seconds:
        """Save by torch.save, then fsync."""
        place = self._place()
        began = time.perf_counter()
        with place.open("wb") as stream:
            torch.save(self._state(), stream)
            stream.flush()
            os.fsync(stream.fileno())
        return {"durable": time.perf_counter() - began}

    def clean(self) -> None:
        """Delete what was written, outside the clock."""
        for path in [*self._folder.glob("peer-*"), *self._folder.glob("ours/checkpoints/step-*")]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        # The disk's work is not left to the next one's clock.
        os.sync()

    def close(self) -> None:
        """End what peers have started."""
        self._stager.close()

    def _state(self) -> dict[str, Any]:
        return dict(self._stepper.state())

    def _place(self) -> Path:
        self._step += 1
        return self._folder / f"peer-{self._step}"


def run_saves(size: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Run all ways in turn, in an order drawn anew each round; the first round, which takes memory, is told apart."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    save = Save(size, folder)
    arms: dict[str, Callable[[], Seconds]] = {
        "copy": save.copy,
        "copy again": save.copy,
        "shardline": save.ours,
        "dcp.async_save": save.dcp_async,
        "dcp.save": save.dcp_save,
        "dcp.save again": save.dcp_save,
        "torch.save": save.torch_save,
    }
    draw = random.Random(0)
    found: list[dict[str, Seconds]] = []
    for number in range(rounds + 1):
        seconds: dict[str, Seconds] = {}
        for name in draw.sample(sorted(arms), len(arms)):
            seconds[name] = arms[name]()
            save.clean()
        found.append(seconds)
        print(f"{size}, round {number}: {seconds['shardline']}", file=sys.stderr, flush=True)
    save.close()
    dist.destroy_process_group()
    return {"about": save.about(), "first": found[0], "rounds": found[1:]}


def run_votes(steps: int, step_s: float) -> dict[str, Any]:
    """Take steps of about `step_s` that end in a reduction, as training's do; time two votes at the end of each."""
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    rank = Rank(dist.get_rank(), dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    votes = {name: Vote(StopRequest(), rank, timeout_s=300) for name in ("vote", "vote again")}
    gradient, pair = torch.zeros(1 << 18), torch.zeros(2, dtype=torch.int64)
    matrix = torch.randn(256, 256)
    began, products = time.perf_counter(), 0
    while time.perf_counter() - began < 10 * step_s:
        matrix @ matrix
        products += 1
    share = torch.tensor(float(products // 10))
    dist.all_reduce(share, op=dist.ReduceOp.MIN)
    found: dict[str, list[float]] = {"step": [], "all_reduce": [], **{name: [] for name in votes}}
    for step in range(steps):
        began = time.perf_counter()
        for _ in range(int(share)):
            matrix @ matrix
        dist.all_reduce(gradient)
        found["step"].append(time.perf_counter() - began)
        for name in list(votes) if step % 2 else reversed(votes):
            began = time.perf_counter()
            votes[name].step_done()
            found[name].append(time.perf_counter() - began)
        began = time.perf_counter()
        dist.all_reduce(pair, op=dist.ReduceOp.MAX)
        found["all_reduce"].append(time.perf_counter() - began)
    dist.barrier()
    dist.destroy_process_group()
    return found


def _manifest(step: int) -> CheckpointManifest:
    return CheckpointManifest(
        fingerprint="benchmark",
        step=step,
        position=step,
        epoch=0,
        slot_size=1,
        model={},
        classes=[],
        data={},
        shards_fingerprint="",
        metrics={},
        best_step=0,
        parameters_sha256="",
        environment={},
        files=[],
    )


def main() -> None:
    """Run one arm."""
    kind, text = sys.argv[1:]
    given = json.loads(text)
    torch.set_num_threads(1)
    if kind == "save":
        found = run_saves(given["size"], Path(given["folder"]), given["rounds"])
    else:
        found = run_votes(given["steps"], given["step_s"])
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
