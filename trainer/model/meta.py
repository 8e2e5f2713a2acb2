"""A network that only the first rank holds: the others build it on the meta device, where tensors have no memory.

The first rank builds and examines it as every rank does with ddp, so its weights are the same bit for bit; it sends
them later (trainer/parallel/fsdp.py). A network that cannot be built on the meta device is built whole on every rank.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from contracts.config import RunConfig
from contracts.errors import ModelError, UserError
from trainer.model.build import complete_model, construct_model, example_inputs
from trainer.parallel.process_group import Rank
from trainer.tasks.load import network_name
from trainer.tasks.protocol import Task

Found = TypeVar("Found")
# Kind, name, name of the first holder (of tied parameters), shape, type, whether it asks for a gradient.
Described = tuple[str, str, str, tuple[int, ...], torch.dtype, bool]


@dataclass(frozen=True)
class _FirstRank:
    """What the first rank says of its network."""

    found: Any
    tensors: list[Described]
    imported: list[str]
    """Modules that building it has imported, in their order."""


def build_on_first_rank(
    build: Callable[[], nn.Module],
    examine: Callable[[nn.Module], Found],
    config: RunConfig,
    task: Task,
    rank: Rank,
    log: Callable[[str], None],
) -> tuple[nn.Module, Found]:
    """Return a network, whole on the first rank's CPU and on the other ones' meta device, and what was found about it.

    All ranks must call this. What cannot be built on the meta device is on the CPU of the other ranks too, and the log
    says why; their weights do not count.

    Args:
        build: Builds it whole, from the seed.
        examine: Looks at a whole network; on the first rank alone.
        config: The configuration.
        task: The task.
        rank: This process among its peers.
        log: Is told when every rank had to build the network whole.

    Raises:
        UserError: What building or examining raised on the first rank, on all of them.
        ModelError: It cannot be spread, since ranks build different ones.
    """
    module, first = _build_and_examine(build, examine) if rank.is_first else (None, None)
    answers = [first]
    if rank.ranks > 1:
        dist.broadcast_object_list(answers, src=0)
    answer = answers[0]
    if isinstance(answer, UserError):
        raise answer
    assert answer is not None
    reason: str | UserError = ""
    if module is None:
        module, reason = _build_for_values(build, config, task, answer)
    reasons = [reason] * rank.ranks
    if rank.ranks > 1:
        dist.all_gather_object(reasons, reason)
    for said in reasons:
        if isinstance(said, UserError):
            raise said
    if given := [said for said in reasons if said]:
        log(f"every rank builds the whole network, since it cannot be built on the meta device: {given[0]}")
    assert module is not None
    return module, answer.found


def describe_tensors(module: nn.Module) -> list[Described]:
    """Return what two builds of one network must agree on for one to take the other's values."""
    described = []
    kinds = {
        "parameter": module.named_parameters(remove_duplicate=False),
        "buffer": module.named_buffers(remove_duplicate=False),
    }
    for kind, named in kinds.items():
        holders: dict[int, str] = {}
        for name, tensor in named:
            holder = holders.setdefault(id(tensor), name)
            described.append((kind, name, holder, tuple(tensor.shape), tensor.dtype, tensor.requires_grad))
    return described


def _build_and_examine(
    build: Callable[[], nn.Module], examine: Callable[[nn.Module], Any]
) -> tuple[nn.Module | None, _FirstRank | UserError]:
    before = set(sys.modules)
    try:
        module = build()
        found = examine(module)
    except UserError as error:
        # To be raised by all: the others wait for an answer.
        return None, error
    module.to("cpu")
    return module, _FirstRank(found, describe_tensors(module), [name for name in sys.modules if name not in before])


def _build_for_values(
    build: Callable[[], nn.Module], config: RunConfig, task: Task, first: _FirstRank
) -> tuple[nn.Module | None, str | UserError]:
    """Return a network to take the first rank's values: on the meta device, or whole, and why; or what forbids both."""
    module, reason = _build_on_meta(config, task, first)
    if module is not None or isinstance(reason, UserError):
        return module, reason
    try:
        module = build().to("cpu")
    except UserError as error:
        return None, error
    different = sorted({one[1] for one in set(describe_tensors(module)) ^ set(first.tensors)})
    if different:
        return None, ModelError(
            f"{network_name(config)} is built differently on different ranks: {', '.join(different[:5])}",
            allowed="a network whose parameters and buffers have the same names, shapes and types in every process",
            todo="let nothing but model.arguments decide what the network is made of",
        )
    return module, reason


def _build_on_meta(config: RunConfig, task: Task, first: _FirstRank) -> tuple[nn.Module | None, str | UserError]:
    """Return the network on the meta device; where that cannot be, None and why."""
    before = {}
    try:
        # What a module makes when it is imported must have memory: imports come first.
        for name in first.imported:
            # Whatever it raises here: the network is built whole then, where it raises again if it matters.
            with suppress(ImportError, RuntimeError, OSError, AttributeError, ValueError, TypeError, NameError):
                importlib.import_module(name)
        before = _live_tensors()
        with torch.device("meta"):
            module = construct_model(task, config)
            complete_model(module, example_inputs(task, 2, torch.device("meta")), name=network_name(config))
    except ModelError as error:
        reason = error.given
    else:
        own = {id(tensor) for tensor in [*module.parameters(), *module.buffers()]}
        # Others, such as a constant in an attribute, would never get values: linear() with a weight on the meta device
        # returns zeros without a word (torch 2.13).
        others = len(_live_tensors().keys() - before.keys() - own)
        if describe_tensors(module) == first.tensors and not others:
            return module, ""
        reason = f"{others} of its tensors are neither parameters nor buffers"
        if not others:
            reason = "its tensors are not those of the first rank's network"
        del module
    if any(tensor.is_meta for key, tensor in _live_tensors().items() if key not in before):
        return None, ModelError(
            f"{network_name(config)} keeps tensors outside of its network, in a cache or a global variable, which were "
            "made on the meta device, without values",
            allowed="with parallel.strategy=fsdp tensors that are parameters or buffers, or are made at import",
            todo="register them as buffers, or set parallel.strategy=ddp",
        )
    return None, reason


def _live_tensors() -> dict[int, torch.Tensor]:
    gc.collect()
    # By type: isinstance would ask proxies of other libraries for their class.
    return {id(found): found for found in gc.get_objects() if issubclass(type(found), torch.Tensor)}
