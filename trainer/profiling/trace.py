"""Sums up a kineto trace of one rank's steps: where their time went, on the host and on the GPU. Needs no torch.

`summarise` reads what the probe recorded (trainer/profiling/service.py), which marks in its trace the parts of a
step: "shardline: loader" (next() of the loader), "shardline: slot" (forward and backward pass of a slot) and
"shardline: update" (the optimizer). Traces from elsewhere are read as far as they say the same.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

from contracts.artifacts.trace import TraceSummary
from trainer.profiling.anonymous import strip_host
from trainer.profiling.intervals import Interval, intersect, length, subtract, union
from trainer.profiling.kernels import category_of, kernel_rows, kernel_shares
from trainer.profiling.kineto import GPU_CATEGORIES, Event, Trace, intervals, read_trace
from trainer.profiling.lanes import make_lanes, memory_samples
from trainer.profiling.operators import copying_fraction, names_by_external_id, operator_rows
from trainer.profiling.peaks import peak_bandwidth
from trainer.profiling.roofline import memory_bound

__all__ = ["strip_host", "summarise"]

LOADER, SLOT, UPDATE = "shardline: loader", "shardline: slot", "shardline: update"
BACKWARD_PREFIX = "autograd::engine::evaluate_function"
# What torch itself marks, for traces that the probe did not record.
_TORCH_LOADER, _TORCH_UPDATE = "enumerate(DataLoader)#", "Optimizer.step#"
# Exchange that a thread of the host does (gloo); with NCCL the kernels count, which have their own names.
_HOST_COMMUNICATION = re.compile(r"^(gloo|mpi|ucc):")
# Calls that only hand an exchange over to the backend.
_HANDING_OVER = re.compile(r"^(c10d::|nccl:|record_param_comms)")
_WAIT = re.compile(
    r"^(cuda(Device|Stream|Event)|cu(Ctx|Stream|Event)|hip(Device|Stream|Event))Synchronize|^cudaMemcpy$"
)
_COPY_CALL = re.compile(r"Memcpy")
# As a step goes through them.
_ORDER_CPU = ("loader", "forward", "backward", "optimizer", "communication", "other")


def summarise(path: Path, details: Path | None = None) -> TraceSummary:
    """Return what a trace says about its steps.

    Args:
        path: .json or .json.gz, of a CPU or of a GPU.
        details: Of other steps of the same rank, for what the first does not have: the allocator's events, and shapes.
            Recording them makes steps longer on the host, but no kernel: shares of a step are not taken from it.

    Raises:
        DataError: It is no trace of torch's profiler, or has no steps.
    """
    trace = read_trace(path)
    on_gpu = trace.of(*GPU_CATEGORIES)
    found = _summarise_gpu(trace, on_gpu) if on_gpu else _summarise_cpu(trace)
    if details is None:
        return found
    detailed = summarise(details)
    return replace(found, memory=detailed.memory, memory_bound=detailed.memory_bound)


# --- without a GPU ----------------------------------------------------------------------------------------------------


def _summarise_cpu(trace: Trace) -> TraceSummary:
    steps = union(intervals(trace.steps))
    mean_step_s = length(steps) / len(trace.steps) / 1e6
    loaders = _marked(trace, LOADER, _TORCH_LOADER)
    start_us, end_us = trace.steps[0].start_us, trace.steps[-1].end_us
    exchange = _cut(_host_communication(trace), start_us, end_us)
    operators = [event for event in trace.of("cpu_op") if not _talks(event)]
    computing = union(intervals(operators))
    backward = (event for event in operators if event.name.startswith(BACKWARD_PREFIX))
    claims = {
        "loader": intervals(loaders),
        "optimizer": intervals(_marked(trace, UPDATE, _TORCH_UPDATE)),
        "communication": subtract(union(intervals(exchange)), computing),
        "backward": intervals(backward),
        "forward": intervals(_marked(trace, SLOT)),
    }
    breakdown = _breakdown(steps, claims, len(trace.steps))
    in_steps = _cut(trace.of("cpu_op"), start_us, end_us)
    return TraceSummary(
        rank=trace.rank,
        device="cpu",
        gpu_name=None,
        steps=len(trace.steps),
        step_s=median(step.duration_us for step in trace.steps) / 1e6,
        breakdown_s={name: breakdown[name] for name in _ORDER_CPU},
        communication_fraction=breakdown["communication"] / mean_step_s if mean_step_s > 0 else None,
        overlap_fraction=_fraction(intersect(union(intervals(exchange)), computing), length(steps)),
        exchanges_s=_exposed(exchange, computing),
        copy_kernel_fraction=copying_fraction(operator_rows(_began(in_steps, loaders, inside=False), None)),
        operators=operator_rows(in_steps, None),
        memory=memory_samples(trace, None, origin_us=start_us),
        lanes=make_lanes(
            trace,
            [],
            [],
            (trace.steps[-1].start_us, trace.steps[-1].end_us),
            loaders=loaders,
            communication=exchange,
            origin_us=start_us,
        ),
    )


# --- with a GPU -------------------------------------------------------------------------------------------------------


def _summarise_gpu(trace: Trace, on_gpu: list[Event]) -> TraceSummary:
    device = _busiest_device(on_gpu)
    on_gpu = [event for event in on_gpu if event.arguments.get("device", device) == device]
    ends = _step_ends(trace, on_gpu)
    # One window for all parts: what lies in it is cut to it, what does not is in none of them.
    start_us, end_us = ends[0], ends[-1]
    window_us, steps = end_us - start_us, len(trace.steps)
    on_gpu = _cut(on_gpu, start_us, end_us)
    by_kind = {kind: [e for e in on_gpu if category_of(e) == kind] for kind in ("compute", "communication", "copy")}
    computing = union(intervals(by_kind["compute"]))
    exchange_events = by_kind["communication"] + _cut(_host_communication(trace), start_us, end_us)
    exchanging = union(intervals(exchange_events))
    talking = subtract(exchanging, computing)
    copying = subtract(union(intervals(_host_copies(by_kind["copy"]))), computing)
    loaders = _cut(_marked(trace, LOADER, _TORCH_LOADER), start_us, end_us)
    calls = _cut(trace.of("cuda_runtime", "cuda_driver"), start_us, end_us)
    # What the probe itself waits for, between the parts of a step, is none of the step's; what the loader waits for is
    # data time already. Traces from elsewhere may mark the loader only.
    parts = [*_marked(trace, SLOT), *_marked(trace, UPDATE)]
    calls = _began(calls, parts, inside=True) if _marked(trace, SLOT) else _began(calls, loaders, inside=False)
    waits = [event for event in calls if _WAIT.match(event.name)]
    # A copy into memory that is not page-locked returns when it is done, whatever its call is named.
    to_pageable = {e.arguments.get("correlation") for e in by_kind["copy"] if e.name.endswith("-> Pageable)")}
    waits_too = [e for e in calls if _COPY_CALL.search(e.name) and e.arguments.get("correlation") in to_pageable]
    operators = _cut(trace.of("cpu_op"), start_us, end_us)
    busy_kernels = union(intervals(by_kind["compute"] + by_kind["communication"]))
    claims = {
        "kernels": computing,
        "communication": exchanging,
        "copies": intervals(event for event in on_gpu if event.category != "kernel"),
        "loader": intervals(loaders),
    }
    return TraceSummary(
        rank=trace.rank,
        device="gpu",
        gpu_name=trace.gpus.get(device),
        steps=steps,
        step_s=median(end - begin for begin, end in pairwise(ends)) / 1e6,
        breakdown_s=_breakdown([(start_us, end_us)], claims, steps),
        gpu_busy_fraction=_fraction(busy_kernels, window_us),
        communication_fraction=_fraction(talking, window_us),
        overlap_fraction=_fraction(intersect(exchanging, computing), window_us),
        exchanges_s=_exposed(exchange_events, computing),
        exposed_copy_fraction=_fraction(copying, window_us),
        pageable_copies=round(sum(_from_pageable(event) for event in by_kind["copy"]) / steps),
        sync_fraction=_fraction(union(intervals(waits + waits_too)), window_us),
        sync_calls=len(waits) / steps,
        memory_bound=memory_bound(trace.of("cpu_op"), by_kind["compute"], peak_bandwidth(trace.gpus.get(device))),
        # A kernel's operator may have been called before the window began.
        **kernel_shares(by_kind["compute"], steps, names_by_external_id(trace.of("cpu_op"))),
        kernels=kernel_rows(on_gpu),
        operators=operator_rows(operators, on_gpu),
        memory=memory_samples(trace, device, origin_us=start_us),
        lanes=make_lanes(
            trace,
            on_gpu,
            waits + waits_too,
            (trace.steps[-1].start_us, end_us),
            loaders=loaders,
            communication=exchange_events,
            origin_us=start_us,
        ),
    )


def _busiest_device(on_gpu: Sequence[Event]) -> int:
    """Return the GPU of this rank: a process may touch others, but works on one."""
    time: dict[int, float] = {}
    for event in on_gpu:
        device = event.arguments.get("device", 0)
        number = device if isinstance(device, int) else 0
        time[number] = time.get(number, 0.0) + event.duration_us
    return max(time, key=lambda number: time[number])


def _step_ends(trace: Trace, on_gpu: Sequence[Event]) -> list[float]:
    """Return when the GPU began with the first step, and when it was done with each, in microseconds.

    The host runs ahead of the GPU, so a step on the GPU lies behind the host's. It begins as far behind as the first
    kernel was queued: what the GPU did before, for steps that were not traced, is not in the trace.
    """
    launches = {
        event.arguments.get("correlation"): event
        for event in trace.of("cuda_runtime", "cuda_driver")
        if "correlation" in event.arguments
    }
    ends = [trace.steps[0].start_us]
    launched = [(launches.get(event.arguments.get("correlation"), event), event) for event in on_gpu]
    first = min(launched, key=lambda pair: pair[1].start_us)
    ends[0] += max(0.0, first[1].start_us - first[0].end_us) if first[0] is not first[1] else 0.0
    for number, step in enumerate(trace.steps):
        last = number == len(trace.steps) - 1
        done = [
            event.end_us
            for launch, event in launched
            if step.start_us <= launch.start_us and (last or launch.start_us < step.end_us)
        ]
        ends.append(max([ends[-1], step.end_us, *done]))
    return ends


def _host_copies(copies: Sequence[Event]) -> list[Event]:
    return [event for event in copies if "DtoD" not in event.name]


def _from_pageable(event: Event) -> bool:
    """Kineto writes the kinds of memory into the name: Memcpy HtoD (Pageable -> Device)."""
    return "HtoD" in event.name and "Pageable" in event.name


def _fraction(found: list[Interval], window_us: float) -> float | None:
    return min(1.0, length(found) / window_us) if window_us > 0 else None


# --- both -------------------------------------------------------------------------------------------------------------


def _breakdown(rest: list[Interval], claims: dict[str, list[Interval]], steps: int) -> dict[str, float]:
    """Return seconds of a mean step by what they went to: only what one leaves of the time goes to the next.

    Args:
        rest: The time of all steps, in microseconds.
        claims: When each of the parts is at work.
        steps: How many.
    """
    found = {}
    for name, where in claims.items():
        claimed = union(where)
        found[name] = length(intersect(rest, claimed)) / steps / 1e6
        rest = subtract(rest, claimed)
    return found | {"other": length(rest) / steps / 1e6}


def _marked(trace: Trace, ours: str, torchs: str | None = None) -> list[Event]:
    """Return the annotations of the probe, or torch's own where there are none of ours."""
    annotations = trace.of("user_annotation")
    found = [event for event in annotations if event.name == ours]
    if not found and torchs is not None:
        found = [event for event in annotations if event.name.startswith(torchs)]
    return found


def _host_communication(trace: Trace) -> list[Event]:
    return [event for event in trace.of("user_annotation", "cpu_op") if _HOST_COMMUNICATION.match(event.name)]


def _talks(event: Event) -> bool:
    return _HOST_COMMUNICATION.match(event.name) is not None or _HANDING_OVER.match(event.name) is not None


def _cut(events: Sequence[Event], start_us: float, end_us: float) -> list[Event]:
    """Return what lies between two moments of events, the ends of those that reach beyond cut off."""
    return [
        event
        if start_us <= event.start_us and event.end_us <= end_us
        else replace(event, start_us=max(event.start_us, start_us), end_us=min(event.end_us, end_us))
        for event in events
        if event.start_us < end_us and (event.end_us > start_us or event.start_us >= start_us)
    ]


def _exposed(exchanges: Sequence[Event], computing: list[Interval]) -> tuple[float, ...]:
    """Return the seconds of each exchange, in order, in which nothing computes; shared time is the earlier one's."""
    found, counted_us = [], 0.0
    for event in sorted(exchanges, key=lambda event: (event.start_us, event.end_us)):
        found.append(length(subtract([(max(event.start_us, counted_us), event.end_us)], computing)) / 1e6)
        counted_us = max(counted_us, event.end_us)
    return tuple(found)


def _began(events: Sequence[Event], spans: Sequence[Event], *, inside: bool) -> list[Event]:
    """Return the events that began within any of the spans, or within none of them."""
    covered = union(intervals(spans))
    starts = [start for start, _ in covered]
    places = [bisect_right(starts, event.start_us) - 1 for event in events]
    return [
        event
        for event, place in zip(events, places, strict=True)
        if (place >= 0 and event.start_us < covered[place][1]) == inside
    ]
