"""What ships, and why one may trust it: precisions tried, parity, metrics, gates, engines, latency, verifications."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pages.rendering import View


@dataclass(frozen=True)
class Tried:
    """A precision that was tried."""

    precision: str
    outcome: str
    word: str
    reason: str
    kept_fp32: tuple[str, ...]
    """The first of the nodes that were kept in fp32."""
    num_kept: int


@dataclass(frozen=True)
class ParityRow:
    """How far a graph or an engine is from torch."""

    key: str
    name: str
    state: str
    ran: str
    relative_error: float | None
    min_cosine: float | None
    top1_agreement: float | None
    has_few_answers: bool
    samples: int | None


@dataclass(frozen=True)
class MetricRow:
    """The headline metric in a precision."""

    name: str
    value: float
    drop: float | None
    """From torch; positive is worse. None: not known, or it is torch."""
    coverage: tuple[tuple[str, float], ...]
    """What of the graph is in it, as shares."""


@dataclass(frozen=True)
class GateRow:
    """What an export must meet, and what was found."""

    name: str
    precision: str
    status: str
    limited: tuple[tuple[str, str], ...]
    """Figures in words, each with its limit."""
    figures: tuple[str, ...]
    """Others in words."""
    ran: str
    reason: str


@dataclass(frozen=True)
class Gates:
    """A table of gates."""

    id: str
    caption: str
    rows: tuple[GateRow, ...]
    left_out: str


@dataclass(frozen=True)
class LatencyRow:
    """How long a batch takes."""

    runner: str
    precision: str
    device: str
    batch: int
    p50_ms: float
    p90_ms: float
    p99_ms: float | None
    samples_per_s: float


@dataclass(frozen=True)
class Latencies:
    """A table of latencies."""

    id: str
    caption: str
    rows: tuple[LatencyRow, ...]
    left_out: str


@dataclass(frozen=True)
class EngineRow:
    """An engine for a compute capability."""

    target: str
    proof: str
    gpus: str
    builder: str
    bytes: int
    batches: tuple[int, int, int]
    build_s: float


@dataclass(frozen=True)
class ExportSection(View):
    """The section on the export."""

    template: ClassVar[str] = "run/export.html.j2"
    title: str
    verdict: str
    served: str
    """What is served, in words; empty: not known."""
    nothing_proves: tuple[str, ...]
    """What nothing proves; where all of it is not proven."""
    not_shown: tuple[str, ...]
    """Of what is served."""
    engines_not_run: tuple[str, ...]
    precision: str
    asked_precision: str
    metric: str
    metric_title: str
    unit: str
    """Of the metric: a filter of pages/quantities.py."""
    is_share: bool
    shipped: float | None
    reference: float | None
    """Torch's."""
    samples: int
    gates_passed: int
    num_gates: int
    other_gates: tuple[tuple[int, str], ...]
    """How many did not pass, by status."""
    num_engines: int
    builders: tuple[str, ...]
    tried: tuple[Tried, ...]
    parity: tuple[ParityRow, ...]
    parity_left_out: str
    metrics: tuple[MetricRow, ...]
    gates: Gates
    latency: Latencies | None
    not_measured: tuple[tuple[str, str], ...]
    """Runners, and why they were not measured."""
    engines: tuple[EngineRow, ...]
    engines_left_out: str
    verifications: tuple[tuple[Gates, Latencies | None], ...]
    registration: tuple[tuple[str, str], ...]
