"""Memory of this process, as the operating system and the GPU's allocator count it."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import torch

_STATM = Path("/proc/self/statm")


def read_memory(device: torch.device) -> dict[str, float]:
    """Return scalars by name, all in bytes; nothing waits for the device.

    `memory/resident_bytes`: held in RAM now (Linux only), loader processes not counted. `memory/resident_peak_bytes`:
    the most since the process started. On a GPU also the most since then that tensors took of its memory, and that was
    reserved for them: `memory/gpu_allocated_peak_bytes`, `memory/gpu_reserved_peak_bytes`.
    """
    # Kilobytes, on a Mac bytes: getrusage(2).
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    found = {"memory/resident_peak_bytes": float(peak)}
    if _STATM.exists():
        now = float(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        # The kernel brings its peak up to date now and then only.
        found |= {"memory/resident_bytes": now, "memory/resident_peak_bytes": max(float(peak), now)}
    if device.type == "cuda":
        found["memory/gpu_allocated_peak_bytes"] = float(torch.cuda.max_memory_allocated(device))
        found["memory/gpu_reserved_peak_bytes"] = float(torch.cuda.max_memory_reserved(device))
    return found
