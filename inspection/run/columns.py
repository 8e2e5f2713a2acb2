"""Parameters and metrics of a run, by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from inspection.run.door import as_object

Value = int | float | str
# Name in lists, and where the configuration has it.
_PARAMETERS = {
    "network": ("model", "architecture"),
    "weights": ("model", "weights"),
    "task": ("task", "name"),
    "data": ("sharding", "source"),
    "image_size": ("data", "image_size"),
    "optimizer": ("train", "optimizer"),
    "learning_rate": ("train", "learning_rate"),
    "schedule": ("train", "schedule"),
    "weight_decay": ("train", "weight_decay"),
    "global_batch_size": ("train", "global_batch_size"),
    "epochs": ("train", "epochs"),
    "precision": ("train", "precision"),
    "seed": ("run", "seed"),
}
_LONGEST, _MOST_METRICS = 120, 50


def find_parameters(config: Mapping[str, Any]) -> dict[str, Value]:
    """Return the parameters that a configuration of today's keys sets; those that are null or empty are left out."""
    found: dict[str, Value] = {}
    for name, (section, key) in _PARAMETERS.items():
        value = as_object(config.get(section)).get(key)
        if isinstance(value, str) and value:
            found[name] = value[:_LONGEST]
        elif _is_number(value):
            found[name] = value
    # Of other tasks it is a default that nothing reads.
    if not str(found.get("task", "image")).startswith("image") and ":" not in str(found["task"]):
        found.pop("image_size", None)
    return found


def find_metrics(metrics: object) -> dict[str, float]:
    """Return the metrics that are numbers."""
    found = {str(name)[:_LONGEST]: float(value) for name, value in as_object(metrics).items() if _is_number(value)}
    return dict(list(found.items())[:_MOST_METRICS])


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
