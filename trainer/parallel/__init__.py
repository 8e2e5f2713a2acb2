"""How a network is spread over ranks: a copy each (DDP, ddp.py) or a part each (FSDP2, fsdp.py).

Both average gradients over ranks, at the last slot of a step. Buffers, such as BatchNorm's running statistics, are
whole on every rank; by rule the first rank's count.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from contracts.config import ParallelSection
from trainer.launch.device import DeviceKind, check_spread
from trainer.parallel.ddp import Replicated
from trainer.parallel.fsdp import Sharded
from trainer.parallel.fsdp import release_gathered as release_gathered
from trainer.parallel.process_group import Rank
from trainer.parallel.rows import copy_tensor as copy_tensor
from trainer.parallel.rows import full_tensor as full_tensor
from trainer.parallel.rows import load_state as load_state
from trainer.parallel.rows import local_part as local_part
from trainer.parallel.rows import local_rows as local_rows
from trainer.parallel.rows import local_tensor as local_tensor
from trainer.parallel.rows import wanted_rows as wanted_rows

ParallelModel = Replicated | Sharded


def runs_in_lockstep(section: ParallelSection) -> bool:
    """Whether a forward pass talks to the other ranks, so that all must run equally many in a step."""
    return section.strategy == "fsdp" or section.sync_batch_norm


def check_parallel(section: ParallelSection, rank: Rank) -> None:
    """Refuse what cannot work on these ranks, as trainer.launch.device.check_spread does."""
    check_spread(section, DeviceKind("GPU" if rank.device.type == "cuda" else ""))


def distribute(
    model: nn.Module,
    gathered_blocks: list[str],
    section: ParallelSection,
    rank: Rank,
    log: Callable[[str], None],
    *,
    dtype: torch.dtype | None,
    find_unused: bool = False,
) -> ParallelModel:
    """Spread a network over all ranks; every rank must call this.

    Args:
        model: For ddp the same on each rank's device. For fsdp on the CPU, or on the meta device of all ranks but the
            first: parts are moved, since the whole may not fit on the device.
        gathered_blocks: For fsdp the names of the blocks that are gathered as one.
        section: How.
        rank: This process.
        log: Says what was chosen.
        dtype: Type that forward and backward passes compute in; None: that of the parameters.
        find_unused: For ddp whether a pass may leave parameters without a gradient, which is looked for in each step.
    """
    if section.sync_batch_norm:
        if not any(isinstance(module, _BatchNorm) for module in model.modules()):
            log("warning: parallel.sync_batch_norm has no effect: the model has no BatchNorm")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    if section.strategy == "ddp":
        return Replicated(model, rank, bucket_mb=section.bucket_mb, find_unused_parameters=find_unused)
    return Sharded(model, gathered_blocks, rank, log, dtype=dtype)


def describe_parallel(section: ParallelSection, ranks: int, precision: str) -> str:
    """Return what decides the order of sums over ranks, and which parameters are rounded, to be recorded."""
    if section.strategy == "ddp":
        return f"ddp, buckets of {section.bucket_mb:g} MiB"
    rounded = "" if precision == "fp32" else f", gathered in {precision}"
    return f"fsdp over {ranks} ranks{rounded}"
