"""Work of every rank of a test: `python -m tests.trainer.parallel.on_ranks FOLDER SCENARIO...` with RANK and so on.

The first rank saves what a scenario returns as FOLDER/SCENARIO.pt; test_parallel.py starts this and looks at it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from contracts import storage
from contracts.config import CheckpointSection
from contracts.errors import ConfigError, TryAgain, UserError
from tests.conftest import small_config
from tests.trainer.checkpoint.attempts import manifest
from tests.trainer.parallel import runs
from tests.trainer.parallel.runs import CLASSES, SIZE, VIT, Run, make_config
from tests.trainer.tasks.for_tests import task_of
from trainer.checkpoint.loading import StoredTensor, load_groups, open_groups
from trainer.checkpoint.manager import CheckpointManager
from trainer.data.evaluation import EvaluationBatch
from trainer.data.reader import Origin
from trainer.evaluate import EVALUATION_BATCH, evaluate
from trainer.model.numerics import Numerics
from trainer.parallel import spread
from trainer.parallel.process_group import Rank, process_group
from trainer.parallel.spread import full_tensor
from trainer.predictions import OutcomeCollector
from trainer.step import Stepper
from trainer.supervise.stop import StopCause, StopRequest
from trainer.supervise.vote import Vote

FSDP = {"strategy": "fsdp"}
WAYS: dict[str, dict[str, Any]] = {"ddp": {}, "fsdp": FSDP}


def network(name: str) -> dict[str, Any]:
    return {"architecture": f"tests.trainer.parallel.networks:{name}", "arguments": {}}


def make_stepper(rank: Rank, model: dict[str, Any] | None = None, **parallel: Any) -> Stepper:
    config = make_config(model, **parallel)
    return Stepper(config, task_of(config, CLASSES), rank, Numerics.of(config.train), lambda message: None)


def gather(rank: Rank, value: Any) -> list[Any]:
    found: list[Any] = [None] * rank.ranks
    dist.all_gather_object(found, value)
    return found


def everything(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, those in no state dict too; all ranks together."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: full_tensor(tensor).detach().clone() for name, tensor in named}


# --- training ---------------------------------------------------------------------------------------------------------


def strategies(rank: Rank) -> dict[str, Any]:
    """Same losses and parameters, whatever spreads the network."""
    found: dict[str, Any] = {}
    for way, parallel in WAYS.items():
        for kind, model in (("resnet", None), ("vit", VIT)):
            run = Run(make_config(model, **parallel), rank)
            run.take(7)
            found[f"{way} {kind}"] = {"losses": run.losses, "said": run.said}
    return found


def resumes(rank: Rank) -> dict[str, Any]:
    """The state after nine steps, without a stop, with one after every second step, and continued by the other."""
    found: dict[str, Any] = {}
    # All that follows the optimizer, in both.
    train = {"ema_decay": 0.9, "clip_grad_norm": 0.5}
    ways = {way: make_config(train=train, **parallel) for way, parallel in WAYS.items()}
    for name, config in ways.items():
        run = Run(config, rank)
        found[name] = run.take(9)
        if name == "ddp":
            found["buckets"] = run.stepper._parallel.wrapped._get_ddp_logging_data()["rebuilt_bucket_sizes"]  # type: ignore[operator]
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
    for way, parallel in WAYS.items():
        run = Run(make_config(**parallel), rank)
        run.take(1)
        found[way] = gather(rank, [buffer.clone() for buffer in run.stepper.model.buffers()])
    return found


def conditional(rank: Rank) -> dict[str, Any]:
    """Networks that do not use each parameter in each pass."""
    found = {}
    for name in ("EvaluationHead", "DropsLayers"):
        run = Run(make_config(network(name)), rank)
        state = run.take(7)
        found[name] = {"losses": run.losses, "said": run.said, "values": gather(rank, state["model"])}
    return found


class Counted:
    """A stored tensor that counts the elements that are read of it."""

    def __init__(self, stored: StoredTensor) -> None:
        self._stored, self.shape, self.dtype, self.elements = stored, stored.shape, stored.dtype, 0

    def __getitem__(self, rows: Any) -> torch.Tensor:
        tensor = self._stored[rows]
        self.elements += tensor.numel()
        return tensor


def count_elements_read(run: Run, saved: Run) -> dict[str, int]:
    """Load a checkpoint; return the elements that this rank has read, by group."""
    uri, document = saved.saved
    with open_groups(uri, document) as groups:
        counted: Any = {group: {name: Counted(t) for name, t in tensors.items()} for group, tensors in groups.items()}
        run.stepper.load(counted, where=uri)
    return {group: sum(tensor.elements for tensor in tensors.values()) for group, tensors in counted.items()}


def sgd(rank: Rank) -> dict[str, Any]:
    """SGD's losses, the elements that a resumed rank reads, and the rows that the first rank saves of the momentum."""
    found = {}
    for options in ({}, {"momentum": 0.0}):
        for way, parallel in WAYS.items():
            train = {"optimizer": "sgd", "learning_rate": 0.05, "clip_grad_norm": 1.0, **options}
            config = make_config(train=train, **parallel)
            run, half = Run(config, rank), Run(config, rank)
            state = run.take(7)
            half.take(4)
            resumed = Run(config, rank, half)
            found[f"{way} {options}"] = {
                "elements read": gather(rank, count_elements_read(resumed, half)),
                "losses": run.losses,
                "state": state,
                "resumed": resumed.take(3),
                "rows": {
                    name: (first_row(tensor), len(tensor.to_local()), tuple(tensor.shape))
                    for name, tensor in run.stepper.state()["optimizer"].items()
                    if isinstance(tensor, DTensor)
                },
            }
    return found


def first_row(tensor: DTensor) -> int:
    return compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1][0]


def mixed_precision(rank: Rank) -> dict[str, Any]:
    """Losses in a lower precision, with both strategies, and the types that fsdp computes and keeps in."""
    found: dict[str, Any] = {}
    kinds = {"resnet": None, "vit": VIT, "Various": network("Various")}
    for precision, kind in (("bf16", "resnet"), ("bf16", "vit"), ("bf16", "Various"), ("fp16", "Various")):
        for way, parallel in WAYS.items():
            config = make_config(kinds[kind], train={"precision": precision, "ema_decay": 0.9}, **parallel)
            run, half = Run(config, rank), Run(config, rank)
            run.take(4)
            half.take(2)
            resumed = Run(config, rank, half)
            state = resumed.take(2)
            found[f"{precision} {kind} {way}"] = {
                "losses": run.losses,
                "resumed": resumed.losses,
                "inside": types_inside(run.stepper.model),
                "kept": {str(tensor.dtype) for name, tensor in [*state["model"].items(), *state["optimizer"].items()]},
                "values": gather(rank, everything(run.stepper.model)),
            }
    return found


def types_inside(model: nn.Module) -> dict[str, str]:
    """The types of parameters, buffers and logits while the network computes, in evaluation."""
    found = {}

    def look(module: nn.Module, arguments: object) -> None:
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            found[f"{names[module]}.{name}"] = str(tensor.dtype)

    names = {module: name for name, module in model.named_modules()}
    hooks = [module.register_forward_pre_hook(look) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        found["logits"] = str(model(torch.zeros(2, 3, SIZE, SIZE)).dtype)
    model.train()
    for hook in hooks:
        hook.remove()
    return found


def recomputed(rank: Rank) -> dict[str, Any]:
    """Losses of a network whose blocks are recomputed."""
    found = {}
    for mode in ("none", "whole"):
        run = Run(make_config(train={"activation_checkpointing": mode}, **FSDP), rank)
        run.step(4)
        found[mode] = {"losses": run.losses, "values": everything(run.stepper.model)}
    return found


def tied(rank: Rank) -> dict[str, Any]:
    """Losses of a network with blocks that share a weight, and one that runs twice."""
    found = {}
    for way, parallel in WAYS.items():
        run = Run(make_config(network("TiedBlocks"), {"learning_rate": 0.05}, **parallel), rank)
        run.step(7)
        found[way] = run.losses
    return found


def warm_ups(rank: Rank) -> dict[str, Any]:
    """Training after a warm-up for one size of slot, and for several."""
    found = {}
    for way, parallel in WAYS.items():
        for sizes in ((), (3, 1)):
            run = Run(make_config(**parallel), rank)
            for size in sizes:
                run.stepper.warm_up(size)
            found[f"{way} {len(sizes)}"] = run.take(3)
    return found


def freezes(rank: Rank) -> dict[str, Any]:
    """Three steps with a part frozen."""
    found: dict[str, Any] = {}
    resnet = {**small_config()["model"], "freeze": ["*resnet*"]}
    kinds = {"resnet": resnet, "vit": {**VIT, "freeze": ["*embeddings*", "*layer*.0.*", "*layer*.1.*"]}}
    for name, kind, optimizer in (("ddp", "vit", "sgd"), ("fsdp", "resnet", "sgd"), ("fsdp", "vit", "adamw")):
        train = {"ema_decay": 0.9, "learning_rate": 0.01, "optimizer": optimizer}
        run = Run(make_config(kinds[kind], train=train, **WAYS[name]), rank)
        found[f"{name} {kind}"] = {"begin": everything(run.stepper.model), "frozen": run.take(3)}
    return found


# --- the start --------------------------------------------------------------------------------------------------------


def first_weights(rank: Rank) -> dict[str, Any]:
    """The weights that training begins with are the first rank's."""
    steppers = {way: make_stepper(rank, network("NotTheSame"), **parallel) for way, parallel in WAYS.items()}
    return {way: stepper.full_model_state() for way, stepper in steppers.items()}


def builds(rank: Rank) -> dict[str, Any]:
    """The values that training begins with."""
    found: dict[str, Any] = {}
    for name in ("resnet", "vit", "Plain", "Various", "lazy"):
        model = {"resnet": None, "vit": VIT}.get(name, network(name))
        steppers = {way: make_stepper(rank, model, **parallel) for way, parallel in WAYS.items()}
        found[name] = {
            "values": {way: gather(rank, everything(stepper.model)) for way, stepper in steppers.items()},
            "names": {way: list(stepper.model.state_dict()) for way, stepper in steppers.items()},
        }
    return found


def failures(rank: Rank) -> dict[str, list[str]]:
    """What each rank raises."""
    found = {}
    for name, model in (("fails", "Fails"), ("shapes", "other_shapes"), ("drops, fsdp", "DropsLayers")):
        try:
            make_stepper(rank, network(model), **FSDP)
            said = "nothing"
        except UserError as error:
            said = f"{type(error).__name__}: {error}"
        found[name] = gather(rank, said)
    return found


def refusals(rank: Rank) -> dict[str, str]:
    """What cannot work here, and what is said about it."""
    try:
        make_stepper(rank, sync_batch_norm=True)
    except ConfigError as error:
        return {"sync_batch_norm": str(error)}
    return {"sync_batch_norm": "nothing"}


# --- checkpoints ------------------------------------------------------------------------------------------------------


def saves(rank: Rank) -> dict[str, Any]:
    """Two checkpoints of sharded tensors, the second of which only the first rank can write, and the next attempt."""
    group = dist.group.WORLD
    assert group is not None
    mesh, said = DeviceMesh.from_group(group, "cpu"), list[str]()

    def make_manager() -> CheckpointManager:
        uri = storage.normalise(runs.place / "saves")
        rules = CheckpointSection()
        return CheckpointManager(uri, attempt="a", rules=rules, rank=rank, sharded=True, log=said.append)

    def groups(step: int) -> dict[str, dict[str, torch.Tensor]]:
        # Of the second and the third tensor not every rank, or none, has a row.
        wholes = {"w": torch.arange(10.0).reshape(5, 2) * step, "one row": torch.ones(1, 3), "none": torch.ones(0, 3)}
        sharded = {name: distribute_tensor(whole, mesh, [Shard(0)]) for name, whole in wholes.items()}
        return {
            "model": {**sharded, "buffer": torch.tensor([step * 10.0 + rank.rank])},
            "scaler": {"scale": torch.tensor(float(step))},
        }

    def refuse(*arguments: object) -> str:
        raise TryAgain(f"rank {rank.rank} has no bucket")

    manager = make_manager()
    manager.resume()
    assert manager.save(manifest(1), groups(1))
    manager.wait()
    with pytest.MonkeyPatch.context() as patch:
        if not rank.is_first:
            patch.setattr(storage, "publish_stream", refuse)
        assert manager.save(manifest(2), groups(2), required=True)
        with suppress(TryAgain):
            manager.wait()
    dist.barrier()
    again = make_manager()
    resumed = again.resume()
    assert resumed.manifest is not None
    return {
        "said": said,
        "steps": gather(rank, (resumed.manifest.step, again.attempt_number)),
        "files": [file.name for file in resumed.manifest.files],
        "folders": [name for name in storage.list_names(again.folder_uri) if name.startswith("step")],
        "read": load_groups(resumed.uri, resumed.manifest),
    }


# --- evaluation -------------------------------------------------------------------------------------------------------


def outcomes(rank: Rank) -> dict[str, Any]:
    """An evaluation of five batches, the last of them short, by a sharded and a whole network."""
    found: dict[str, Any] = {}
    count = 4 * EVALUATION_BATCH + 7
    random = np.random.default_rng(11)
    images = torch.from_numpy(random.normal(size=(count, 3, SIZE, SIZE)).astype(np.float32))
    labels = torch.from_numpy(random.integers(0, CLASSES, count))

    def batches() -> Iterator[EvaluationBatch]:
        for start in range(rank.rank * EVALUATION_BATCH, count, rank.ranks * EVALUATION_BATCH):
            end = min(start + EVALUATION_BATCH, count)
            origins = tuple(Origin("test.tar", str(place), None) for place in range(start, end))
            tensors = {"images": images[start:end], "label": labels[start:end]}
            yield EvaluationBatch(tensors, range(start, end), origins)

    for way, parallel in WAYS.items():
        run = Run(make_config(**parallel), rank)
        rounds, task = -(-count // (EVALUATION_BATCH * rank.ranks)), task_of(run.config, CLASSES)
        collector = OutcomeCollector(task, run.config)
        numerics = Numerics.of(run.config.train)
        evaluation = evaluate(
            run.stepper.model,
            task,
            batches(),
            rounds,
            rank.device,
            config=run.config,
            numerics=numerics,
            outcomes=collector,
        )
        assert evaluation is not None
        result = collector.gather(rank)
        details = {} if result is None else task.report(result.columns, evaluation.reduced)
        # Training goes on after an evaluation, in the same parameters as the optimizer's.
        run.take(2)
        found[way] = {
            "evaluation": replace(evaluation, reduced={}),
            "confusion": (details.get("confusion"), details.get("confusion_left_out")),
            "classes": details.get("classes"),
            "worst": details.get("worst"),
            "counts": None if result is None else [result.columns[name].tolist() for name in ("label", "answer")],
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
    batch = EvaluationBatch(task.example(EVALUATION_BATCH), range(EVALUATION_BATCH))
    for name, wanted in (("stopped", StopCause.SIGTERM), ("whole", StopCause.NONE)):
        stop = StopRequest()
        if not rank.is_first:
            stop.request(wanted)
        vote, passes = Vote(stop, rank, timeout_s=60), 0
        rounds = 6
        own = rounds if rank.is_first else rounds - 1
        evaluation = evaluate(
            run.stepper.model,
            task,
            repeat(batch, own),
            rounds,
            rank.device,
            config=run.config,
            numerics=Numerics.of(run.config.train),
            rounds=vote.rounds_of,
        )
        passed = gather(rank, passes)
        found[name] = {"passes": passed, "rounds": rounds, "samples": evaluation.samples if evaluation else 0}
    return found


# --- on a GPU ---------------------------------------------------------------------------------------------------------


def on_gpu(rank: Rank) -> dict[str, Any]:
    """What needs a GPU: SyncBatchNorm, and the strategies on CUDA tensors."""
    found: dict[str, Any] = {}
    ways: dict[str, dict[str, Any]] = {"ddp": {}}
    if dist.get_backend() == "nccl" or "nccl" in str(dist.get_backend_config()):
        ways |= {"fsdp": FSDP, "sync": {"sync_batch_norm": True}}
    for name, options in ways.items():
        run = Run(make_config(**options), rank)
        state = run.take(5)
        again = Run(make_config(**options), rank, run)
        found[name] = {"losses": run.losses, "model": state["model"], "reloaded": again.stepper.full_model_state()}
    return found


SCENARIOS: dict[str, Callable[[Rank], Any]] = {
    scenario.__name__: scenario
    for scenario in (
        strategies,
        resumes,
        buffers,
        conditional,
        sgd,
        mixed_precision,
        recomputed,
        tied,
        warm_ups,
        freezes,
        first_weights,
        builds,
        failures,
        refusals,
        saves,
        outcomes,
        stopped_evaluation,
        on_gpu,
    )
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
    # The networks have 6,000 parameters, and several buckets are the point.
    spread.BUCKET_MB = 0.005
    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        torch.use_deterministic_algorithms(True)
    on_one_gpu = os.environ.get("RANKS_ON_ONE_GPU") == "1"
    with gloo_on_one_gpu() if on_one_gpu else process_group(setup_timeout_s=120, timeout_s=120) as rank:
        for name in names:
            found = SCENARIOS[name](rank)
            if rank.is_first:
                torch.save(found, Path(folder) / f"{name}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
