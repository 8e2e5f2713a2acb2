"""Traces some steps of a configuration by torch.profiler, and counts what a trace does not show."""

from __future__ import annotations

from typing import Any

from contracts.artifacts import Settings
from trainer.profiling.bench import Bench


def trace(bench: Bench, settings: Settings, steps: int, folder: str) -> Any:
    raise NotImplementedError
