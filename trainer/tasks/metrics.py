"""Metrics of a task over one evaluation: states in float64, added over ranks by torchmetrics, and values by name.

torchmetrics takes 1.4 s and 100 MB, and is imported only where a task makes its metrics.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

from contracts.artifacts import LOSS, Direction, Headline
from contracts.config import RunConfig
from contracts.errors import ConfigError
from trainer.tasks.loading import calling
from trainer.tasks.task import Batch, Outputs, Task

if TYPE_CHECKING:
    from torchmetrics import Metric

_NAME = re.compile(r"(?!(loss|samples)$|validation_|test_)[A-Za-z]\w{0,63}")
Calling = Callable[[str], AbstractContextManager[Any]]
"""Returns the context that a member of a task is called in (trainer/tasks/loading.py, `calling`)."""


class SplitMetrics:
    """A task's metrics over the part of a split that one rank evaluates; `reduce` adds those of all ranks.

    Attributes:
        by_name: The metrics.
        directions: Of each metric, by name.
        headline: The task's.

    Raises:
        ConfigError: A metric cannot be reduced over ranks, or the headline is not one of them.
    """

    def __init__(self, task: Task, device: torch.device, calling: Calling = nullcontext) -> None:
        self._task, self._device, self._calling = task, device, calling
        with calling("metrics"):
            self.by_name = _checked(task.metrics())
        for metric in self.by_name.values():
            for part in metric_parts(metric):
                # `reduce` syncs on all ranks, and the first one computes. `compute` must not undo the sync:
                # `calibrate` and `report` read the states of all ranks.
                part.sync_on_compute = part._to_sync = part._should_unsync = False
                # Counts too: sums stay exact up to 2**53, and torchmetrics divides integers in float32.
                part.set_dtype(torch.float64)
            metric.to(device)
        self.directions: dict[str, Direction] = {
            name: "max" if metric.higher_is_better else "min" for name, metric in self.by_name.items()
        }
        if task.headline not in (*self.directions, LOSS):
            raise ConfigError(
                f"headline of the task is {task.headline!r}, which is not one of its metrics",
                allowed=", ".join((*self.directions, LOSS)),
                todo="correct headline (docs/tasks.md)",
            )
        self.headline = Headline(metric=task.headline, direction=self.directions.get(task.headline, "min"))

    def update(self, outputs: Outputs, batch: Batch) -> None:
        """Add a batch."""
        with self._calling("update"):
            self._task.update(self.by_name, outputs, batch)

    def values(self) -> dict[str, float]:
        """Return the finite values of the metrics by name.

        Raises:
            ConfigError: A metric is not one number.
        """
        with self._calling("metrics"):
            values = {name: metric_value(metric) for name, metric in self.by_name.items()}
        return {name: value for name, value in values.items() if math.isfinite(value)}

    def reduce(self) -> dict[str, float]:
        """Add the states of all ranks, and return `values` of the first one; all ranks call this."""
        for metric in self.by_name.values():
            for part in metric_parts(metric):
                _check_shapes(part)
                part.sync()
        # One rank computes, so that all ranks decide by the same numbers.
        values = self.values() if dist.get_rank() == 0 else {}
        vector = torch.tensor([values.get(name, math.nan) for name in self.by_name], dtype=torch.float64)
        vector = vector.to(self._device)
        dist.broadcast(vector, src=0)
        named = zip(self.by_name, vector.tolist(), strict=True)
        return {name: value for name, value in named if math.isfinite(value)}


def metric_parts(metric: Metric) -> Iterator[Metric]:
    """Yield a metric, and the metrics inside it."""
    from torchmetrics import Metric

    yield from (part for part in metric.modules() if isinstance(part, Metric))


def metric_value(metric: Metric) -> float:
    """Compute a metric.

    Raises:
        ConfigError: It is not one number.
    """
    value = metric.compute()
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        shown = f"a tensor {list(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
        raise ConfigError(
            f"metrics of the task: {type(metric).__name__} returned {shown}",
            allowed="one number",
            todo="take an average, or one metric for each number",
        )
    return float(value)


def check_metrics(config: RunConfig, task: Task) -> None:
    """Refuse invalid metrics, and unknown metric names in the configuration, before training.

    Skipped for built-in tasks if only headline and loss are named, since importing torchmetrics takes time.

    Raises:
        ConfigError: A metric cannot be reduced over ranks, or the task has no metric of a name.
    """
    stopping = config.train.early_stopping
    fields = {"checkpoint.best_metric": config.checkpoint.best_metric}
    if stopping is not None:
        fields["train.early_stopping.metric"] = stopping.metric
    names = {field: metric_name(metric, task.headline) for field, metric in fields.items()}
    if not config.task.is_own and not set(names.values()) - {LOSS, task.headline}:
        return
    available = (*SplitMetrics(task, torch.device("cpu"), partial(calling, config)).directions, LOSS)
    for field, name in names.items():
        if name not in available:
            raise ConfigError(
                f"{field} is {fields[field]}, and task {config.task.name} has no metric of that name",
                allowed=", ".join(f"validation_{metric}" for metric in available),
                todo=f"set {field} to one of them",
            )


def metric_name(metric: str, headline: str) -> str:
    """Return the metric's name from a field of the configuration; an empty field means the headline."""
    return metric.removeprefix("validation_") or headline


def _checked(metrics: object) -> dict[str, Metric]:
    """Return a task's metrics.

    Raises:
        ConfigError: They are no metrics by name, or keep something else than sums, maxima and minima.
    """
    if fault := next(_faults(metrics), ""):
        raise ConfigError(
            f"metrics of the task: {fault}",
            allowed="a dictionary of metrics of torchmetrics by name, each with higher_is_better = True or False, and "
            "states that are tensors with dist_reduce_fx sum, max or min: no lists; a mean is a sum and a count",
            todo="correct metrics (docs/tasks.md); of torchmetrics take a metric that counts, with thresholds=...",
        )
    return dict(cast("Mapping[str, Metric]", metrics))


def _faults(metrics: object) -> Iterator[str]:
    """Yield the faults that make metrics unusable."""
    from torchmetrics import Metric
    from torchmetrics.utilities.data import dim_zero_max, dim_zero_min, dim_zero_sum

    # A MetricCollection, whose metrics share states, is no Mapping.
    if not isinstance(metrics, Mapping):
        yield f"returned a {type(metrics).__name__}"
        return
    for name, metric in metrics.items():
        kind = f"{type(metric).__name__} {name}"
        if not isinstance(metric, Metric):
            yield f"{kind} is not a torchmetrics.Metric"
            continue
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            yield f"{name!r} is no name: letters, digits and _, not loss or samples, nor validation_ or test_ in front"
        if metric.higher_is_better is None:
            yield f"{kind} does not say whether higher is better"
        states = [(state, part) for part in metric_parts(metric) for state in part._reductions]
        if not states:
            yield f"{kind} has no state"
        for state, part in states:
            is_added = part._reductions[state] in (dim_zero_sum, dim_zero_max, dim_zero_min)
            if not is_added or not isinstance(part._defaults[state], torch.Tensor):
                yield f"{kind} keeps {state} as a list, or as something else than a sum, maximum or minimum"


def _check_shapes(part: Metric) -> None:
    """Refuse a state with a new shape, which ranks without samples would not have.

    Raises:
        ConfigError: A state has a new shape.
    """
    for name, default in part._defaults.items():
        shapes = [list(tensor.shape) for tensor in (default, getattr(part, name))]  # type: ignore[union-attr]
        if shapes[0] != shapes[1]:
            raise ConfigError(
                f"metrics of the task: state {name} of {type(part).__name__} has grown from {shapes[0]} to {shapes[1]}",
                allowed="states that keep their shape",
                todo="pass the number of classes or outputs to the metric's constructor, or use another metric",
            )
