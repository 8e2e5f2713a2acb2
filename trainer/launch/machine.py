"""This machine, without importing torch: its cores, CPU and GPUs, and how many ranks it runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.process import available_cores

# Ranks without a GPU: two, so that the distributed path is the one that runs everywhere.
CPU_RANKS = 2
GPU_FOLDER = Path("/proc/driver/nvidia/gpus")
# Set by a rehearsal, which plays machines that this one could not hold: their ranks, whatever the configuration says.
RANKS_VARIABLE = "SHARDLINE_REHEARSAL_RANKS"


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine, or of the part of it that a container sees."""

    name: str
    uuid: str
    """GPU-..., as `nvidia-smi -L` prints it."""
    has_mig: bool = False
    """Whether it is split into MIG devices."""


def find_gpus() -> list[Gpu]:
    """Return the NVIDIA GPUs, whatever CUDA_VISIBLE_DEVICES says.

    NVML knows them wherever it is; /proc/driver/nvidia is not there under WSL2, on Jetson, and in containers whose GPUs
    are given by CDI.
    """
    found = _gpus_of_nvml()
    return _gpus_of_proc() if found is None else found


def _gpus_of_nvml() -> list[Gpu] | None:
    """Return the GPUs by NVML; None where it is not there, or knows none."""
    try:
        import pynvml as nvml  # type: ignore[import-untyped]
    except ImportError:
        return None
    found = []
    try:
        nvml.nvmlInit()
        for index in range(nvml.nvmlDeviceGetCount()):
            # One that fell off its bus cannot be used.
            with suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                found.append(Gpu(nvml.nvmlDeviceGetName(handle), nvml.nvmlDeviceGetUUID(handle), _has_mig(handle)))
        nvml.nvmlShutdown()
    except nvml.NVMLError:
        return None
    return found or None


def _has_mig(handle: Any) -> bool:
    import pynvml as nvml

    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except nvml.NVMLError:
        # It cannot be split.
        return False


def _gpus_of_proc() -> list[Gpu]:
    found = []
    for information in sorted(GPU_FOLDER.glob("*/information")):
        lines = dict(line.partition(":")[::2] for line in information.read_text().splitlines())
        found.append(Gpu(lines.get("Model", "unknown").strip(), lines.get("GPU UUID", "").strip()))
    return found


def count_visible(gpus: Sequence[Gpu], visible: str | None) -> int:
    """Return how many of the GPUs a process sees, by the rules of CUDA (and torch/cuda/__init__.py).

    Of MIG devices it sees one, and no GPU beside it:
    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/mig-device-names.html#device-enumeration

    Args:
        gpus: Those of the machine.
        visible: CUDA_VISIBLE_DEVICES: indices, or UUIDs or their beginnings; None where it is not set.
    """
    if visible is None:
        chosen: list[int | None] = list(range(len(gpus)))
    elif visible.startswith("MIG-"):
        return min(1, len(gpus))
    else:
        names = [name.strip() for name in visible.split(",")]
        find = _by_uuid if visible.startswith("GPU-") else _by_index
        chosen = [find(name, gpus) for name in names]
    # CUDA stops at the first entry that names no device; an entry that comes twice leaves none.
    found = list(takewhile(lambda index: index is not None, chosen))
    if len(set(found)) < len(found):
        return 0
    return 1 if any(gpus[index].has_mig for index in found if index is not None) else len(found)


def _by_uuid(name: str, gpus: Sequence[Gpu]) -> int | None:
    if not name.startswith("GPU-"):
        return None
    found = [index for index, gpu in enumerate(gpus) if gpu.uuid.startswith(name)]
    return found[0] if len(found) == 1 else None


def _by_index(name: str, gpus: Sequence[Gpu]) -> int | None:
    # As C's strtoul reads it: 1x is 1.
    match = re.match(r"\+?(\d+)", name)
    return int(match[1]) if match and int(match[1]) < len(gpus) else None


def hardware() -> dict[str, str]:
    """Describe this machine: cores, CPU, and the names of NVIDIA GPUs."""
    cpu = "unknown"
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    gpus = ", ".join(gpu.name for gpu in find_gpus())
    return {"cores": str(available_cores()), "cpu": cpu, "gpus": gpus or "none"}


def num_gpus(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of NVIDIA GPUs that processes started here see (CUDA_VISIBLE_DEVICES counted)."""
    return count_visible(find_gpus(), environment.get("CUDA_VISIBLE_DEVICES"))


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
