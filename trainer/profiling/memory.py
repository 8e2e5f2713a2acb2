"""How much memory a rank takes at its peak, and how much it may take.

On a GPU that is the allocator's. Without one it is the data of the process as RLIMIT_DATA counts it (private, writable
memory); the kernel keeps no peak of that, so the peak of what is resident stands for the growth.
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
# Of what is free where nothing else limits a rank: other programs want some.
PART_OF_FREE = 0.8
# What the words of an error say when memory has run out; torch raises the last three as plain RuntimeErrors.
_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "bad_alloc")


@dataclass
class Peak:
    """Filled in when the block that it is for has ended."""

    bytes: int | None = None


class MemoryGauge:
    """Memory of this process on a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @contextmanager
    def peak(self) -> Iterator[Peak]:
        """Measure the highest memory inside of the block; None where this machine does not tell."""
        found = Peak()
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
            yield found
            torch.cuda.synchronize(self._device)
            found.bytes = torch.cuda.max_memory_allocated(self._device)
            return
        before = _read_status()
        resets = before is not None and _reset_peak()
        yield found
        after = _read_status()
        if resets and before is not None and after is not None:
            found.bytes = before["VmData"] + max(0, after["VmHWM"] - before["VmRSS"])

    def limit_to(self, most: int) -> None:
        """Hold this process to a number of bytes from now on."""
        if self._device.type == "cuda":
            total = torch.cuda.get_device_properties(self._device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, most / total), self._device)
            return
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))

    def limit_bytes(self, ranks: int) -> int | None:
        """Return what this rank may take: its limit, else its share of what is free."""
        if self._device.type == "cuda":
            return int(torch.cuda.get_device_properties(self._device).total_memory)
        soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
        if soft >= 0:
            return soft
        free = _free_bytes()
        own = _read_status()
        if free is None or own is None:
            return None
        return int(free * PART_OF_FREE / ranks) + own["VmData"]


def says_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory has run out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(word in str(error).lower() for word in _WORDS)


def _read_status() -> dict[str, int] | None:
    """Return VmData, VmRSS and VmHWM of this process in bytes (proc_pid_status(5))."""
    try:
        lines = (line.partition(":") for line in _STATUS.read_text().splitlines())
    except OSError:
        return None
    found = {name: int(value.split()[0]) * 1024 for name, _, value in lines if name in ("VmData", "VmRSS", "VmHWM")}
    return found if len(found) == 3 else None


def _reset_peak() -> bool:
    try:
        # 5 resets VmHWM to what is resident now (proc_pid_clear_refs(5)).
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _free_bytes() -> int | None:
    """Return what may still be taken: of the machine, or of the control group where that is less."""
    found = []
    try:
        lines = (line.partition(":") for line in Path("/proc/meminfo").read_text().splitlines())
        found += [int(value.split()[0]) * 1024 for name, _, value in lines if name == "MemAvailable"]
    except OSError:
        return None
    group = Path("/sys/fs/cgroup")
    try:
        found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no such group, or no limit ("max")
    return min(found, default=None)
