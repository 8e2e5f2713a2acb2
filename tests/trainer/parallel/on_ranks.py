"""What every rank of a test does, under torchrun: `python -m torch.distributed.run ... on_ranks.py FOLDER SCENARIO...`.

The first rank saves what a scenario returns as FOLDER/SCENARIO.pt; tests/trainer/parallel/test_parallel.py starts this
and looks at it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from contracts.errors import ConfigError
from tests.trainer.parallel import runs, starts
from tests.trainer.parallel.runs import CLASSES, SIZE, VIT, Run, make_config
from tests.trainer.tasks.for_tests import task_of
from trainer.evaluate import EVALUATION_BATCH, Sized, SplitPart, evaluate
from trainer.model.precision import Numerics
from trainer.parallel.process_group import Rank, process_group
from trainer.step import Stepper
from trainer.supervise.signals import StopCause, StopRequest
from trainer.supervise.vote import Vote
from trainer.tasks.classes.report import ClassificationReport


def strategies(rank: Rank) -> dict[str, Any]:
    """Same losses and parameters, whatever spreads the network."""
    found: dict[str, Any] = {}
    for name, parallel in {
        "ddp": {"bucket_mb": 0.005},
        "fsdp": {"strategy": "fsdp"},
    }.items():
        for kind, model in (("resnet", None), ("vit", VIT)):
            run = Run(make_config(model, **parallel), rank)
            run.take(7)
            found[f"{name} {kind}"] = {"losses": run.losses, "said": run.said}
    return found


def resumes(rank: Rank) -> dict[str, Any]:
    """The state after nine steps, without a stop, with one after every second step, and continued by the other."""
    found: dict[str, Any] = {}
    # Small buckets: the network has 6,000 parameters. All that follows the optimizer, in both.
    train = {"ema_decay": 0.9, "clip_grad_norm": 0.5}
    ways = {"ddp": make_config(train=train, bucket_mb=0.005), "fsdp": make_config(train=train, strategy="fsdp")}
    for name, config in ways.items():
        run = Run(config, rank)
        found[name] = run.take(9)
        if name == "ddp":
            found["buckets"] = run.stepper._parallel._ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"]
        part = None
        for _ in range(4):
            part = Run(config, rank, part)
            part.take(2)
        found[f"{name} resumed"] = Run(config, rank, part).take(1)
        half = Run(config, rank)
        half.take(4)
        found[f"{name} changed"] = Run(ways["fsdp" if name == "ddp" else "ddp"], rank, half).take(5)
    return found


def buffers(rank: Rank) -> dict[str, Any]:
    """Running statistics are the first rank's, and are those of the slots that it has computed, once each."""
    found: dict[str, Any] = {}
    for name, parallel in {"ddp": {}, "fsdp": {"strategy": "fsdp"}}.items():
        run = Run(make_config(**parallel), rank)
        run.take(1)
        before = [buffer.clone() for buffer in run.stepper.model.buffers()]
        gathered: list[Any] = [None] * rank.ranks
        dist.all_gather_object(gathered, before)
        found[name] = gathered
    return found


def first_weights(rank: Rank) -> dict[str, Any]:
    """The weights that training begins with are the first rank's."""
    model = {"architecture": "tests.trainer.parallel.networks:NotTheSame", "arguments": {}}
    found = {}
    for name, parallel in {
        "ddp": {},
        "fsdp": {"strategy": "fsdp"},
    }.items():
        config = make_config(model, **parallel)
        stepper = Stepper(config, task_of(config, CLASSES), rank, Numerics.of(config.train), lambda message: None)
        found[name] = stepper.full_model_state()
    return found


def outcomes(rank: Rank) -> dict[str, Any]:
    """An evaluation of five batches, the last of them short, by a sharded and a whole network."""
    found: dict[str, Any] = {}
    count = 4 * EVALUATION_BATCH + 7
    random = np.random.default_rng(11)
    images = torch.from_numpy(random.normal(size=(count, 3, SIZE, SIZE)).astype(np.float32))
    labels = torch.from_numpy(random.integers(0, CLASSES, count))

    def batches() -> Iterator[Sized]:
        for start in range(rank.rank * EVALUATION_BATCH, count, rank.ranks * EVALUATION_BATCH):
            end = min(start + EVALUATION_BATCH, count)
            yield {"images": images[start:end], "label": labels[start:end]}, end - start

    for name, parallel in {"ddp": {}, "fsdp": {"strategy": "fsdp"}}.items():
        run = Run(make_config(**parallel), rank)
        report = ClassificationReport(["a", "b", "c"], rank.device, lambda sample: sample["image"])
        share = SplitPart(batches(), count, rank.rank, rank.ranks)
        evaluation = evaluate(run.stepper.model, task_of(run.config, CLASSES), share, rank.device, report=report)
        result = report.outcomes
        result.merge()
        # Training goes on after an evaluation, in the same parameters as the optimizer's.
        run.take(2)
        found[name] = {
            "evaluation": evaluation,
            "confusion": result.confusion(),
            "classes": [one.model_dump() for one in result.by_class(["a", "b", "c"])],
            "worst": result.worst(),
            "counts": result.counts().tolist(),
            "losses": run.losses,
        }
    return found


def stopped_evaluation(rank: Rank) -> dict[str, Any]:
    """Forward passes of each rank until a stop is agreed, and on a split of which the first rank has a batch more."""
    found: dict[str, Any] = {}
    run = Run(make_config(strategy="fsdp"), rank)
    passes = 0

    def count(module: torch.nn.Module, arguments: object) -> None:
        nonlocal passes
        passes += 1

    run.stepper.model.register_forward_pre_hook(count)
    task = task_of(run.config, CLASSES)
    batch = task.example(EVALUATION_BATCH), EVALUATION_BATCH
    for name, wanted in (("stopped", StopCause.SIGTERM), ("whole", StopCause.NONE)):
        stop = StopRequest()
        if not rank.is_first:
            stop.want(wanted)
        vote, passes = Vote(stop, rank, timeout_s=60), 0
        rounds = 6
        own = rounds if rank.is_first else rounds - 1
        share = SplitPart(repeat(batch, own), EVALUATION_BATCH * (rank.ranks * (rounds - 1) + 1), rank.rank, rank.ranks)
        evaluation = evaluate(run.stepper.model, task, share, rank.device, rounds=vote.rounds_of)
        passed: list[Any] = [None] * rank.ranks
        dist.all_gather_object(passed, passes)
        found[name] = {"passes": passed, "rounds": share.rounds(), "samples": evaluation.samples if evaluation else 0}
    return found


def refusals(rank: Rank) -> dict[str, str]:
    """What cannot work here, and what is said about it."""
    found = {}
    for name, parallel in {
        "sync_batch_norm": {"sync_batch_norm": True},
    }.items():
        try:
            config = make_config(**parallel)
            Stepper(config, task_of(config, CLASSES), rank, Numerics.of(config.train), lambda message: None)
            found[name] = "nothing"
        except ConfigError as error:
            found[name] = str(error)
    return found


def on_gpu(rank: Rank) -> dict[str, Any]:
    """What needs a GPU: SyncBatchNorm, and the strategies on CUDA tensors."""
    found: dict[str, Any] = {}
    ways: dict[str, dict[str, Any]] = {"ddp": {}}
    if dist.get_backend() == "nccl" or "nccl" in str(dist.get_backend_config()):
        ways["fsdp"] = {"strategy": "fsdp"}
        ways["sync"] = {"sync_batch_norm": True}
    for name, options in ways.items():
        run = Run(make_config(**options), rank)
        state = run.take(5)
        again = Run(make_config(**options), rank, run)
        found[name] = {"losses": run.losses, "model": state["model"], "reloaded": again.stepper.full_model_state()}
    return found


SCENARIOS: dict[str, Callable[[Rank], Any]] = {
    "strategies": strategies,
    "resumes": resumes,
    "buffers": buffers,
    "first_weights": first_weights,
    "outcomes": outcomes,
    "stopped_evaluation": stopped_evaluation,
    "refusals": refusals,
    "on_gpu": on_gpu,
    **starts.SCENARIOS,
}


@contextmanager
def gloo_on_one_gpu() -> Iterator[Rank]:
    """Join the group with gloo, all ranks on the first GPU: NCCL takes one rank a GPU."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    yield Rank(rank, 0, ranks, torch.device("cuda", 0))
    dist.destroy_process_group()


def main(folder: str, *names: str) -> None:
    runs.place = Path(folder)
    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        torch.use_deterministic_algorithms(True)
    on_one_gpu = os.environ.get("RANKS_ON_ONE_GPU") == "1"
    with gloo_on_one_gpu() if on_one_gpu else process_group(0, setup_timeout_s=120) as rank:
        for name in names:
            found = SCENARIOS[name](rank)
            if rank.is_first:
                torch.save(found, Path(folder) / f"{name}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
