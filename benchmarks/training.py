"""Training beside peers, as ratios from one run: its loop, a restart beside a start, and what a checkpoint holds up.

    python benchmarks/training.py                                      # without Lightning
    python benchmarks/training.py --peers FOLDER --record benchmarks/results
    python benchmarks/training.py --only checkpoint

`loop`: beside a bare torch DDP loop and Lightning, which train the same model on the same slots of the same shards,
read by the same reader and taken by the same AdamW; what differs is the loop. `restart`: seconds from the kill of a
rank until training goes on, over those of a cold start. `checkpoint`: how long training stands still while one is
saved, beside a bare copy into memory and torch.distributed.checkpoint's async_save (a vision transformer of 25 and of
100 million parameters with AdamW's state, one rank, one thread).

The bare loop runs twice in each round: its ratio to itself (A/A) is what noise alone makes. A line is decided only when
A/A lies within half of the line's margin. Two gloo ranks of one thread each; a round runs all arms in turn, and a ratio
is that of one round. A run's time is the median of those between two looks at the loss, so that starts, evaluation and
checkpoints are not in it; its processor time is that of all its processes from the first look to the last, in which a
neighbour that takes the cores does not count. Lightning needs an environment of its own, made in `--peers FOLDER`.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.shared import (
    REPOSITORY,
    ProcessorTime,
    descendants,
    describe_machine,
    judge,
    make_peers,
    quotients,
    record,
    run,
    summary,
    write_pictures,
)
from contracts import storage
from contracts.artifacts import CheckpointManifest, SampleOrder, ShardManifest
from contracts.config import RunConfig
from contracts.events import EVENTS_NAME, EventReader
from contracts.process import thread_environment

PARTS = ("loop", "restart", "checkpoint")
PEERS = {"lightning": ("lightning==2.6.*",)}
# Our loop's own (trainer/train.py, LOG_EVERY_STEPS).
EVERY = 20
RANKS = 2
# Steps of about 0.1 s on one core of 2.5 GHz.
CONFIG: dict[str, Any] = {
    "data": {"image_size": 64, "num_workers": 0},
    "model": {
        "architecture": "resnet",
        "arguments": {"layer_type": "basic", "embedding_size": 16, "hidden_sizes": [16, 32, 64], "depths": [1, 1, 1]},
    },
    "train": {"global_batch_size": 64, "epochs": 1},
    "parallel": {"slot_size": 32},
    "resources": {"ranks": RANKS},
}

# Widths of a vision transformer of 14 blocks, by its parameters; pictures as small as it takes.
SAVED_WIDTHS = {"25 million parameters": 384, "100 million parameters": 768}


def main() -> None:
    """Run what the arguments ask for and print it; or one arm, as a rank under torchrun."""
    if sys.argv[1:2] == ["arm"]:
        run_arm(sys.argv[2], json.loads(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=160, help="optimizer steps of a run [default: 160]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", type=Path, default=None, help="folder for Lightning's environment")
    parser.add_argument("--record", type=Path, default=None, help="folder for a dated result file")
    parser.add_argument("--only", choices=PARTS, default=None)
    parser.add_argument("--notes", default="", help="what was expected; kept with the result")
    options = parser.parse_args()
    asked = {"steps": options.steps, "rounds": options.rounds, "config": CONFIG, "notes": options.notes}
    about: dict[str, object] = {**describe_machine("torch"), **asked}
    parts: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        shards = shard(place, samples=options.steps * CONFIG["train"]["global_batch_size"])
        if options.only in (None, "loop"):
            arms: dict[str, Callable[[], Run]] = {
                "bare": lambda: run_peer("bare", shards, sys.executable),
                "shardline": lambda: run_ours(shards, place),
                "bare again": lambda: run_peer("bare", shards, sys.executable),
            }
            peers, missing = make_peers(options.peers, PEERS, sees_ours=True)
            for name, python in peers.items():
                arms[name] = functools.partial(run_peer, name, shards, python)
            versions = {name: version_of(python, name) for name, python in peers.items()}
            parts["loop"] = {"about": {**about, **versions}, "not installed": missing, **compare(arms, options.rounds)}
        if options.only in (None, "restart"):
            parts["restart"] = {"about": about, **time_restarts(shards, place, options.rounds)}
        if options.only in (None, "checkpoint"):
            parts["checkpoint"] = {"about": about}
            for name, width in SAVED_WIDTHS.items():
                given = json.dumps({"folder": str(place / "saves"), "rounds": options.rounds, "width": width})
                saves = json.loads(run([sys.executable, __file__, "arm", "checkpoint", given]).splitlines()[-1])
                parts["checkpoint"][name] = compare_saves(saves)
    print(json.dumps(parts, indent=1))
    if options.record:
        record(options.record, "training", parts)


def version_of(python: str, package: str) -> str:
    """Return the version of a package that an interpreter has."""
    return run([python, "-c", f"from importlib.metadata import version; print(version({package!r}))"]).strip()


@dataclass(frozen=True)
class Run:
    """One run of a loop."""

    step_s: float
    processor_s: float
    """Seconds of processor time a step, of all ranks and whatever runs beside them."""


def compare(arms: dict[str, Callable[[], Run]], rounds: int) -> dict[str, object]:
    """Run all arms in turn, in an order drawn anew each round; return seconds a step, and the lines."""
    found: dict[str, list[Run]] = {name: [] for name in arms}
    failed: list[str] = []
    draw = random.Random(0)
    for number in range(rounds):
        for name in draw.sample(sorted(arms), len(arms)):
            try:
                found[name].append(arms[name]())
            except subprocess.CalledProcessError:
                # Once: a second failure ends all.
                failed.append(name)
                found[name].append(arms[name]())
            run = found[name][-1]
            text = f"{run.step_s * 1000:.1f} ms a step, {run.processor_s * 1000:.1f} ms of processor time"
            print(f"round {number + 1}: {name} {text}", file=sys.stderr, flush=True)
    return {
        "seconds a step": _lines({name: [run.step_s for run in runs] for name, runs in found.items()}),
        "processor seconds a step": _lines({name: [run.processor_s for run in runs] for name, runs in found.items()}),
        "runs that failed and were taken again": failed,
    }


def _lines(found: dict[str, list[float]]) -> dict[str, object]:
    ours, again = found["shardline"], quotients(found["bare again"], found["bare"])
    lines: dict[str, object] = {name: summary(values) for name, values in found.items()}
    lines["over the bare loop's"] = judge(quotients(ours, found["bare"]), again, at_most=1.02)
    if "lightning" in found:
        lines["Lightning's over ours"] = judge(quotients(found["lightning"], ours), again, at_least=1.0)
    return lines


def time_restarts(shards: str, place: Path, rounds: int) -> dict[str, object]:
    """Return the time from a cold start, and from the kill of a rank, until training goes on.

    Each round starts twice and kills once in each: starts to each other are the noise.
    """
    cold, after_kill = [], []
    for number in range(2 * rounds):
        output = place / f"restart{number}" / "out"
        began = time.time()
        process = subprocess.Popen(
            _stage(shards, output, {"checkpoint": {"every_steps": 10}}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **thread_environment(1), "PYTHONPATH": str(REPOSITORY)},
        )
        try:
            cold.append(_going_on(output, 1) - began)
            _wait_for(output, "checkpoint", 1)
            ranks = [pid for pid in descendants(process.pid) if "trainer.worker" in _command_of(pid)]
            killed = time.time()
            os.kill(ranks[-1], signal.SIGKILL)
            after_kill.append(_going_on(output, 2) - killed)
        finally:
            process.terminate()
            process.wait()
        text = f"start {cold[-1]:.2f} s, restart {after_kill[-1]:.2f} s"
        print(f"round {number + 1}: {text}", file=sys.stderr, flush=True)
    return {
        "cold start until training goes on, s": summary(cold),
        "kill until training goes on, s": summary(after_kill),
        "restart over start": judge(quotients(after_kill, cold), quotients(cold[1::2], cold[::2]), at_most=1.3),
    }


def _going_on(output: Path, time_number: int) -> float:
    return float(_wait_for(output, "resume", time_number)["time"])


def _wait_for(output: Path, kind: str, number: int, *, patience_s: float = 120) -> dict[str, Any]:
    """Return the event of a kind that a training tells for the number-th time."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        events = [
            event
            for path in (output.parent / "attempts").glob(f"*/{EVENTS_NAME}")
            for event in EventReader(path).poll()
            if event["event"] == kind
        ]
        if len(events) >= number:
            return dict(events[number - 1])
        time.sleep(0.02)
    raise TimeoutError(f"no {kind} within {patience_s:.0f} s")


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def compare_saves(rounds: list[dict[str, float]]) -> dict[str, object]:
    """Return how long training stood still by each way to save, and the lines."""
    held = {name: [one[name] for one in rounds] for name in rounds[0]}
    again = quotients(held["copy again"], held["copy"])
    return {
        "held, s": {name: summary(values) for name, values in held.items()},
        "held over a bare copy": judge(quotients(held["shardline"], held["copy"]), again, at_most=1.1),
        "held over dcp.async_save": judge(quotients(held["shardline"], held["dcp.async_save"]), again, at_most=1.1),
    }


def run_ours(shards: str, place: Path) -> Run:
    """Train by the stage's own command."""
    output = Path(tempfile.mkdtemp(dir=place)) / "out"
    with ProcessorTime() as spent:
        run(_stage(shards, output, {}))
    (events,) = (output.parent / "attempts").glob(f"*/{EVENTS_NAME}")
    steps = [(event["done"], event["time"]) for event in EventReader(events).poll() if event["event"] == "progress"]
    return _run_of([at for done, at in steps if done % EVERY == 0], spent)


def run_peer(kind: str, shards: str, python: str) -> Run:
    """Train by a peer's loop under torchrun."""
    given = json.dumps({"config": CONFIG, "shards": shards, "every": EVERY})
    command = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    with ProcessorTime() as spent:
        times = json.loads(run([*command, __file__, "arm", kind, given]).splitlines()[-1])
    return _run_of(times, spent)


def _run_of(looks: list[float], spent: ProcessorTime) -> Run:
    """Return the median over the stretches between two looks at the loss, and the mean of the processor time."""
    step_s = statistics.median(later - earlier for earlier, later in pairwise(looks)) / EVERY
    return Run(step_s, spent.between(looks[0], looks[-1]) / (EVERY * (len(looks) - 1)))


def _stage(shards: str, output: Path, changes: dict[str, Any]) -> list[str]:
    text = json.dumps({**CONFIG, **changes})
    return [sys.executable, "-m", "trainer.task", f"--shards={shards}", f"--output={output}", f"--config-json={text}"]


def shard(place: Path, *, samples: int) -> str:
    """Write pictures and their shards; return their URI."""
    write_pictures(place / "raw", total_bytes=samples * 3000, file_bytes=3000)
    splits = {"train": 1.0, "validation": 0.0, "test": 0.0}
    config = {"sharding": {"source": str(place / "raw"), "splits": splits, "verify": "decode"}}
    run([sys.executable, "-m", "sharding.task", f"--config-json={json.dumps(config)}", f"--output={place / 'shards'}"])
    return storage.normalise(place / "shards")


def make_parts(config: RunConfig, shards: str, rank: int, ranks: int) -> tuple[Any, Any, Any]:
    """Return the model, the loader of a rank's slots of one epoch, and the task."""
    import torch

    from trainer.data.cursor import slot_requests
    from trainer.data.loader import SlotDataset
    from trainer.data.order import make_order, resolve_order
    from trainer.data.reader import ShardReader
    from trainer.model.build import build_model
    from trainer.tasks.loading import load_task

    manifest = ShardManifest.load(shards)
    torch.manual_seed(config.run.seed)
    torch.use_deterministic_algorithms(True)
    task = load_task(config, manifest, shards)
    model = build_model(task, config)
    reader = ShardReader(shards, manifest, "train", config.data)
    choice = resolve_order(config.data, shards, None)
    order = make_order(choice.order, manifest, seed=config.run.seed)
    assert isinstance(config.parallel.slot_size, int) and isinstance(config.data.num_workers, int)
    requests = slot_requests(
        0,
        order=order,
        epochs=1,
        global_batch_size=config.train.global_batch_size,
        slot_size=config.parallel.slot_size,
        rank=rank,
        ranks=ranks,
    )
    loader = torch.utils.data.DataLoader(
        SlotDataset(reader, task, config.run.seed),
        batch_size=None,
        sampler=list(requests),
        num_workers=config.data.num_workers,
    )
    return model, loader, task


def train_bare(config: RunConfig, shards: str, every: int) -> list[float]:
    """Train by a loop of a dozen lines; return the times of looks at the loss."""
    import torch
    import torch.distributed as dist

    from trainer.optim import make_optimizer
    from trainer.tasks.task import Mode

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    network, loader, task = make_parts(config, shards, rank, ranks)
    model = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = make_optimizer(network, config.train, task=task)
    times, total = [], torch.zeros(())
    for step, slot in enumerate(loader, start=1):
        batch = task.to_model(slot.batch, Mode(training=True))
        loss, _ = task.loss(model(batch["images"]), batch, Mode(training=True))
        (loss * (ranks / slot.request.batch_samples)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total += loss.detach()
        if step % every == 0:
            dist.all_reduce(total)
            total.item()
            total.zero_()
            times.append(time.time())
    return times


def train_lightning(config: RunConfig, shards: str, every: int) -> list[float]:
    """Train by Lightning's Trainer; return the times of looks at the loss."""
    import lightning
    import torch
    import torch.distributed as dist

    from trainer.data.loader import SlotBatch
    from trainer.optim import make_optimizer
    from trainer.tasks.task import Mode

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    network, loader, task = make_parts(config, shards, rank, ranks)
    times: list[float] = []

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = network
            self.total = torch.zeros(())

        def training_step(self, slot: SlotBatch, index: int) -> torch.Tensor:
            batch = task.to_model(slot.batch, Mode(training=True))
            loss, _ = task.loss(self.network(batch["images"]), batch, Mode(training=True))
            self.total += loss.detach()
            if (index + 1) % every == 0:
                dist.all_reduce(self.total)
                self.total.item()
                self.total.zero_()
                times.append(time.time())
            return loss * (ranks / slot.request.batch_samples)

        def transfer_batch_to_device(self, batch: SlotBatch, device: torch.device, index: int) -> SlotBatch:
            return batch

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.network, config.train, task=task)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(Module(), loader)
    return times


def save_in_turn(folder: Path, rounds: int, width: int) -> list[dict[str, float]]:
    """Return how long training stands still by each way to save, round by round.

    The first round, which takes memory, is left out. The network has embeddings of `width`.
    """
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    from contracts.config import CheckpointSection
    from tests.trainer.tasks.for_tests import task_of
    from trainer.checkpoint.manager import CheckpointManager
    from trainer.model.numerics import Numerics
    from trainer.parallel.process_group import Rank
    from trainer.step import Stepper

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": width // 64}
    model = {"architecture": "vit", "arguments": {**sizes, "num_hidden_layers": 14}}
    config = RunConfig.model_validate({"data": {"image_size": 32}, "model": model, "train": {"optimizer": "adamw"}})
    rank = Rank(0, 0, 1, torch.device("cpu"))
    stepper = Stepper(config, task_of(config, 10), rank, Numerics.of(config.train), lambda message: None)
    stepper.warm_up(1)
    for parameter in stepper.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    stepper.update(0, 1e-3)
    sources = [tensor for group in stepper.state().values() for tensor in group.values()]
    targets = [torch.empty_like(tensor) for tensor in sources]
    # keep_last: nothing is deleted inside the clock.
    rules = CheckpointSection(every_steps=1, keep_last=1_000_000)
    manager = CheckpointManager(storage.normalise(folder / "ours"), attempt="a", rules=rules)
    manager.resume()
    stager = DefaultStager(StagingOptions(False, True, False, False))
    numbers = itertools.count(1)

    def copy() -> float:
        began = time.perf_counter()
        torch._foreach_copy_(targets, sources)
        return time.perf_counter() - began

    def ours() -> float:
        manifest = _manifest(next(numbers))
        began = time.perf_counter()
        stepper.guard.read(stepper.guard.tensors().tolist())
        taken = manager.save(manifest, stepper.state())
        held = time.perf_counter() - began
        assert taken
        manager.wait()
        return held

    def dcp_async() -> float:
        state, place = dict(stepper.state()), folder / f"peer-{next(numbers)}"
        began = time.perf_counter()
        future = dcp.async_save(state, checkpoint_id=place, async_stager=stager)
        held = time.perf_counter() - began
        future.result()
        return held

    arms: dict[str, Callable[[], float]] = {
        "copy": copy,
        "copy again": copy,
        "shardline": ours,
        "dcp.async_save": dcp_async,
    }
    draw, found = random.Random(0), []
    for _ in range(rounds + 1):
        seconds = {}
        for name in draw.sample(sorted(arms), len(arms)):
            seconds[name] = arms[name]()
            for path in [*folder.glob("peer-*"), *folder.glob("ours/checkpoints/step-*")]:
                shutil.rmtree(path)
            # The disk's work is not left to the next one's clock.
            os.sync()
        found.append(seconds)
    stager.close()
    dist.destroy_process_group()
    return found[1:]


def _manifest(step: int) -> CheckpointManifest:
    return CheckpointManifest(
        order=SampleOrder(kind="full"),
        task={"name": "image_classification", "arguments": {}},
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


def run_arm(kind: str, given: dict[str, Any]) -> None:
    """Run one arm, and print what it measured as JSON."""
    import torch

    torch.set_num_threads(1)
    if kind == "checkpoint":
        print(json.dumps(save_in_turn(Path(given["folder"]), given["rounds"], given["width"])))
        return
    config = RunConfig.model_validate(given["config"])
    # A run takes a quarter of a minute: one that hangs says where, and is taken again.
    faulthandler.dump_traceback_later(120, exit=True)
    times = {"bare": train_bare, "lightning": train_lightning}[kind](config, given["shards"], given["every"])
    if os.environ["RANK"] == "0":
        print(json.dumps(times), flush=True)
    _leave()


def _leave() -> NoReturn:
    """End at once, when all ranks are here: with a barrier and the group's end a rank was seen to wait for good."""
    import torch.distributed as dist

    store = dist.distributed_c10d._get_default_store()
    store.add("left", 1)
    while store.add("left", 0) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)
    os._exit(0)


if __name__ == "__main__":
    main()
