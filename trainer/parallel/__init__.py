"""How a network is spread over ranks: a copy each (DDP, replicated.py) or a part each (FSDP2, sharded.py).

Both average gradients over ranks, at the last slot of a step. Buffers, such as BatchNorm's running statistics, are
whole on every rank; by rule the first rank's count.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from contracts.config import ParallelSection
from contracts.errors import ConfigError
from trainer.parallel.ddp import Replicated
from trainer.parallel.fsdp import Sharded
from trainer.parallel.fsdp import copy_full_tensor as copy_full_tensor
from trainer.parallel.fsdp import full_tensor as full_tensor
from trainer.parallel.fsdp import load_full_state as load_full_state
from trainer.parallel.fsdp import local_part as local_part
from trainer.parallel.fsdp import local_rows as local_rows
from trainer.parallel.fsdp import release_gathered as release_gathered
from trainer.parallel.process_group import Rank

ParallelModel = Replicated | Sharded


def runs_in_lockstep(section: ParallelSection) -> bool:
    """Whether a forward pass talks to the other ranks, so that all must run equally many in a step."""
    return section.strategy == "fsdp" or section.sync_batch_norm


def check_parallel(section: ParallelSection, rank: Rank, log: Callable[[str], None]) -> None:
    """Refuse what cannot work on these ranks; say what has no effect.

    Raises:
        ConfigError: parallel.shard_ranks does not divide the ranks, or something needs a GPU.
    """
    if section.sync_batch_norm and rank.device.type != "cuda":
        raise _needs_gpu("sync_batch_norm", "SyncBatchNorm has no implementation for the CPU")
    if section.strategy == "ddp":
        _warn_if_set(section, ("shard_ranks", "cpu_offload"), log)
        return
    _warn_if_set(section, ("bucket_mb",), log)
    if section.cpu_offload and rank.device.type != "cuda":
        raise _needs_gpu("cpu_offload", "parameters are in the CPU's memory already")
    if section.shard_ranks is not None and rank.ranks % section.shard_ranks:
        divisors = [number for number in range(1, rank.ranks + 1) if rank.ranks % number == 0]
        raise ConfigError(
            f"parallel.shard_ranks {section.shard_ranks} does not divide {rank.ranks} ranks",
            allowed=f"for {rank.ranks} ranks one of {', '.join(map(str, divisors))}",
            todo="set parallel.shard_ranks to the GPUs of a machine, or leave it out to shard over all ranks",
        )


def distribute(
    model: nn.Module,
    section: ParallelSection,
    rank: Rank,
    images: torch.Tensor,
    log: Callable[[str], None],
    *,
    setup_timeout_s: float,
) -> ParallelModel:
    """Spread a network over all ranks; every rank must call this with the same network.

    Args:
        model: On the CPU for fsdp, which moves a block at a time: the whole may not fit on the device.
        section: How.
        rank: This process.
        images: [B, 3, H, W] float32 on the model's device: what a forward pass takes.
        log: Says what was chosen.
        setup_timeout_s: How long ranks wait for each other, until trainer.parallel.process_group.limit_collectives.
    """
    if section.sync_batch_norm:
        if not any(isinstance(module, _BatchNorm) for module in model.modules()):
            log("warning: parallel.sync_batch_norm has no effect: the model has no BatchNorm")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    if section.strategy == "ddp":
        return Replicated(model.to(rank.device), rank, bucket_mb=section.bucket_mb)
    return Sharded(
        model,
        rank,
        images,
        log,
        shard_ranks=section.shard_ranks or rank.ranks,
        cpu_offload=section.cpu_offload,
        setup_timeout_s=setup_timeout_s,
    )


def describe_parallel(section: ParallelSection, ranks: int) -> str:
    """Return what decides the order of sums over ranks, to be recorded."""
    if section.strategy == "ddp":
        return f"ddp, buckets of {section.bucket_mb:g} MiB"
    return f"fsdp over {section.shard_ranks or ranks} ranks"


def _warn_if_set(section: ParallelSection, names: tuple[str, ...], log: Callable[[str], None]) -> None:
    for name in names:
        if getattr(section, name) != type(section).model_fields[name].default:
            log(f"warning: parallel.{name} has no effect with parallel.strategy={section.strategy}")


def _needs_gpu(name: str, reason: str) -> ConfigError:
    return ConfigError(
        f"parallel.{name} is on, but there is no GPU here: {reason}",
        allowed=f"parallel.{name}=false on a machine without a GPU",
        todo=f"set parallel.{name}=false, or train on machines with GPUs",
    )
