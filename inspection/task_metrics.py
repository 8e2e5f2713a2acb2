"""Formatting of metrics by task: percent for shares, intervals for proportions."""

from __future__ import annotations

from collections.abc import Callable

from contracts.artifacts.classification import TASKS as CLASSIFICATIONS
from contracts.artifacts.multilabel import TASKS as SEVERAL_LABELS
from inspection.pages.quantities import exact_percent, metric_number

# Metrics in the range of 0 to 1.
_SHARES = {
    **dict.fromkeys(CLASSIFICATIONS, ("accuracy", "f1_macro", "recall_macro")),
    **dict.fromkeys(SEVERAL_LABELS, ("average_precision", "f1_macro", "f1_micro")),
}


def is_share(task: str, name: str) -> bool:
    """Return whether a metric is shown in percent.

    Args:
        task: Name of the task.
        name: Of the metric, with or without a prefix such as `validation_` or `test/`.
    """
    return any(name == share or name.endswith((f"_{share}", f"/{share}")) for share in _SHARES.get(task, ()))


def is_proportion(task: str, name: str) -> bool:
    """Return whether a metric is a share of independent samples, with a binomial interval."""
    return name == "accuracy" and task in CLASSIFICATIONS


def show_metric(task: str, name: str) -> Callable[[float], str]:
    """Return a function that formats a metric: in percent for a share, else as a number."""
    return exact_percent if is_share(task, name) else metric_number
