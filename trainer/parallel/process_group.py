"""The process group of a training: rank, world size and store as the launcher set them, time-outs, abort."""

from __future__ import annotations

import gc
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

from trainer.launch.launcher import STORE_VARIABLE

Result = TypeVar("Result")

# Seconds between two signs of life of a rank that the others wait for: well below the shortest time-out.
_SIGN_EVERY_S = 1.0
# For aborting what a failed rank has begun on its GPU; the launcher kills what is left of a start 5 s after its
# first rank has ended (trainer/launch/launcher.py).
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
def process_group(*, setup_timeout_s: float) -> Iterator[Rank]:
    """Join the group of the launcher's ranks; leave it at the end of the block when no error passes through.

    On GPUs the group has two backends: NCCL, whose communicator is made at once (`device_id`), and gloo for tensors in
    the host's memory. After an error `abort_process_group` ends it. `setup_timeout_s` holds until `limit_collectives`.
    """
    rank, local_rank, ranks = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    timeout = timedelta(seconds=setup_timeout_s)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    # With device_id the communicator is made here and groups of GPUs are split from it; later groups of gloo are not
    # touched by it (_new_process_group_helper in torch/distributed/distributed_c10d.py of 2.11 and 2.13).
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=_store(rank, timeout),
        rank=rank,
        world_size=ranks,
        timeout=timeout,
        device_id=device if on_gpu else None,
    )
    yield Rank(rank, local_rank, ranks, device)
    # Only on success: a peer may be dead otherwise, and leaving would wait for it.
    dist.barrier()
    # A DDP module that outlives the group drops gloo's last reference with the GIL held, and joins a thread of gloo
    # that waits for the GIL (seen with torch 2.13): what is left in cycles is freed now.
    gc.collect()
    dist.destroy_process_group()


def abort_process_group() -> bool:
    """End the group of a rank that failed, without its peers; return whether that took less than `ABORT_LIMIT_S`.

    NCCL's kernels may wait on the GPU for a peer that never comes: an interpreter that shuts down meanwhile hangs or
    crashes. Aborting ends them (ncclCommAbort of all groups at a time, by torch's `_abort_process_group`; there is no
    public name for it: https://github.com/pytorch/pytorch/issues/119797). gloo's connections end with the process. It
    may itself wait for a GPU that hangs: then the process must end without the interpreter's shutdown.
    """
    if not dist.is_initialized() or dist.get_backend() == "gloo":
        return True

    def abort() -> None:
        # Whatever it says: this rank ends, and why is said already.
        with suppress(RuntimeError, ValueError, AssertionError):
            distributed_c10d._abort_process_group()

    thread = threading.Thread(target=abort, name="abort of the process group", daemon=True)
    thread.start()
    thread.join(ABORT_LIMIT_S)
    return not thread.is_alive()


def on_first_rank(
    rank: int, ranks: int, work: Callable[[Callable[[], None]], Result], alive: Callable[[], None]
) -> Result:
    """Call `work` on rank 0 and return its result on all ranks, which wait as long as it reports progress.

    It is given a function to call often: with each call `alive` is called, about once a second on the other ranks too.
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
    """Set how long a rank waits for its peers in collectives of all groups `besides` one; all ranks call it.

    Without it the long wait of set-up would hold for every step.
    """
    # torch has no public name for either; _set_pg_timeout reaches both backends of a group
    # (torch/distributed/distributed_c10d.py of 2.11 and 2.13).
    for group in distributed_c10d._world.pg_map:
        if group is not besides:
            distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)


def _store(rank: int, timeout: timedelta) -> Any:
    """Return the ranks' store, which rank 0 serves: one for each start, so no rank reads what a dead one wrote.

    torch's own environment rendezvous would leave the port to be taken by another process in between: rank 0 inherits
    the launcher's listening socket instead.
    """
    listener = os.environ.get(STORE_VARIABLE)
    return dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=rank == 0,
        timeout=timeout,
        master_listen_fd=int(listener) if listener and rank == 0 else None,
    )
