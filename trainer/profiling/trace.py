"""Recording of one trace per rank by torch.profiler, and its summary: breakdown of a step, kernels, operators, memory.

Traces open in ui.perfetto.dev and HolisticTraceAnalysis. Names of categories and arguments are kineto's
(libkineto/src/output_json.cpp and CuptiActivity.cpp of github.com/pytorch/kineto).
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mode
from typing import Any, Literal

from contracts.artifacts import KernelRow, MemorySample, OperatorRow, TraceSummary
from contracts.errors import DataError

Interval = tuple[float, float]
Category = Literal["compute", "copy", "communication"]

# Parts of a step, as `annotate` marks them; the pass of a slot is forward and backward.
LOADER, SLOT, UPDATE = "shardline: loader", "shardline: slot", "shardline: update"
STEP_PREFIX, BACKWARD_PREFIX = "ProfilerStep#", "autograd::engine::evaluate_function"
GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
MAX_MEMORY_SAMPLES = 400
# Communication on a thread of the host (gloo), and calls that launch it in the backend.
HOST_COMMUNICATION, LAUNCH_CALL = re.compile(r"^(gloo|mpi|ucc):"), re.compile(r"^(c10d::|nccl:|record_param_comms)")
# NCCL's kernels: ncclKernel_..., since 2.19 ncclDevKernel_..., since 2.27 ncclSymDevKernel_... or ncclSymkDevKernel_...
GPU_COMMUNICATION = re.compile(r"^nccl(Symk?)?(Dev)?Kernel|^nvshmem", re.IGNORECASE)
# Copies and layout changes by the kernel names of ATen and cuDNN.
COPY_KERNEL = re.compile(
    r"direct_copy|copy_kernel|CatArrayBatchedCopy|nchwToNhwc|nhwcToNchw|nchw_to_nhwc|nhwc_to_nchw|transpose|permute",
    re.IGNORECASE,
)
COPY_OPERATORS = {"aten::copy_", "aten::contiguous", "aten::clone", "aten::_to_copy", "aten::to", "aten::cat"}
COPY_OPERATORS |= {"aten::reshape", "aten::transpose", "aten::permute"}
# Instructions and tiles in kernel names: Volta's 884, Turing's 1688, Ampere's 16816, Hopper's wgmma and xmma, cuBLAS's
# nvjet, cutlass's tensorop, attention kernels.
TENSOR_CORES = re.compile(
    r"884|1688|16816|16832|tensorop|hmma|imma|wgmma|gmma|xmma|nvjet|cutlass_\w*tensor|fmha|flash_(fwd|bwd)",
    re.IGNORECASE,
)


# --- recording --------------------------------------------------------------------------------------------------------


def annotate(part: str) -> AbstractContextManager[object]:
    """Return a context that marks a part of a step (LOADER, SLOT or UPDATE) in the trace."""
    from torch.profiler import record_function

    return record_function(part)


def record(path: Path, take_step: Callable[[], object], *, steps: int, rank: int, cuda: bool) -> None:
    """Trace optimizer steps of this rank, after one step to warm up the profiler.

    Args:
        path: Trace to write, .json.gz.
        take_step: Takes an optimizer step, its parts marked by `annotate`.
        steps: Number of steps in the trace.
        rank: Number of this rank, which HolisticTraceAnalysis requires even for one rank.
        cuda: Whether the rank computes on a GPU.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    synchronise: Callable[[], object] = torch.cuda.synchronize if cuda else lambda: None
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])],
        schedule=schedule(wait=0, warmup=1, active=steps, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        record_shapes=False,
        profile_memory=True,
    ) as profiler:
        take_step()
        # With an empty GPU queue, the first traced step starts on host and GPU at the same time.
        synchronise()
        profiler.step()
        for number in range(steps):
            take_step()
            if number == steps - 1:
                synchronise()
            profiler.step()
    document = json.loads(gzip.decompress(path.read_bytes()), strict=False)
    for key in ("host_name", "username", "traceName", "INFO"):
        document.pop(key, None)
    document["distributedInfo"] = document.get("distributedInfo", {}) | {"rank": rank}
    # With spaces: HolisticTraceAnalysis 0.5 searches for the text `"rank": N`.
    path.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Event:
    """An event with a duration, in microseconds on the clock of the trace."""

    name: str
    category: str
    start_us: float
    end_us: float
    thread: tuple[object, object]
    """Process and thread."""
    arguments: dict[str, Any]

    @property
    def duration_us(self) -> float:
        """Duration in microseconds."""
        return self.end_us - self.start_us


@dataclass(frozen=True)
class Trace:
    """Events of one rank, sorted by start, and with equal start the longest first."""

    events: list[Event]
    allocations: list[Event]
    steps: list[Event]
    """Optimizer steps on the host."""
    rank: int

    def of(self, *categories: str) -> list[Event]:
        """Return the events of some categories."""
        return [event for event in self.events if event.category in categories]

    def host_communication(self) -> list[Event]:
        """Return the exchanges on threads of the host."""
        return [event for event in self.of("user_annotation", "cpu_op") if HOST_COMMUNICATION.match(event.name)]

    def marked(self, part: str) -> list[Event]:
        """Return the annotations of a part of a step."""
        return [event for event in self.of("user_annotation") if event.name == part]


def read_trace(path: Path) -> Trace:
    """Return the events of a trace, .json or .json.gz.

    Raises:
        DataError: It is no trace of torch.profiler, has no steps, or is truncated.
    """
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        # Kernel names may contain control characters.
        document = json.loads(data.decode(errors="replace"), strict=False)
        raw = document["traceEvents"]
        events = [_event(each) for each in raw if each.get("ph") == "X" and each.get("cat", "Trace") != "Trace"]
        allocations = [_event(each) for each in raw if each.get("ph") == "i" and each.get("name") == "[memory]"]
        rank = document.get("distributedInfo", {}).get("rank", 0)
        events.sort(key=lambda event: (event.start_us, -event.end_us))
        allocations.sort(key=lambda event: event.start_us)
        steps = [
            event for event in events if event.name.startswith(STEP_PREFIX) and event.category == "user_annotation"
        ]
        if not steps:
            raise ValueError(f"it has no steps ({STEP_PREFIX}N)")
    except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path.name} is no trace of torch.profiler: {type(error).__name__}: {error}",
            allowed="a file of torch.profiler's export_chrome_trace, .json or .json.gz, with steps (profiler.step())",
            todo="profile again; a truncated trace cannot be read",
        ) from error
    return Trace(events, allocations, steps, rank)


def _event(raw: dict[str, Any]) -> Event:
    start_us, end_us = float(raw["ts"]), float(raw["ts"]) + float(raw.get("dur", 0.0))
    thread = (raw.get("pid"), raw.get("tid"))
    return Event(raw["name"], raw.get("cat", ""), start_us, end_us, thread, raw.get("args", {}))


# --- intervals --------------------------------------------------------------------------------------------------------


def union(events: Iterable[Event]) -> list[Interval]:
    """Return the times at which any of the events runs: sorted and disjoint."""
    joined: list[Interval] = []
    for start, end in sorted((event.start_us, event.end_us) for event in events if event.end_us > event.start_us):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def subtract(minuend: list[Interval], subtrahend: list[Interval]) -> list[Interval]:
    """Return the times of the first set outside of the second; both sorted and disjoint."""
    difference = []
    first = 0
    for start, end in minuend:
        while first < len(subtrahend) and subtrahend[first][1] <= start:
            first += 1
        at, index = start, first
        while index < len(subtrahend) and subtrahend[index][0] < end:
            if subtrahend[index][0] > at:
                difference.append((at, subtrahend[index][0]))
            at = max(at, subtrahend[index][1])
            index += 1
        if end > at:
            difference.append((at, end))
    return difference


def length(intervals: Iterable[Interval]) -> float:
    """Return the total length of disjoint intervals."""
    return sum(end - start for start, end in intervals)


def _cut(events: Iterable[Event], start_us: float, end_us: float) -> list[Event]:
    """Return the events between two times, clipped to them."""
    return [
        replace(event, start_us=max(event.start_us, start_us), end_us=min(event.end_us, end_us))
        for event in events
        if event.start_us < end_us and (event.end_us > start_us or event.start_us >= start_us)
    ]


def _breakdown(remaining: list[Interval], parts: dict[str, list[Interval]], steps: int) -> dict[str, float]:
    """Return seconds of a mean step by part; time in several parts belongs to the first of them."""
    seconds = {}
    for name, intervals in parts.items():
        outside = subtract(remaining, intervals)
        seconds[name] = (length(remaining) - length(outside)) / steps / 1e6
        remaining = outside
    return seconds | {"other": length(remaining) / steps / 1e6}


# --- summary ----------------------------------------------------------------------------------------------------------


def summarise(path: Path) -> TraceSummary:
    """Return the breakdown, the kernels, the operators and the memory of a trace's steps.

    Raises:
        DataError: It is no trace of torch.profiler, or has no steps.
    """
    trace = read_trace(path)
    on_gpu = trace.of(*GPU_CATEGORIES)
    return _summarise_gpu(trace, on_gpu) if on_gpu else _summarise_cpu(trace)


def _summarise_cpu(trace: Trace) -> TraceSummary:
    steps, step_intervals = len(trace.steps), union(trace.steps)
    step_s = length(step_intervals) / steps / 1e6
    start_us, end_us = trace.steps[0].start_us, trace.steps[-1].end_us
    operators, loader = _cut(trace.of("cpu_op"), start_us, end_us), union(trace.marked(LOADER))
    computing = [event for event in operators if not HOST_COMMUNICATION.match(event.name)]
    computing = [event for event in computing if not LAUNCH_CALL.match(event.name)]
    parts = {
        "loader": loader,
        "optimizer": union(trace.marked(UPDATE)),
        "communication": subtract(union(trace.host_communication()), union(computing)),
        "backward": union(event for event in computing if event.name.startswith(BACKWARD_PREFIX)),
        "forward": union(trace.marked(SLOT)),
    }
    breakdown = _breakdown(step_intervals, parts, steps)
    order = ("loader", "forward", "backward", "optimizer", "communication", "other")
    # The loader's own copies are data time.
    outside = [event for event in operators if not any(start <= event.start_us < end for start, end in loader)]
    rows = _operator_rows(outside, None)
    copying_s = sum(row.self_s for row in rows if row.name in COPY_OPERATORS)
    return TraceSummary(
        rank=trace.rank,
        device="cpu",
        steps=steps,
        step_s=step_s,
        breakdown_s={name: breakdown[name] for name in order},
        exchanges_s=_per_step(trace, parts["communication"]),
        copy_kernel_fraction=_share(copying_s, sum(row.self_s for row in rows)),
        operators=_operator_rows(operators, None),
        memory=_memory_samples(trace, None, start_us),
    )


def _summarise_gpu(trace: Trace, on_gpu: list[Event]) -> TraceSummary:
    # A process may have events on other GPUs, but computes on one.
    device = mode(event.arguments.get("device", 0) for event in on_gpu)
    on_gpu = [event for event in on_gpu if event.arguments.get("device", 0) == device]
    # `record` synchronises before the first step and in the last, so the host's steps cover the GPU's.
    start_us, end_us = trace.steps[0].start_us, trace.steps[-1].end_us
    window_us, steps = end_us - start_us, len(trace.steps)
    on_gpu = _cut(on_gpu, start_us, end_us)
    of: dict[str, list[Event]] = {"compute": [], "communication": [], "copy": []}
    for event in on_gpu:
        of[_category_of(event)].append(event)
    computing = union(of["compute"])
    exchange = union([*of["communication"], *_cut(trace.host_communication(), start_us, end_us)])
    host_copies = union(event for event in of["copy"] if "HtoD" in event.name or "DtoH" in event.name)
    parts = {
        "kernels": computing,
        "communication": exchange,
        "copies": union(of["copy"]),
        "loader": union(_cut(trace.marked(LOADER), start_us, end_us)),
    }
    operators = trace.of("cpu_op")
    # A kernel has the external id of the innermost operator that launched it.
    launched_by = {
        event.arguments["External id"]: event.name for event in operators if "External id" in event.arguments
    }
    device_us: dict[str, float] = defaultdict(float)
    for event in on_gpu:
        device_us[launched_by.get(event.arguments.get("External id"), "")] += event.duration_us
    kernel_us = copy_us = tensor_us = 0.0
    for event in of["compute"]:
        kernel_us += event.duration_us
        operator = launched_by.get(event.arguments.get("External id"))
        tensor_us += event.duration_us if TENSOR_CORES.search(event.name) else 0.0
        # Names of TorchInductor's kernels (triton_...) contain all fused operators, not only copies.
        if not event.name.startswith("triton_") and (operator in COPY_OPERATORS or COPY_KERNEL.search(event.name)):
            copy_us += event.duration_us
    # kineto writes the kinds of memory into the name: Memcpy HtoD (Pageable -> Device).
    pageable = sum("HtoD" in event.name and "Pageable" in event.name for event in of["copy"])
    return TraceSummary(
        rank=trace.rank,
        device="gpu",
        steps=steps,
        step_s=window_us / steps / 1e6,
        breakdown_s=_breakdown([(start_us, end_us)], parts, steps),
        gpu_busy_fraction=_share(length(union([*of["compute"], *of["communication"]])), window_us),
        exchanges_s=_per_step(trace, subtract(exchange, computing)),
        exposed_copy_fraction=_share(length(subtract(host_copies, computing)), window_us),
        pageable_copies=round(pageable / steps),
        copy_kernel_fraction=_share(copy_us, kernel_us),
        tensor_core_fraction=_share(tensor_us, kernel_us),
        kernels_per_step=len(of["compute"]) / steps if kernel_us > 0 else None,
        mean_kernel_us=kernel_us / len(of["compute"]) if kernel_us > 0 else None,
        kernels=_kernel_rows(on_gpu),
        operators=_operator_rows(_cut(operators, start_us, end_us), device_us),
        memory=_memory_samples(trace, device, start_us),
    )


def _per_step(trace: Trace, intervals: list[Interval]) -> tuple[float, ...]:
    """Return the seconds of each step within the intervals."""
    steps = [(step.start_us, step.end_us) for step in trace.steps]
    return tuple((end - start - length(subtract([(start, end)], intervals))) / 1e6 for start, end in steps)


def _share(part: float, whole: float) -> float | None:
    return min(1.0, part / whole) if whole > 0 else None


# --- tables -----------------------------------------------------------------------------------------------------------


def _category_of(event: Event) -> Category:
    if event.category != "kernel":
        return "copy"
    return "communication" if GPU_COMMUNICATION.search(event.name) else "compute"


def _kernel_rows(events: Sequence[Event]) -> tuple[KernelRow, ...]:
    """Return a row per kernel name, the longest total time first."""
    groups: dict[tuple[str, Category], list[float]] = defaultdict(list)
    for event in events:
        groups[event.name, _category_of(event)].append(event.duration_us)
    rows = [
        KernelRow(name=name, category=category, calls=len(times), total_s=sum(times) / 1e6)
        for (name, category), times in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.total_s, row.name)))


def _operator_rows(operators: Sequence[Event], device_us: dict[str, float] | None) -> tuple[OperatorRow, ...]:
    """Return a row per operator, the longest self time first; `device_us`: kernel time by launching operator."""
    self_us: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    stacks: dict[tuple[object, object], list[Event]] = defaultdict(list)
    for event in operators:
        stack = stacks[event.thread]
        while stack and stack[-1].end_us <= event.start_us:
            stack.pop()
        if stack:
            self_us[stack[-1].name] -= min(event.end_us, stack[-1].end_us) - event.start_us
        stack.append(event)
        self_us[event.name] += event.duration_us
        calls[event.name] += 1
    rows = [
        OperatorRow(
            name=name,
            calls=calls[name],
            self_s=max(0.0, time_us) / 1e6,
            device_s=device_us.get(name, 0.0) / 1e6 if device_us is not None else None,
        )
        for name, time_us in self_us.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.device_s or 0.0), -row.self_s, row.name)))


def _memory_samples(trace: Trace, device: int | None, origin_us: float) -> tuple[MemorySample, ...]:
    """Return allocated memory over time, at most MAX_MEMORY_SAMPLES, each the peak of its interval.

    Args:
        trace: The trace.
        device: Number of the GPU; None: the memory of the CPU.
        origin_us: Time 0 of the samples.
    """
    samples = []
    for event in trace.allocations:
        allocated = event.arguments.get("Total Allocated")
        # torch's DeviceType: 0 is the CPU, 1 CUDA.
        if event.arguments.get("Device Type") != (0 if device is None else 1) or not isinstance(allocated, int | float):
            continue
        if device is None or event.arguments.get("Device Id") == device:
            samples.append(MemorySample(at_s=(event.start_us - origin_us) / 1e6, allocated_bytes=int(allocated)))
    size = max(1, -(-len(samples) // MAX_MEMORY_SAMPLES))
    groups = (samples[at : at + size] for at in range(0, len(samples), size))
    return tuple(max(group, key=lambda sample: sample.allocated_bytes) for group in groups)
