"""Scenarios of on_ranks.py about how a network is built, sent to ranks and refused, and about what is not sharded."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from contracts.errors import UserError
from tests.conftest import small_config
from tests.trainer.parallel.runs import CLASSES, SIZE, VIT, Run, make_config
from tests.trainer.tasks.for_tests import task_of
from trainer.checkpoint.loading import load_parts
from trainer.checkpoint.tensors import Group, Rows
from trainer.model.network import make_network
from trainer.model.precision import Numerics
from trainer.parallel.process_group import Rank
from trainer.step import Stepper

FSDP = {"strategy": "fsdp"}


def network(name: str) -> dict[str, Any]:
    return {"architecture": f"tests.trainer.parallel.networks:{name}", "arguments": {}}


def gather(rank: Rank, value: Any) -> list[Any]:
    found: list[Any] = [None] * rank.ranks
    dist.all_gather_object(found, value)
    return found


def everything(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, those in no state dict too; all ranks together."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: (t.full_tensor() if isinstance(t, DTensor) else t).detach().clone() for name, t in named}


def builds(rank: Rank) -> dict[str, Any]:
    """Where each rank has built a network, and the values that training begins with."""
    found: dict[str, Any] = {}
    names = ("Plain", "Various", "lazy", "ReadsValues", "HoldsTensor")
    for name, model in {"resnet": None, "vit": VIT, **{name: network(name) for name in names}}.items():
        config = make_config(model, **FSDP)
        said: list[str] = []
        built = make_network(config, task_of(config, CLASSES), rank, Numerics.of(config.train), said.append).module
        ways = {"ddp": make_config(model), "fsdp": config}
        steppers = {
            way: Stepper(one, task_of(one, CLASSES), rank, Numerics.of(one.train), said.append)
            for way, one in ways.items()
        }
        found[name] = {
            "on meta": gather(rank, all(tensor.is_meta for tensor in [*built.parameters(), *built.buffers()])),
            "said": said,
            "values": {way: gather(rank, everything(stepper.model)) for way, stepper in steppers.items()},
            "names": {way: list(stepper.model.state_dict()) for way, stepper in steppers.items()},
        }
    return found


def failures(rank: Rank) -> dict[str, list[str]]:
    """What each rank raises."""
    found = {}
    for name, model, parallel in (
        ("fails", network("Fails"), FSDP),
        ("cache", network("FillsCache"), FSDP),
        ("shapes", network("other_shapes"), FSDP),
        ("drops, fsdp", network("DropsLayers"), FSDP),
    ):
        config = make_config(model, **parallel)
        try:
            Stepper(config, task_of(config, CLASSES), rank, Numerics.of(config.train), lambda message: None)
            said = "nothing"
        except UserError as error:
            said = f"{type(error).__name__}: {error}"
        found[name] = gather(rank, said)
    return found


def conditional(rank: Rank) -> dict[str, Any]:
    """Networks that do not use each parameter in each pass."""
    found = {}
    for name, parallel in (("EvaluationHead", {}), ("DropsLayers", {})):
        run = Run(make_config(network(name), **parallel), rank)
        state = run.take(7)
        found[name] = {"losses": run.losses, "said": run.said, "values": gather(rank, state["model"])}
    return found


def count_elements(group: Group) -> int:
    return sum((part.tensor if isinstance(part, Rows) else part).numel() for part in group.values())


def sgd(rank: Rank) -> dict[str, Any]:
    """SGD's losses, and what a checkpoint says of the momentum."""
    found = {}
    for options in ({}, {"momentum": 0.0}):
        for way, parallel in (("ddp", {}), ("fsdp", FSDP)):
            config = make_config(
                train={"optimizer": "sgd", "learning_rate": 0.05, "clip_grad_norm": 1.0, **options}, **parallel
            )
            run = Run(config, rank)
            state = run.take(7)
            half = Run(config, rank)
            half.take(4)
            resumed = Run(config, rank, half)
            parts = load_parts(*half.saved, resumed.stepper.wanted_rows)
            found[f"{way} {options}"] = {
                "elements read": gather(rank, {group: count_elements(part) for group, part in parts.items()}),
                "losses": run.losses,
                "state": state,
                "resumed": resumed.take(3),
                "rows": {
                    name: (part.offset, len(part.tensor), part.global_shape)
                    for name, part in run.stepper.local_state()["optimizer"].items()
                    if isinstance(part, Rows)
                },
            }
    return found


def mixed_precision(rank: Rank) -> dict[str, Any]:
    """Losses in a lower precision, with both strategies, and the types that fsdp computes and keeps in."""
    found: dict[str, Any] = {}
    kinds = {"resnet": None, "vit": VIT, "Various": network("Various")}
    for precision, kind in (("bf16", "resnet"), ("bf16", "vit"), ("bf16", "Various"), ("fp16", "Various")):
        for way, parallel in (("ddp", {}), ("fsdp", FSDP)):
            train = {"precision": precision, "ema_decay": 0.9}
            config = make_config(kinds[kind], train=train, **parallel)
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


def recomputed(rank: Rank) -> dict[str, Any]:
    """Losses of a network whose blocks are recomputed, in which smaller ones would be gathered."""
    found = {}
    for mode in ("none", "whole"):
        run = Run(make_config(train={"activation_checkpointing": mode}, **FSDP), rank)
        run.step(4)
        found[mode] = {"losses": run.losses, "values": everything(run.stepper.model)}
    return found


def warm_ups(rank: Rank) -> dict[str, Any]:
    """Training after a warm-up for one size of slot, and for several."""
    found = {}
    for way, parallel in (("ddp", {"bucket_mb": 0.005}), ("fsdp", FSDP)):
        for sizes in ((), (3, 1)):
            run = Run(make_config(**parallel), rank)
            for size in sizes:
                run.stepper.warm_up(size)
            found[f"{way} {len(sizes)}"] = run.take(3)
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


def freezes(rank: Rank) -> dict[str, Any]:
    """Three steps with a part frozen."""
    found: dict[str, Any] = {}
    resnet = {**small_config()["model"], "freeze": ["*resnet*"]}
    kinds = {"resnet": resnet, "vit": {**VIT, "freeze": ["*embeddings*", "*layer*.0.*", "*layer*.1.*"]}}
    ways = {"ddp": {"bucket_mb": 0.005}, "fsdp": FSDP}
    for name, kind, optimizer in (("ddp", "vit", "sgd"), ("fsdp", "resnet", "sgd"), ("fsdp", "vit", "adamw")):
        train = {"ema_decay": 0.9, "learning_rate": 0.01, "optimizer": optimizer}
        run = Run(make_config(kinds[kind], train=train, **ways[name]), rank)
        found[f"{name} {kind}"] = {"begin": everything(run.stepper.model), "frozen": run.take(3)}
    return found


SCENARIOS = {
    "freezes": freezes,
    "builds": builds,
    "failures": failures,
    "conditional": conditional,
    "sgd": sgd,
    "mixed_precision": mixed_precision,
    "recomputed": recomputed,
    "warm_ups": warm_ups,
}
