"""Gauges of memory and of the GPU, and errors of memory that has run out, explained."""

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
# Parts of the messages of errors of memory; torch raises the last three as plain RuntimeErrors.
_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "bad_alloc")
_GIB = 1 << 30


def read_memory(device: torch.device) -> dict[str, float]:
    """Return scalars by name, in bytes, without loader processes; nothing waits for the device.

    `memory/resident_bytes` is of now (Linux only); peaks are since the process started.
    """
    # Kilobytes, on a Mac bytes: getrusage(2).
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    values = {"memory/resident_peak_bytes": float(peak)}
    if _STATM.exists():
        now = float(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        # The kernel brings its peak up to date now and then only.
        values |= {"memory/resident_bytes": now, "memory/resident_peak_bytes": max(float(peak), now)}
    if device.type == "cuda":
        values["memory/gpu_allocated_peak_bytes"] = float(torch.cuda.max_memory_allocated(device))
        values["memory/gpu_reserved_peak_bytes"] = float(torch.cuda.max_memory_reserved(device))
    return values


class GpuGauges:
    """The gauges of one GPU, by NVML; other devices have none. `log` receives once why a gauge has no values."""

    def __init__(self, device: torch.device, log: Callable[[str], None]) -> None:
        self._device, self._log = device, log
        gauges: dict[str, Callable[[torch.device], float]] = {
            "gpu/utilization_percent": torch.cuda.utilization,
            "gpu/memory_used_bytes": torch.cuda.device_memory_used,
            "gpu/temperature_celsius": torch.cuda.temperature,
        }
        self._gauges = gauges if device.type == "cuda" else {}

    def values(self) -> dict[str, float]:
        """Return scalars by name: percent of the latest time in use, bytes of its memory in use, degrees Celsius."""
        values = {}
        for name, read in list(self._gauges.items()):
            try:
                values[name] = float(read(self._device))
            except Exception as error:  # noqa: BLE001 - NVML raises its own errors, and this is only looked at
                self._log(f"no {name} ({type(error).__name__}: {error})")
                del self._gauges[name]
        return values


def is_allocation_error(error: BaseException) -> bool:
    """Whether an error says of itself that memory has run out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(word in str(error).lower() for word in _WORDS)


class OutOfMemory(TryAgain):
    """A rank needed more memory than there is: final where torch says so twice at the same step.

    Once it may be what another process, or ranks that were killed a moment ago, still held.
    """

    def __init__(self, message: str, step: int | None = None) -> None:
        super().__init__(message)
        self.step = step


@contextmanager
def out_of_memory_explained(
    config: RunConfig, rank: Rank, sections: Sections, begun: Callable[[], bool]
) -> Iterator[None]:
    """Raise errors of memory inside the block as one that says where, how much, and what to lower (OutOfMemory)."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if is_peer_loss(error) or not is_allocation_error(error):
            raise
        now = sections.now
        where = f"section {now.section} at step {now.step} of rank {rank.rank}"
        message = explain_out_of_memory(error, rank.device, config, where=where, begun=begun())
        # The system's, e.g. of a process that cannot be forked, says nothing of what a step needs.
        is_torchs = not isinstance(error, OSError | MemoryError)
        raise OutOfMemory(message, now.step if is_torchs else None) from error


def explain_out_of_memory(
    error: BaseException, device: torch.device, config: RunConfig, *, where: str, begun: bool
) -> str:
    """Return the message of an error of memory: where it was, how much was taken, and what needs less."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    train, parallel = config.train, config.parallel
    # Strategy and ranks may change between attempts.
    free, fixed = [], [f"lower parallel.slot_size ({parallel.slot_size})"]
    if parallel.strategy != "fsdp":
        free.append("set parallel.strategy=fsdp, which shares parameters and optimizer state among the ranks")
    if device.type == "cuda" and train.precision in ("fp32", "auto"):
        fixed.append("set train.precision=bf16")
    if train.activation_checkpointing in ("none", "auto"):
        fixed.append("set train.activation_checkpointing=whole")
    fresh = ", with --fresh, since a training that has begun keeps these" if begun else ""
    todo = [*free, "; or ".join(fixed) + fresh] if begun else [*fixed, *free]
    return (
        f"out of memory in {where}: {lines[0]} ({_describe_memory(device)})\n"
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
