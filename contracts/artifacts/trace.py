"""Summary of kineto traces: plain numbers by rank, from which rules, the profile report and its page are made.

The profile stage leaves them beside its report as SUMMARY_NAME, a JSON list with one entry per rank. Keys that this
version does not know are left out when it is read: it is only shown, and an older or newer release may have others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache

from pydantic import TypeAdapter

SUMMARY_NAME = "trace-summary.json"


@dataclass(frozen=True)
class KernelRow:
    """All runs of one GPU kernel in the traced steps."""

    name: str
    category: str
    """compute, copy, communication, or memset."""
    calls: int
    total_s: float
    occupancy_fraction: float | None = None
    """kineto's estimate, weighted by time."""
    blocks_per_sm: float | None = None

    @property
    def mean_us(self) -> float:
        """Mean duration of a run, in microseconds."""
        return self.total_s / self.calls * 1e6


@dataclass(frozen=True)
class OperatorRow:
    """All calls of one operator of torch in the traced steps."""

    name: str
    calls: int
    total_s: float
    """On the CPU, with the operators that it calls."""
    self_s: float
    """Without them."""
    device_s: float | None = None
    """Time of the kernels that it launched itself; None: no GPU."""


@dataclass(frozen=True)
class MemorySample:
    """The allocator's state at a moment."""

    at_s: float
    """From the start of the trace."""
    allocated_bytes: int
    reserved_bytes: int | None = None


@dataclass(frozen=True)
class Span:
    """Something that took time, for the timeline."""

    name: str
    category: str
    """step, operator, kernel, copy, communication, wait, loader, or annotation."""
    start_s: float
    """From the start of the trace."""
    duration_s: float


@dataclass(frozen=True)
class Lane:
    """A row of the timeline: a thread of the host, or a stream of the GPU."""

    name: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class TraceSummary:
    """What one rank's trace says about its steps; None: this trace cannot tell."""

    rank: int
    device: str
    """gpu or cpu."""
    gpu_name: str | None
    steps: int
    step_s: float
    """Median duration of a step, in seconds."""
    breakdown_s: dict[str, float] = field(default_factory=dict)
    """Seconds of a mean step by what they went to, disjoint, adding up to the mean step. With a GPU: kernels,
    communication (exposed), copies (exposed), loader (waiting for data with the GPU idle), other. Without one: loader,
    forward, backward, optimizer, communication, other."""
    gpu_busy_fraction: float | None = None
    occupancy_fraction: float | None = None
    communication_fraction: float | None = None
    """Exposed: no compute kernel runs meanwhile."""
    overlap_fraction: float | None = None
    """Exchange beside which something computes."""
    exchanges_s: tuple[float, ...] = ()
    """Seconds of each exchange in which nothing computes, in order: of ranks the same ones stand at the same place."""
    exposed_copy_fraction: float | None = None
    pageable_copies: int | None = None
    """In a step."""
    sync_fraction: float | None = None
    sync_calls: float | None = None
    """In a step."""
    kernels_per_step: float | None = None
    mean_kernel_us: float | None = None
    top10_kernel_fraction: float | None = None
    copy_kernel_fraction: float | None = None
    tensor_core_fraction: float | None = None
    """Share of kernel time in kernels whose names say that they use tensor cores."""
    memory_bound: dict[str, float] | None = None
    """Operators that the GPU's memory limits, with their shares of kernel time (trainer/profiling/roofline.py)."""
    kernels: tuple[KernelRow, ...] = ()
    operators: tuple[OperatorRow, ...] = ()
    memory: tuple[MemorySample, ...] = ()
    lanes: tuple[Lane, ...] = ()
    """The last traced step, or as much of it as a page can show."""


@cache
def summaries_type() -> TypeAdapter[list[TraceSummary]]:
    """Return the type of the file SUMMARY_NAME, which validates what was read."""
    return TypeAdapter(list[TraceSummary])


def summaries_to_json(summaries: Sequence[TraceSummary]) -> bytes:
    """Return the content of the file SUMMARY_NAME."""
    return json.dumps([asdict(one) for one in summaries]).encode()
