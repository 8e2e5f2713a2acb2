"""The process group of a training: rank and world size from torchrun, a store that survives restarts, time-outs.

Nothing but the entry of a rank (trainer/worker.py) reads torchrun's environment beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from contracts.errors import ConfigError


@dataclass(frozen=True)
class Rank:
    """This process among its peers."""

    rank: int
    local_rank: int
    ranks: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this rank writes what one process writes."""
        return self.rank == 0


@contextmanager
def process_group(generation: int, *, setup_timeout_s: float) -> Iterator[Rank]:
    """Join the group that torchrun started; leave it at the end of the block when no error passes through.

    Args:
        generation: Number of this start of the job's ranks, the same on all machines.
        setup_timeout_s: How long ranks wait for each other, until `limit_collectives`.

    Raises:
        ConfigError: There is no GPU for this rank, on a machine with GPUs.
    """
    rank, local_rank, ranks = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    timeout = timedelta(seconds=setup_timeout_s)
    cuda = torch.cuda.is_available()
    if cuda and local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"rank {local_rank} of this machine, which has {torch.cuda.device_count()} GPUs",
            allowed="one rank per GPU",
            todo="lower resources.ranks, or leave it at auto",
        )
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        store=_store(rank, generation, timeout),
        rank=rank,
        world_size=ranks,
        timeout=timeout,
    )
    yield Rank(rank, local_rank, ranks, device)
    # Only on success: a peer may be dead otherwise, and leaving would wait for it.
    dist.barrier()
    dist.destroy_process_group()


def limit_collectives(timeout_s: float, *, besides: dist.ProcessGroup | None = None) -> None:
    """Set how long a rank waits for its peers in a collective from now on; all ranks call it.

    Args:
        timeout_s: Seconds.
        besides: A group that keeps its own.
    """
    # torch has no public name for either; without it the longest wait of set-up would hold for every step. There are
    # more groups than one when a network is sharded in copies.
    for group in distributed_c10d._world.pg_map:
        if group is not besides:
            distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)


def _store(rank: int, generation: int, timeout: timedelta) -> Any:
    """Return torchrun's store under a prefix of this generation.

    Where a store outlives ranks, new ones would read the addresses of the dead ones and hang in gloo's handshake (seen
    in 7 of 10 trials with torch 2.13); the prefix hides them. The launchers have agreed on the generation: a count of
    torchrun's own differs between machines when one of them has started later.
    """
    served_by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=rank == 0 and not served_by_agent,
        timeout=timeout,
    )
    return dist.PrefixStore(f"generation{generation}/", store)  # type: ignore[attr-defined]


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Add a tensor over all ranks, in place."""
    dist.all_reduce(values)
    return values
