"""How much there is to do, and how many shards are under way at a time on this machine. Beam is not imported here."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.config import ResourcesSection
from contracts.process import available_cores

# Bytes of sources that one process turns into shards in a second, measured (docs/sharding.md), by whether it decodes.
BYTES_PER_S = {False: 600e6, True: 30e6}
# A further thread of Beam and its process cost about so much, measured (docs/sharding.md).
PROCESS_START_S = 0.3


@dataclass(frozen=True)
class Work:
    """What is known about the size of a job before it runs."""

    source_bytes: int
    num_shards: int
    decodes: bool
    """Whether every image is decoded on the way."""


def choose_processes(resources: ResourcesSection, work: Work) -> int:
    """Return the number of shards that the FnApiRunner writes at a time, each in a process of its own.

    With `auto`, there are several where the time that they save is more than their start costs.
    """
    if resources.beam_workers != "auto":
        return resources.beam_workers
    processes = min(available_cores(), work.num_shards)
    saved_s = work.source_bytes / BYTES_PER_S[work.decodes] * (1 - 1 / max(processes, 1))
    return processes if saved_s > PROCESS_START_S else 1
