"""The proof of an export: what ships, how near it is to torch, how right, how fast, and which gates say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from contracts.artifacts import EngineEntry, Gate, Latency
from pages.rendering import View
from pages.stage import First


@dataclass(frozen=True)
class Precision:
    """A precision that was tried, and torch."""

    name: str
    metric: float | None
    relative_error: float | None
    min_cosine: float | None
    top1_agreement: float | None
    fastest: str
    """Latency with batch and runner; empty: not measured."""
    gates: tuple[int, int]
    """Passed, of how many."""


@dataclass(frozen=True)
class SharedMetric:
    """A metric that stands for several measurements."""

    name: str
    measurements: int
    runner: str
    device: str


@dataclass(frozen=True)
class ExportSummary(View):
    """The summary of an export."""

    template: ClassVar[str] = "stage/export.md.j2"
    precision: str
    verdict: str
    served: str
    """What is served, in words; empty: not known."""
    unproven: str
    asked_precision: str
    failed: First[tuple[str, str]]
    """Precisions that failed their gates, and why."""
    metric: str
    unit: str
    """Of the metric: a filter of pages/quantities.py."""
    precisions: First[Precision]
    samples: int
    engines: First[tuple[EngineEntry, str, str]]
    """Each with the names of its GPUs, and the status of the gate that ran it."""
    latency: First[Latency]
    shared: First[SharedMetric]
    left_out: First[tuple[str, str]]
    """Runners that were not measured, and why."""
    gates: First[Gate]
