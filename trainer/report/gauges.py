"""Gauges of memory and of the GPU, and errors of memory that has run out, explained."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from contracts.config import RunConfig
from contracts.errors import TryAgain
from trainer.parallel.process_group import Rank
from trainer.supervise.sections import Sections
from trainer.supervise.supervisor import is_peer_loss

_STATM = Path("/proc/self/statm")
_STATUS = Path("/proc/self/status")
# Of its limit; a process that holds more and fails at something has failed for want of memory.
FULL = 0.9
# What the words of an error say when memory has run out; torch raises the last three as plain RuntimeErrors.
_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "bad_alloc")
_GIB = 1 << 30


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


def is_allocation_error(error: BaseException) -> bool:
    """Whether an error says of itself that memory has run out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(word in str(error).lower() for word in _WORDS)


def says_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory has run out, where RLIMIT_DATA may be the only thing that can go wrong."""
    # oneDNN says "could not create a primitive", a thread that it cannot start: the words are of what was tried.
    limit, status = data_limit(), read_status()
    full = limit is not None and status is not None and status["VmData"] > FULL * limit
    return full or is_allocation_error(error)


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
    """Raise what runs out of memory inside as an error that says where, how much, and what to lower.

    Args:
        config: The configuration.
        rank: This rank.
        sections: What it is doing.
        begun: Whether there is a checkpoint, which holds what a step computes in.

    Raises:
        OutOfMemory: There was too little.
    """
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
    """Say how much memory was taken, of how much, and what needs less of it.

    Args:
        error: What `is_allocation_error` found.
        device: Of the rank.
        config: The configuration.
        where: Section and step.
        begun: Whether a checkpoint holds the slot size.
    """
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    train, parallel = config.train, config.parallel
    # Strategy and ranks may change between attempts; what a step computes in holds from the first checkpoint on.
    free, held = [], [f"lower parallel.slot_size ({parallel.slot_size})"]
    if parallel.strategy != "fsdp":
        free.append("set parallel.strategy=fsdp, which shares parameters and optimizer state among the ranks")
    if device.type == "cuda" and train.precision in ("fp32", "auto"):
        held.append("set train.precision=bf16")
    if train.activation_checkpointing in ("none", "auto"):
        held.append("set train.activation_checkpointing=whole")
    fresh = ", with --fresh, since a training that has begun keeps these" if begun else ""
    todo = [*free, "; or ".join(held) + fresh] if begun else [*held, *free]
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
    limit = data_limit()
    if limit is None:
        limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"peak {peak / _GIB:.2f} GiB of {limit / _GIB:.2f} GiB"


class GpuGauges:
    """The gauges of one GPU; on other devices, and where NVML is not there, it has no values.

    Args:
        device: The GPU.
        log: Told once why there are none.
    """

    def __init__(self, device: torch.device, log: Callable[[str], None]) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        if device.type != "cuda":
            return
        try:
            import pynvml  # type: ignore[import-untyped]
        except ImportError as error:
            log(f"no utilisation, memory and temperature of the GPU ({error})")
            return
        try:
            pynvml.nvmlInit()
            # By its UUID: CUDA_VISIBLE_DEVICES renumbers torch's devices, not NVML's.
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except (OSError, pynvml.NVMLError) as error:
            log(f"no utilisation, memory and temperature of the GPU ({error})")
            return
        self._nvml = pynvml

    def values(self) -> dict[str, float]:
        """Return scalars by name: percent of the latest time in use, bytes of its memory in use, degrees Celsius.

        What this GPU does not tell (a part of one may not) is left out.
        """
        if self._nvml is None:
            return {}
        nvml, handle = self._nvml, self._handle
        readings: dict[str, Callable[[], Any]] = {
            "gpu/utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "gpu/memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "gpu/temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }
        found = {}
        for name, read in readings.items():
            try:
                found[name] = float(read())
            except nvml.NVMLError:
                continue
        return found
