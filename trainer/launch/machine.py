"""This machine, without importing torch: its cores, CPU and GPUs, and how many ranks it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.process import available_cores

# Ranks without a GPU: two, so that the distributed path is the one that runs everywhere.
CPU_RANKS = 2
GPU_FOLDER = Path("/proc/driver/nvidia/gpus")
# Set by a rehearsal, which plays machines that this one could not hold: their ranks, whatever the configuration says.
RANKS_VARIABLE = "SHARDLINE_REHEARSAL_RANKS"


def hardware() -> dict[str, str]:
    """Describe this machine: cores, CPU, and the names of NVIDIA GPUs."""
    gpus = []
    for information in sorted(GPU_FOLDER.glob("*/information")):
        lines = dict(line.partition(":")[::2] for line in information.read_text().splitlines())
        gpus.append(lines.get("Model", "unknown").strip())
    cpu = "unknown"
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    return {"cores": str(available_cores()), "cpu": cpu, "gpus": ", ".join(gpus) or "none"}


def num_gpus(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of NVIDIA GPUs that processes started here see (CUDA_VISIBLE_DEVICES counted)."""
    present = len(list(GPU_FOLDER.glob("*/information")))
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    # CUDA stops at the first entry that names no device.
    named = visible.split(",") if visible.strip() else []
    valid = next((i for i, name in enumerate(named) if name.strip().startswith("-")), len(named))
    return min(present, valid)


def num_ranks(config: RunConfig, environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of training processes of a machine: the configuration's, else one per GPU, else two.

    A rehearsal's number wins over all of them, GPUs or not.

    Raises:
        ConfigError: More ranks than GPUs, on a machine with GPUs; a rehearsal's number that is none.
    """
    if rehearsed := environment.get(RANKS_VARIABLE):
        if not rehearsed.isdecimal() or int(rehearsed) == 0:
            raise ConfigError(
                f"{RANKS_VARIABLE}={rehearsed}", allowed="a whole number, 1 or more", todo=f"unset {RANKS_VARIABLE}"
            )
        return int(rehearsed)
    gpus = num_gpus()
    ranks = config.resources.ranks
    if ranks == "auto":
        return gpus or CPU_RANKS
    if gpus and ranks > gpus:
        raise ConfigError(
            f"resources.ranks = {ranks} on a machine with {gpus} GPU{'s' if gpus > 1 else ''}",
            allowed=f"up to {gpus}: one rank per GPU",
            todo="lower resources.ranks, leave it at auto, or take a machine with more GPUs",
        )
    return ranks
