"""Metrics of a task over one evaluation: float64 states, reduced over ranks, and values by name.

torchmetrics is imported where a task makes its metrics, and nowhere else: it takes 1.4 s and 100 MB. A state is a
tensor that is summed, or of which the largest or smallest is taken, or a list of tensors that are joined (`cat`). Sums
of all metrics travel in one all-reduce with those of the loss; lists are gathered by the first rank, in the order of
the split. The first rank alone computes values, and the others are told: all decide by the same numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist

from contracts.artifacts import LOSS, Direction, Headline
from contracts.config import RunConfig
from contracts.errors import ConfigError
from trainer.tasks.load import calling
from trainer.tasks.protocol import Batch, Outputs, Task

if TYPE_CHECKING:
    from torchmetrics import Metric

# Of list states, all metrics and ranks together: they are in memory, and travel to the first rank.
MAX_LIST_BYTES = 64 << 20
_NAME = re.compile(r"[A-Za-z]\w{0,63}")
_RESERVED = (LOSS, "samples")
_PREFIXES = ("validation_", "test_")
Reduction = Literal["sum", "max", "min", "cat"]
Calling = Callable[[str], AbstractContextManager[Any]]
"""Returns what a member of a task is called in (trainer/tasks/load.py, `calling`)."""
HeadlineStates = list[Any]
"""Tensors, and lists of tensors."""


class SplitMetrics:
    """A task's metrics over a split, as one rank sees it; `reduce` adds those of all ranks.

    Args:
        task: The task.
        device: Where the model computes.
        calling: What members of the task are called in.

    Attributes:
        headline: The task's.
        directions: Of each metric, by name.

    Raises:
        ConfigError: A metric is none that can be reduced, or there is no headline among them.
    """

    def __init__(self, task: Task, device: torch.device, calling: Calling = nullcontext) -> None:
        self._task, self._device, self._calling = task, device, calling
        with calling("metrics"):
            self._metrics = _make(task)
        self._states = [state for name, metric in self._metrics.items() for state in _find_states(name, metric)]
        self.directions: dict[str, Direction] = {
            name: "max" if metric.higher_is_better else "min" for name, metric in self._metrics.items()
        }
        self.headline = _find_headline(task, self.directions)
        for state in self._states:
            # float64, counts too: sums stay exact up to 2**53, and quotients of integers would be float32 (_safe_divide
            # of torchmetrics). A metric made of others does not pass it on.
            state.metric.set_dtype(torch.float64)
        for metric in self._metrics.values():
            metric.to(device)
        self._list_bytes = 0
        # Of each list state, its length before and after each batch: what ranks took in turn is joined in turn.
        self._lengths: list[list[int]] = [[0] for _ in self._states]

    def update(self, outputs: Outputs, batch: Batch) -> None:
        """Take in a batch.

        Raises:
            ConfigError: List states are too large.
        """
        with self._calling("update"):
            self._task.update(self._metrics, outputs, batch)
        for number, state in enumerate(self._states):
            if state.reduction == "cat":
                values = state.tensors()
                self._list_bytes += sum(value.nbytes for value in values[self._lengths[number][-1] :])
                self._lengths[number].append(len(values))
        _check_bytes(self._list_bytes)

    def values(self) -> dict[str, float]:
        """Return the metrics of what this process alone took in; one whose value is no finite number is left out."""
        values = {name: _compute(name, metric) for name, metric in self._metrics.items()}
        return {name: value for name, value in values.items() if math.isfinite(value)}

    def take_states(self) -> HeadlineStates:
        """Return the headline's states of the batches since the last call, and begin anew."""
        values = [getattr(state.metric, state.name) for state in self._headline_states()]
        # A list is emptied in place.
        found = [list(value) if isinstance(value, list) else value for value in values]
        for metric in self._metrics.values():
            metric.reset()
        return found

    def headline_of(self, parts: Sequence[HeadlineStates], counts: Sequence[int]) -> float:
        """Return the headline of batches that were taken in before, those of each part as often as `counts` says.

        Args:
            parts: What `take_states` has returned.
            counts: A number for each part.
        """
        metric, drawn = self._metrics[self.headline.metric], [place for place, count in enumerate(counts) if count]
        for place, state in enumerate(self._headline_states()):
            values = [parts[number][place] for number in drawn]
            found: Any
            if state.reduction == "cat":
                found = [value for number, part in zip(drawn, values, strict=True) for value in part * counts[number]]
            elif state.reduction == "sum":
                stacked = torch.stack(values)
                weights = torch.tensor([counts[number] for number in drawn], dtype=stacked.dtype)
                found = torch.tensordot(weights, stacked, dims=1)
            else:
                found = torch.stack(values).amax(0) if state.reduction == "max" else torch.stack(values).amin(0)
            setattr(state.metric, state.name, found)
            state.metric._update_count, state.metric._computed = 1, None
        metric._update_count, metric._computed = 1, None
        return _compute(self.headline.metric, metric)

    def _headline_states(self) -> list[_State]:
        own = set(self._metrics[self.headline.metric].modules())
        return [state for state in self._states if state.metric in own]

    def reduce(self, totals: torch.Tensor) -> tuple[list[float], dict[str, float]]:
        """Return totals over all ranks, and the metrics of all samples; every rank must call this.

        A metric whose value is no finite number is left out.

        Args:
            totals: [n] float64, to be summed; the first is the number of samples.

        Raises:
            ConfigError: List states are too large, or a metric is not one number.
        """
        for state in self._states:
            state.check_shape()
        summed = self._of("sum")
        vector = torch.cat([totals, totals.new_tensor([self._list_bytes]), *(state.flat() for state in summed)])
        dist.all_reduce(vector)
        sums = vector[: len(totals) + 1].tolist()
        _put(summed, vector[len(totals) + 1 :])
        self._reduce_extremes()
        _check_bytes(sums[-1])
        if lists := self._of("cat"):
            self._gather(lists)
        values = totals.new_full((len(self._metrics),), math.nan)
        if dist.get_rank() == 0 and sums[0] > 0:
            with self._calling("metrics"):
                values = totals.new_tensor([_compute(name, metric) for name, metric in self._metrics.items()])
        dist.broadcast(values, src=0)
        named = zip(self._metrics, values.tolist(), strict=True)
        return sums[:-1], {name: value for name, value in named if math.isfinite(value)}

    def _reduce_extremes(self) -> None:
        largest, smallest = self._of("max"), self._of("min")
        if not largest and not smallest:
            return
        # The smallest is the largest of what has the other sign.
        vector = torch.cat([*(state.flat() for state in largest), *(-state.flat() for state in smallest)])
        dist.all_reduce(vector, op=dist.ReduceOp.MAX)
        split = sum(state.flat().numel() for state in largest)
        _put(largest, vector[:split])
        _put(smallest, -vector[split:])

    def _gather(self, lists: list[_State]) -> None:
        own = [
            _by_batch(state, lengths)
            for state, lengths in zip(self._states, self._lengths, strict=True)
            if state.reduction == "cat"
        ]
        gathered: list[list[list[list[torch.Tensor]]]] | None = None
        if dist.get_rank() == 0:
            gathered = [own] * dist.get_world_size()
        dist.gather_object(own, gathered, dst=0)
        for place, state in enumerate(lists if gathered is not None else []):
            by_rank = [of_rank[place] for of_rank in gathered or []]
            # Rank r has the batches r, r + ranks, ...: taken in turn they are in the order of the split.
            rounds = range(max(map(len, by_rank)))
            joined = [batches[number] for number in rounds for batches in by_rank if number < len(batches)]
            setattr(state.metric, state.name, [value.to(self._device) for values in joined for value in values])

    def _of(self, reduction: Reduction) -> list[_State]:
        return [state for state in self._states if state.reduction == reduction]


@dataclass(frozen=True)
class _State:
    """A state of a metric, or of one within it."""

    metric: Metric
    name: str
    reduction: Reduction

    def flat(self) -> torch.Tensor:
        """Return a tensor as [n] float64."""
        found: torch.Tensor = getattr(self.metric, self.name)
        return found.double().flatten()

    def check_shape(self) -> None:
        """Refuse a state that has grown: on a rank without samples it has its first shape.

        Raises:
            ConfigError: It has.
        """
        own, default = getattr(self.metric, self.name), self.metric._defaults[self.name]
        if isinstance(own, torch.Tensor) and isinstance(default, torch.Tensor) and own.numel() != default.numel():
            raise ConfigError(
                f"metrics of the task: state {self.name} of {type(self.metric).__name__} has grown from "
                f"{list(default.shape)} to {list(own.shape)}",
                allowed="states that keep their shape, and lists",
                todo="say the number of classes or outputs where the metric is made, or take another metric",
            )

    def tensors(self) -> list[torch.Tensor]:
        """Return a list."""
        found: list[torch.Tensor] = getattr(self.metric, self.name)
        return found


def _by_batch(state: _State, lengths: list[int]) -> list[list[torch.Tensor]]:
    """Return a list state on the host, cut as batches have added to it."""
    values = state.tensors()
    return [[value.cpu() for value in values[begin:end]] for begin, end in pairwise(lengths)]


def _put(states: list[_State], vector: torch.Tensor) -> None:
    """Write what was reduced into the states that it was made of."""
    for state in states:
        own: torch.Tensor = getattr(state.metric, state.name)
        part, vector = vector[: own.numel()], vector[own.numel() :]
        setattr(state.metric, state.name, part.view(own.shape).to(own.dtype))


def check_metrics(config: RunConfig, task: Task) -> None:
    """Refuse metrics that cannot be used, before anything is trained.

    They are made for it, which takes what importing torchmetrics does. So it is left out where nothing can be wrong:
    the tool's own task, and no metric asked for but its headline and the loss.

    Args:
        config: Sections checkpoint and train.
        task: The task.

    Raises:
        ConfigError: A metric cannot be reduced, or one that is asked for is none of the task's.
    """
    stopping = config.train.early_stopping
    asked = {"checkpoint.best_metric": config.checkpoint.best_metric}
    if stopping is not None:
        asked["train.early_stopping.metric"] = stopping.metric
    names = {field: metric_name(metric, task.headline) for field, metric in asked.items()}
    if not config.task.is_own and not set(names.values()) - {LOSS, task.headline}:
        return
    known = SplitMetrics(task, torch.device("cpu"), partial(calling, config)).directions
    for field, name in names.items():
        if name not in known and name != LOSS:
            there = ", ".join(f"validation_{one}" for one in (*known, LOSS))
            raise ConfigError(
                f"{field} is {asked[field]}, and task {config.task.name} has no metric of that name",
                allowed=there,
                todo=f"set {field} to one of them",
            )


def metric_name(metric: str, headline: str) -> str:
    """Return the name of the metric that a field of the configuration asks for.

    Args:
        metric: checkpoint.best_metric or train.early_stopping.metric; empty: the headline.
        headline: Of the task.
    """
    return metric.removeprefix("validation_") or headline


# --- what metrics may be ----------------------------------------------------------------------------------------------

_TODO = "correct metrics (docs/tasks.md)"


def _make(task: Task) -> Mapping[str, Metric]:
    """Return a task's metrics, having seen that they are metrics, each with a name that can be one.

    Raises:
        ConfigError: They are not.
    """
    found = task.metrics()
    from torchmetrics import Metric, MetricCollection

    if isinstance(found, MetricCollection) or not isinstance(found, Mapping):
        # Metrics of a collection share their states.
        raise ConfigError(
            f"metrics of the task returned a {type(found).__name__}",
            allowed="a dictionary of metrics of torchmetrics by name",
            todo=_TODO,
        )
    for name, metric in found.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _RESERVED or name.startswith(_PREFIXES):
            raise ConfigError(
                f"metrics of the task: {name!r} is no name of a metric",
                allowed="letters, digits and _, 64 at most; not loss or samples, and not validation_ or test_ in front",
                todo=_TODO,
            )
        if not isinstance(metric, Metric):
            raise ConfigError(
                f"metrics of the task: {name} is a {type(metric).__name__}",
                allowed="an object of a class of torchmetrics, or of your own class on top of torchmetrics.Metric",
                todo=_TODO,
            )
        if metric.higher_is_better is None:
            raise ConfigError(
                f"metrics of the task: {type(metric).__name__} {name} does not say whether higher is better",
                allowed="a class with higher_is_better = True or False",
                todo="set higher_is_better in a class on top of it",
            )
        if not any(part._reductions for part in metric.modules() if isinstance(part, Metric)):
            raise ConfigError(
                f"metrics of the task: {type(metric).__name__} {name} has no state that is added up over ranks",
                allowed="metrics that keep what they count in states of torchmetrics",
                todo="register what it keeps with add_state(..., dist_reduce_fx='sum')",
            )
    return found


def _find_states(name: str, metric: Metric) -> Iterator[_State]:
    """Yield the states of a metric, and of those within it.

    Raises:
        ConfigError: One is of a kind that is not reduced over ranks.
    """
    from torchmetrics import Metric
    from torchmetrics.utilities.data import dim_zero_cat, dim_zero_max, dim_zero_min, dim_zero_sum

    known: dict[object, Reduction] = {
        dim_zero_sum: "sum",
        dim_zero_max: "max",
        dim_zero_min: "min",
        dim_zero_cat: "cat",
    }
    for part in metric.modules():
        if not isinstance(part, Metric):
            continue
        kind = type(part).__name__
        if part.sync_on_compute:
            raise ConfigError(
                f"metrics of the task: {kind} {name} would add up over ranks by itself",
                allowed="metrics made with sync_on_compute=False",
                todo=f"make it so: {kind}(..., sync_on_compute=False, validate_args=False)",
            )
        for state, function in part._reductions.items():
            reduction, is_list = known.get(function), isinstance(getattr(part, state), list)
            if reduction is None or (reduction == "cat") != is_list:
                shown = getattr(function, "__name__", str(function)).removeprefix("dim_zero_")
                raise ConfigError(
                    f"metrics of the task: state {state} of {kind} {name}, a {'list' if is_list else 'tensor'}, is "
                    f"reduced over ranks by {shown}",
                    allowed="tensors with dist_reduce_fx sum, max or min, and lists with cat",
                    todo="take another metric: a mean is a sum and a count",
                )
            yield _State(part, state, reduction)


def _find_headline(task: Task, directions: Mapping[str, Direction]) -> Headline:
    """Return the metric that the task names as its headline.

    Raises:
        ConfigError: It has none of that name.
    """
    name = task.headline
    if name == LOSS:
        return Headline(metric=LOSS, direction="min")
    if name not in directions:
        raise ConfigError(
            f"headline of the task is {name!r}, which is none of its metrics",
            allowed=", ".join((*directions, LOSS)),
            todo="correct headline (docs/tasks.md)",
        )
    return Headline(metric=name, direction=directions[name])


def _compute(name: str, metric: Metric) -> float:
    value = metric.compute()
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        shown = f"a tensor {list(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
        raise ConfigError(
            f"metrics of the task: {type(metric).__name__} {name} came to {shown}",
            allowed="one number",
            todo="take an average, or one metric for each number",
        )
    return float(value)


def _check_bytes(count: float) -> None:
    if count > MAX_LIST_BYTES:
        raise ConfigError(
            f"list states of metrics have more than {MAX_LIST_BYTES >> 20} MiB over all ranks",
            allowed=f"{MAX_LIST_BYTES >> 20} MiB",
            todo="take a metric that counts, such as one with thresholds, or a smaller split",
        )
