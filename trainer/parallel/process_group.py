"""Process group of a training: set-up from the launcher's environment, time-outs, abort."""

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

# Seconds between progress reports of a rank that others wait for: well below the shortest time-out.
_HEARTBEAT_S = 1.0
# Seconds for aborting NCCL; the launcher kills ranks 5 s after the first one ended (trainer/launch/launcher.py).
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
        """Whether this is rank 0, which writes files and logs."""
        return self.rank == 0


@contextmanager
def process_group(*, setup_timeout_s: float, timeout_s: float) -> Iterator[Rank]:
    """Initialise the process group; destroy it at the end of the block unless an error is raised.

    On GPUs the group has two backends: NCCL, whose communicator is created eagerly (`device_id`), and gloo for CPU
    tensors. After an error, call `abort_process_group`. `setup_timeout_s` is the time-out of the store,
    `timeout_s` that of a collective.
    """
    rank, local_rank, ranks = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=_store(rank, timedelta(seconds=setup_timeout_s)),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if on_gpu else None,
    )
    yield Rank(rank, local_rank, ranks, device)
    # On success only: after an error this could wait for a dead peer.
    dist.barrier()
    # Collect DDP modules in reference cycles now: one that outlives the group deadlocks on the GIL with gloo's thread
    # (torch 2.13).
    gc.collect()
    dist.destroy_process_group()


def abort_process_group() -> bool:
    """Abort the group of a failed rank; return whether that took less than `ABORT_LIMIT_S`.

    NCCL kernels may wait for a lost peer, and the interpreter then hangs or crashes at shutdown. torch's
    `_abort_process_group` calls ncclCommAbort for all groups (no public API:
    https://github.com/pytorch/pytorch/issues/119797). If it hangs too, call os._exit. gloo needs no abort.
    """
    if not dist.is_initialized() or dist.get_backend() == "gloo":
        return True

    def abort() -> None:
        # The rank ends anyway, and its error is recorded.
        with suppress(RuntimeError, ValueError, AssertionError):
            distributed_c10d._abort_process_group()

    thread = threading.Thread(target=abort, name="abort of the process group", daemon=True)
    thread.start()
    thread.join(ABORT_LIMIT_S)
    return not thread.is_alive()


def on_first_rank(
    rank: int, ranks: int, work: Callable[[Callable[[], None]], Result], alive: Callable[[], None]
) -> Result:
    """Call `work` on rank 0 and return its result on all ranks, which wait while it reports progress.

    `work` takes a function to call often. Each call calls `alive`, about once a second on other ranks too.
    """
    if ranks == 1:
        return work(alive)
    message: list[tuple[Result] | None] = [None]
    if rank > 0:
        while message[0] is None:
            dist.broadcast_object_list(message, src=0)
            alive()
        return message[0][0]
    reported_at = time.monotonic()

    def report_progress() -> None:
        nonlocal reported_at
        alive()
        if time.monotonic() - reported_at >= _HEARTBEAT_S:
            reported_at = time.monotonic()
            dist.broadcast_object_list([None], src=0)

    result = work(report_progress)
    dist.broadcast_object_list([(result,)], src=0)
    return result


def _store(rank: int, timeout: timedelta) -> Any:
    """Return the store of this start, served by rank 0.

    Rank 0 inherits the launcher's listening socket. With torch's env:// rendezvous another process could take the port.
    """
    listener = os.environ.get(STORE_VARIABLE)
    return dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=rank == 0,
        timeout=timeout,
        master_listen_fd=int(listener) if listener and rank == 0 else None,
    )
