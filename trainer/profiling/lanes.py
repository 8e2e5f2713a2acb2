"""The timeline of one step: what each thread of the host and each stream of the GPU did, as much as a page can show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from contracts.artifacts.trace import Lane, MemorySample, Span
from trainer.profiling.kernels import category_of
from trainer.profiling.kineto import STEP_PREFIX, Event, Trace
from trainer.profiling.operators import calls

# A span of a timeline is some 100 bytes of a page that stays under a megabyte.
MAX_SPANS = 1500
MAX_MEMORY_SAMPLES = 400
LONGEST_NAME = 120


def make_lanes(
    trace: Trace,
    on_gpu: Sequence[Event],
    waits: Sequence[Event],
    window: tuple[float, float],
    *,
    loaders: Sequence[Event],
    communication: Sequence[Event],
    origin_us: float,
) -> tuple[Lane, ...]:
    """Return the lanes of a window of time: the host's first, spans of a lane disjoint and in order.

    Args:
        trace: For the host's threads.
        on_gpu: Kernels, copies and memsets.
        waits: Where the host waited for the GPU.
        window: Start and end in microseconds.
        loaders: Waiting for the loader.
        communication: Exchange with other ranks that the host does.
        origin_us: What spans count from.
    """
    named: dict[tuple[str, str], list[tuple[Event, str]]] = defaultdict(list)
    main = trace.steps[0].thread
    for event in trace.of("user_annotation"):
        if event.name.startswith("shardline: ") or event.name.startswith(STEP_PREFIX):
            where = "steps" if event.name.startswith(STEP_PREFIX) else "parts of the step"
            category = "step" if where == "steps" else "loader" if event in loaders else "annotation"
            named[where, ""].append((event, category))
    exchanged = {id(event) for event in communication}
    for call in calls(trace.of("cpu_op")):
        # Only what nothing else called: what is nested lies below it, and does not fit a row.
        if call.depth == 0 and id(call.event) not in exchanged:
            key = ("host", "main thread" if call.event.thread == main else trace_thread(trace, call.event))
            named[key].append((call.event, "operator"))
    for event in communication:
        if event.category != "kernel":
            named["host", f"exchange, {trace_thread(trace, event)}"].append((event, "communication"))
    for event in waits:
        named["host", "waiting for the GPU"].append((event, "wait"))
    for event in on_gpu:
        kind = category_of(event)
        category = {"compute": "kernel", "memset": "kernel"}.get(kind, kind)
        named["GPU", f"stream {event.arguments.get('stream', event.thread)}"].append((event, category))
    clipped = {
        f"{kind}: {name}" if name else kind: _clip(events, window, origin_us) for (kind, name), events in named.items()
    }
    return _bounded({name: spans for name, spans in clipped.items() if spans})


def trace_thread(trace: Trace, event: Event) -> str:
    """Return how to call a thread of the host: by its name, which begins with its number."""
    return trace.thread_names.get((event.process, event.thread), "") or f"thread {event.thread}"


def _clip(events: Iterable[tuple[Event, str]], window: tuple[float, float], origin_us: float) -> list[Span]:
    spans: list[Span] = []
    covered = window[0]
    for event, category in sorted(events, key=lambda pair: (pair[0].start_us, -pair[0].end_us)):
        start, end = max(event.start_us, covered), min(event.end_us, window[1])
        if end > start:
            spans.append(Span(event.name[:LONGEST_NAME], category, (start - origin_us) / 1e6, (end - start) / 1e6))
            covered = end
    return spans


def _bounded(lanes: dict[str, list[Span]]) -> tuple[Lane, ...]:
    """Leave the longest spans, where there are more than a page can show."""
    every = sorted((span.duration_s for spans in lanes.values() for span in spans), reverse=True)
    least = every[MAX_SPANS - 1] if len(every) > MAX_SPANS else 0.0
    left = MAX_SPANS
    bounded = []
    for name, spans in lanes.items():
        kept = [span for span in spans if span.duration_s >= least][:left]
        left -= len(kept)
        if kept:
            bounded.append(Lane(name, tuple(kept)))
    return tuple(bounded)


def memory_samples(trace: Trace, device: int | None, *, origin_us: float) -> tuple[MemorySample, ...]:
    """Return the allocator's state over time, thinned out with its peaks kept.

    Args:
        trace: For its [memory] events, which the profiler writes with profile_memory=True.
        device: Number of the GPU of whose allocator they are; None: the CPU's.
        origin_us: What times count from.
    """
    # torch's DeviceType: 0 is the CPU, 1 CUDA.
    wanted = 0 if device is None else 1
    found = []
    for event in trace.memory:
        given = event.arguments
        allocated, reserved = given.get("Total Allocated"), given.get("Total Reserved")
        if given.get("Device Type") != wanted or (device is not None and given.get("Device Id") != device):
            continue
        if isinstance(allocated, int | float):
            held = int(reserved) if device is not None and isinstance(reserved, int | float) else None
            found.append(MemorySample((event.start_us - origin_us) / 1e6, int(allocated), held))
    if len(found) <= MAX_MEMORY_SAMPLES:
        return tuple(found)
    size = -(-len(found) // MAX_MEMORY_SAMPLES)
    groups = (found[at : at + size] for at in range(0, len(found), size))
    return tuple(max(group, key=lambda sample: sample.allocated_bytes) for group in groups)
