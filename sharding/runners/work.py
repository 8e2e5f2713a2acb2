"""How much there is to do, and how many processes do it. Beam is not imported here: it costs more than all of this.

Worker processes of the FnApiRunner come from a fork server (multiprocessing's own): one process without threads imports
Beam and the graph once, while the command itself still lists its source and imports the same, and is then copied for
each worker within milliseconds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

from contracts.config import ResourcesSection
from contracts.process import available_cores, thread_environment

# Worker processes cost this much more than none, measured (docs/sharding.md).
PROCESS_START_S = 1.3
# Bytes of sources that one process turns into shards in a second, measured (docs/sharding.md), by whether it decodes.
BYTES_PER_S = {False: 600e6, True: 30e6}
# What the fork server imports, with all that it imports in its turn.
WORKER_MODULE = "sharding.runners.worker"


@dataclass(frozen=True)
class Work:
    """What is known about the size of a job before it runs."""

    source_bytes: int
    num_shards: int
    decodes: bool
    """Whether every image is decoded on the way."""


def choose_processes(resources: ResourcesSection, work: Work) -> int:
    """Return the number of worker processes of the FnApiRunner; 1: everything happens in this process.

    With `auto`, processes are used where the time they save is more than their start costs.
    """
    if resources.beam_workers != "auto":
        return resources.beam_workers
    processes = min(available_cores(), work.num_shards)
    saved_s = work.source_bytes / BYTES_PER_S[work.decodes] * (1 - 1 / max(processes, 1))
    return processes if saved_s > PROCESS_START_S else 1


def prepare_workers(resources: ResourcesSection, work: Work) -> None:
    """Start what worker processes are copied from, if there will be any; returns at once."""
    if resources.beam_runner == "fnapi" and choose_processes(resources, work) > 1:
        # The server passes them on to the workers.
        os.environ.update(thread_environment(1))
        fork_context()
        forkserver.ensure_running()


def fork_context() -> ForkServerContext:
    """Return the context whose processes are copies of the fork server."""
    context = ForkServerContext()
    context.set_forkserver_preload([WORKER_MODULE])
    return context
