"""The process group of a training: rank and world size from torchrun, a store that survives restarts, time-outs.

Nothing but the entry of a rank (trainer/worker.py) reads torchrun's environment beside it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from contracts.errors import ConfigError

Result = TypeVar("Result")

# Between two signs of life of a rank that the others wait for: well below the shortest time-out that can be configured.
_SIGN_EVERY_S = 1.0
# For aborting what a failed rank has begun on its GPU; the launcher kills what is left of a generation 5 s after its
# first rank has ended (trainer/launch/generations.py).
ABORT_LIMIT_S = 3.0


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

    On GPUs the group has two backends: NCCL, whose communicator is made at once (`device_id`), and gloo for tensors in
    the host's memory. After an error `abort_process_group` ends it.

    Args:
        generation: Number of this start of the job's ranks, the same on all machines.
        setup_timeout_s: How long ranks wait for each other, until `limit_collectives`.

    Raises:
        ConfigError: There is no GPU for this rank, on a machine with GPUs.
    """
    rank, local_rank, ranks = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    timeout = timedelta(seconds=setup_timeout_s)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = choose_device(local_rank, gpus=gpus)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    # With device_id the communicator is made here and groups of GPUs are split from it; later groups of gloo are not
    # touched by it (_new_process_group_helper in torch/distributed/distributed_c10d.py of 2.11 and 2.13).
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=_store(rank, generation, timeout),
        rank=rank,
        world_size=ranks,
        timeout=timeout,
        device_id=device if on_gpu else None,
    )
    yield Rank(rank, local_rank, ranks, device)
    # Only on success: a peer may be dead otherwise, and leaving would wait for it.
    dist.barrier()
    dist.destroy_process_group()


def choose_device(local_rank: int, *, gpus: int) -> torch.device:
    """Return the device of a rank: the GPU of its number on this machine, without GPUs the CPU.

    Args:
        local_rank: Among those of its machine.
        gpus: That this process sees.

    Raises:
        ConfigError: The machine has GPUs, and none for this rank.
    """
    if gpus == 0:
        return torch.device("cpu")
    if local_rank >= gpus:
        raise ConfigError(
            f"rank {local_rank} of this machine, which has {gpus} GPUs",
            allowed="one rank per GPU",
            todo="lower resources.ranks, or leave it at auto",
        )
    return torch.device("cuda", local_rank)


def abort_process_group(limit_s: float = ABORT_LIMIT_S) -> bool:
    """End the group of a rank that failed, without its peers; return whether nothing of it is left.

    NCCL's kernels may wait on the GPU for a peer that never comes: an interpreter that shuts down meanwhile hangs or
    crashes. Aborting ends them (ncclCommAbort of all groups at a time, by torch's `_abort_process_group`; there is no
    public name for it: https://github.com/pytorch/pytorch/issues/119797). gloo's connections end with the process. It
    may itself wait for a GPU that hangs, hence the limit.

    Args:
        limit_s: Seconds after which it is given up: the process must then end without the interpreter's shutdown.
    """
    if not dist.is_initialized() or dist.get_backend() == "gloo":
        return True

    def abort() -> None:
        # Whatever it says: this rank ends, and why is said already.
        with suppress(RuntimeError, ValueError, AssertionError):
            distributed_c10d._abort_process_group()

    thread = threading.Thread(target=abort, name="abort of the process group", daemon=True)
    thread.start()
    thread.join(limit_s)
    return not thread.is_alive()


def on_first_rank(
    rank: int, ranks: int, work: Callable[[Callable[[], None]], Result], alive: Callable[[], None]
) -> Result:
    """Do something on the first rank and return its result on all; the others may wait for as long as it gets on.

    Args:
        rank: This rank.
        ranks: Number of ranks; with one nothing is communicated.
        work: Given what it must call often, as a sign of life.
        alive: Called on every rank with each sign of life.
    """
    if ranks == 1:
        return work(alive)
    message: list[tuple[Result] | None] = [None]
    if rank > 0:
        while message[0] is None:
            dist.broadcast_object_list(message, src=0)
            alive()
        return message[0][0]
    told_at = time.monotonic()

    def get_on() -> None:
        nonlocal told_at
        alive()
        if time.monotonic() - told_at >= _SIGN_EVERY_S:
            told_at = time.monotonic()
            dist.broadcast_object_list([None], src=0)

    result = work(get_on)
    dist.broadcast_object_list([(result,)], src=0)
    return result


def limit_collectives(timeout_s: float, *, besides: dist.ProcessGroup | None = None) -> None:
    """Set how long a rank waits for its peers in a collective from now on; all ranks call it.

    Args:
        timeout_s: Seconds.
        besides: A group that keeps its own.
    """
    # torch has no public name for either; without it the longest wait of set-up would hold for every step. There are
    # more groups than one when a network is sharded in copies. _set_pg_timeout reaches both backends of a group
    # (torch/distributed/distributed_c10d.py of 2.11 and 2.13).
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
