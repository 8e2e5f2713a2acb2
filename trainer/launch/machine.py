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
# torchrun's own, set by Kubeflow and whoever knows how many ranks a machine holds:
# https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
RANKS_VARIABLE = "PET_NPROC_PER_NODE"


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
    """Return the number of training processes of a machine.

    The configuration's, else the environment's (PET_NPROC_PER_NODE, where it is a number), else one per GPU, else two.

    Raises:
        ConfigError: More ranks than GPUs, on a machine with GPUs; a number of the environment that is none.
    """
    gpus = num_gpus(environment)
    given, name = config.resources.ranks, "resources.ranks"
    if given == "auto":
        # torchrun also takes auto, gpu, cpu: what is counted here.
        text, name = environment.get(RANKS_VARIABLE, ""), RANKS_VARIABLE
        if text in ("", "auto", "gpu", "cpu"):
            return gpus or CPU_RANKS
        if not text.isdecimal() or int(text) == 0:
            raise ConfigError(f"{name}={text}", allowed="a whole number, 1 or more", todo=f"unset {name}")
        given = int(text)
    if gpus and given > gpus:
        raise ConfigError(
            f"{name} = {given} on a machine with {gpus} GPU{'s' if gpus > 1 else ''}",
            allowed=f"up to {gpus}: one rank per GPU",
            todo=f"lower {name}, leave it out, or take a machine with more GPUs",
        )
    return given
