"""How much memory a rank takes at its peak, and how much it may take.

On a GPU that is the allocator's. Without one it is the data of the process as RLIMIT_DATA counts it (private, writable
memory), where that is limited, else what is resident.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from trainer.report.gauges import is_allocation_error

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
# Of RLIMIT_DATA; a process that holds more and fails at something has failed for want of memory.
FULL = 0.9
# Of what is free where nothing else limits a rank: other programs want some.
PART_OF_FREE = 0.8
# Seconds between two looks at the memory of a slot, which takes milliseconds.
_LOOK_S = 0.0005


@dataclass
class Peak:
    """Filled in when the block that it is for has ended."""

    bytes: int | None = None


class MemoryGauge:
    """Memory of this process on a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # One beginning for all peaks: what malloc keeps of an earlier, larger slot counts as data, and is free.
        self._before = read_status()

    @contextmanager
    def peak(self, *, timed: bool = False) -> Iterator[Peak]:
        """Measure the highest memory inside of the block; None where this machine does not tell.

        Args:
            timed: Something is timed in the block: nothing may run beside it.
        """
        found = Peak()
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
            yield found
            torch.cuda.synchronize(self._device)
            found.bytes = torch.cuda.max_memory_allocated(self._device)
            return
        _trim()
        if data_limit() is not None and not timed:
            with _watched(found):
                yield found
            return
        resets = _reset_peak()
        yield found
        after = read_status()
        if resets and self._before is not None and after is not None:
            found.bytes = self._before["VmData"] + max(0, after["VmHWM"] - self._before["VmRSS"])

    def limit_bytes(self, ranks: int) -> int | None:
        """Return what this rank may take: its limit, else its share of what is free."""
        if self._device.type == "cuda":
            unused, _ = torch.cuda.mem_get_info(self._device)
            own = int(unused) + int(torch.cuda.memory_reserved(self._device))
            return own
        if (limit := data_limit()) is not None:
            return limit
        free = _free_bytes()
        status = read_status()
        if free is None or status is None:
            return None
        return int(free * PART_OF_FREE / ranks) + status["VmData"]


@contextmanager
def _watched(found: Peak) -> Iterator[None]:
    """Look at this process's data again and again: of what RLIMIT_DATA counts, the kernel keeps no peak."""
    done = threading.Event()

    def look() -> None:
        while True:
            if (status := read_status()) is not None:
                found.bytes = max(found.bytes or 0, status["VmData"])
            if done.wait(_LOOK_S):
                return

    thread = threading.Thread(target=look, name="memory", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def data_limit() -> int | None:
    """Return what RLIMIT_DATA allows this process, in bytes; None: anything."""
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return soft if soft >= 0 else None


def read_status() -> dict[str, int] | None:
    """Return VmData, VmRSS and VmHWM of this process in bytes (proc_pid_status(5)); None: not Linux."""
    try:
        lines = (line.partition(":") for line in _STATUS.read_text().splitlines())
    except OSError:
        return None
    found = {name: int(value.split()[0]) * 1024 for name, _, value in lines if name in ("VmData", "VmRSS", "VmHWM")}
    return found if len(found) == 3 else None


def says_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory has run out, where RLIMIT_DATA may be the only thing that can go wrong."""
    # oneDNN says "could not create a primitive", a thread that it cannot start: the words are of what was tried.
    limit, status = data_limit(), read_status()
    full = limit is not None and status is not None and status["VmData"] > FULL * limit
    return full or is_allocation_error(error)


def _trim() -> None:
    """Give back what malloc keeps of freed memory, where malloc is glibc's: it would look like memory in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


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
    # No such group, or no limit ("max").
    with suppress(OSError, ValueError):
        limit, current = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        # Files in the page cache count as used, and are given up when memory is wanted.
        kinds = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        given_up = sum(int(kind[1]) for kind in kinds if kind[0] in ("inactive_file", "active_file"))
        found.append(limit - current + given_up)
    return min(found, default=None)
