"""Memory and GPU gauges, and out-of-memory errors with advice."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from contracts.config import RunConfig
from contracts.errors import TryAgain
from trainer.parallel.process_group import Rank
from trainer.supervise.account import Sections
from trainer.supervise.supervisor import is_peer_loss

_STATM = Path("/proc/self/statm")
# Substrings of out-of-memory messages; torch raises the last three as plain RuntimeErrors.
_OOM_MESSAGES = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "bad_alloc")
_GIB = 1 << 30


def read_memory(device: torch.device) -> dict[str, float]:
    """Return memory in bytes by scalar name, without loader processes and without a device sync.

    `memory/resident_bytes` is current (Linux only); peaks are since the process started.
    """
    # In kilobytes; in bytes on macOS: getrusage(2).
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    values = {"memory/resident_peak_bytes": float(peak)}
    if _STATM.exists():
        resident = float(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        # The kernel's peak may lag behind.
        values |= {"memory/resident_bytes": resident, "memory/resident_peak_bytes": max(float(peak), resident)}
    if device.type == "cuda":
        values["memory/gpu_allocated_peak_bytes"] = float(torch.cuda.max_memory_allocated(device))
        values["memory/gpu_reserved_peak_bytes"] = float(torch.cuda.max_memory_reserved(device))
    return values


class GpuGauges:
    """NVML gauges of one GPU. `log` is called once for each gauge that fails."""

    def __init__(self, device: torch.device, log: Callable[[str], None]) -> None:
        self._device, self._log = device, log
        gauges: dict[str, Callable[[torch.device], float]] = {
            "gpu/utilization_percent": torch.cuda.utilization,
            "gpu/memory_used_bytes": torch.cuda.device_memory_used,
            "gpu/temperature_celsius": torch.cuda.temperature,
        }
        self._gauges = gauges if device.type == "cuda" else {}

    def values(self) -> dict[str, float]:
        """Return utilization in percent, used memory in bytes and temperature in degrees Celsius, by scalar name."""
        values = {}
        for name, read in list(self._gauges.items()):
            try:
                values[name] = float(read(self._device))
            except Exception as error:  # noqa: BLE001 - NVML raises its own errors, and this is only looked at
                self._log(f"no {name} ({type(error).__name__}: {error})")
                del self._gauges[name]
        return values


def is_allocation_error(error: BaseException) -> bool:
    """Whether an error is an out-of-memory error."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(word in str(error).lower() for word in _OOM_MESSAGES)


class OutOfMemory(TryAgain):
    """A rank ran out of memory; final if it happens twice at the same step.

    Once may be due to memory of another process, or of ranks killed a moment ago.
    """

    def __init__(self, message: str, step: int | None = None) -> None:
        super().__init__(message)
        self.step = step


@contextmanager
def out_of_memory_explained(
    config: RunConfig, rank: Rank, sections: Sections, has_checkpoint: Callable[[], bool]
) -> Iterator[None]:
    """Raise out-of-memory errors of the block as OutOfMemory, with section, memory use and advice."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if is_peer_loss(error) or not is_allocation_error(error):
            raise
        current = sections.now
        where = f"section {current.section} at step {current.step} of rank {rank.rank}"
        message = explain_out_of_memory(error, rank.device, config, where=where, has_checkpoint=has_checkpoint())
        # Errors of the system, e.g. of fork, are unrelated to the memory of a step.
        is_torchs = not isinstance(error, OSError | MemoryError)
        raise OutOfMemory(message, current.step if is_torchs else None) from error


def explain_out_of_memory(
    error: BaseException, device: torch.device, config: RunConfig, *, where: str, has_checkpoint: bool
) -> str:
    """Return the message for an out-of-memory error: section, memory use and settings to lower."""
    first_line = str(error).strip().partition("\n")[0] or type(error).__name__
    train, parallel = config.train, config.parallel
    # Strategy and ranks may change between attempts.
    free, fixed = [], [f"lower parallel.slot_size ({parallel.slot_size})"]
    if parallel.strategy != "fsdp":
        free.append("set parallel.strategy=fsdp, which shares parameters and optimizer state among the ranks")
    if device.type == "cuda" and train.precision in ("fp32", "auto"):
        fixed.append("set train.precision=bf16")
    if train.activation_checkpointing in ("none", "auto"):
        fixed.append("set train.activation_checkpointing=whole")
    fresh = ", with --fresh, since a training that has begun keeps these" if has_checkpoint else ""
    todo = [*free, "; or ".join(fixed) + fresh] if has_checkpoint else [*fixed, *free]
    return (
        f"out of memory in {where}: {first_line} ({_describe_memory(device)})\n"
        "  allowed: a step whose parameters, optimizer state and activations fit\n"
        f"  to do: {'; or '.join(todo)}"
    )


def _describe_memory(device: torch.device) -> str:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
        return (
            f"peak {allocated / _GIB:.2f} GiB of tensors, {reserved / _GIB:.2f} GiB reserved; "
            f"{torch.cuda.get_device_name(device)} has {total / _GIB:.2f} GiB, of which {free / _GIB:.2f} are free"
        )
    peak = read_memory(device)["memory/resident_peak_bytes"]
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    limit = soft if soft >= 0 else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"peak {peak / _GIB:.2f} GiB of {limit / _GIB:.2f} GiB"
