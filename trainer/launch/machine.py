"""Hardware of this machine and its number of ranks; imports no torch."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from contracts.config import RunConfig
from contracts.errors import ConfigError
from contracts.process import available_cores

# Ranks without a GPU: two, so that the distributed code always runs.
CPU_RANKS = 2
# torchrun's variable, also set by Kubeflow:
# https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
RANKS_VARIABLE = "PET_NPROC_PER_NODE"


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU of this machine."""

    name: str
    capability: int
    """Compute capability times ten (89 for sm89)."""


def find_gpus() -> list[Gpu]:
    """Return all NVIDIA GPUs, ignoring CUDA_VISIBLE_DEVICES; none without NVML."""
    try:
        import pynvml as nvml  # type: ignore[import-untyped]
    except ImportError:
        return []
    gpus = []
    try:
        nvml.nvmlInit()
        for index in range(nvml.nvmlDeviceGetCount()):
            # Skip GPUs that fell off the bus.
            with suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
                gpus.append(Gpu(nvml.nvmlDeviceGetName(handle), major * 10 + minor))
        nvml.nvmlShutdown()
    except nvml.NVMLError:
        return []
    return gpus


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


def visible_gpus() -> list[Gpu]:
    """Return the NVIDIA GPUs in CUDA_VISIBLE_DEVICES; all if it is unset."""
    gpus = find_gpus()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not gpus:
        return gpus
    named = []
    for entry in (entry.strip() for entry in visible.split(",")):
        # CUDA stops at the first invalid entry.
        if entry in ("", "-1") or (entry.isdecimal() and int(entry) >= len(gpus)):
            break
        # UUIDs are not resolved: assume the oldest GPU.
        named.append(gpus[int(entry)] if entry.isdecimal() else min(gpus, key=lambda gpu: gpu.capability))
    return named[: len(gpus)]


def num_ranks(config: RunConfig) -> int:
    """Return the number of ranks of a machine.

    Set by resources.ranks, else by PET_NPROC_PER_NODE if it is a number, else one per GPU, else two.

    Raises:
        ConfigError: More ranks than GPUs on a machine with GPUs, or an invalid variable.
    """
    gpus = len(visible_gpus())
    ranks, name = config.resources.ranks, "resources.ranks"
    if ranks == "auto":
        # torchrun's values auto, gpu and cpu mean the default.
        text, name = os.environ.get(RANKS_VARIABLE, ""), RANKS_VARIABLE
        if text in ("", "auto", "gpu", "cpu"):
            return gpus or CPU_RANKS
        if not text.isdecimal() or int(text) == 0:
            raise ConfigError(f"{name}={text}", allowed="a whole number, 1 or more", todo=f"unset {name}")
        ranks = int(text)
    if gpus and ranks > gpus:
        raise ConfigError(
            f"{name} = {ranks} on a machine with {gpus} GPU{'s' if gpus > 1 else ''}",
            allowed=f"up to {gpus}: one rank per GPU",
            todo=f"lower {name}, leave it out, or take a machine with more GPUs",
        )
    return ranks


def num_gpus() -> int:
    """Return the number of visible GPUs."""
    return len(visible_gpus())
