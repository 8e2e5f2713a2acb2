"""Distributed evaluation: every sample of a split counts once, for any number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from contracts.artifacts import LOSS, Direction, Headline
from contracts.config import RunConfig
from trainer.data.device import map_tensors
from trainer.data.evaluation import EvaluationBatch
from trainer.model.numerics import Numerics
from trainer.parallel.spread import release_gathered
from trainer.predictions import OutcomeCollector
from trainer.tasks.loading import calling, running_network
from trainer.tasks.metrics import SplitMetrics
from trainer.tasks.on_device import checked_loss
from trainer.tasks.task import Batch, Mode, Outputs, Task

if TYPE_CHECKING:
    from torchmetrics import Metric

# Batch size on a CPU, fixed so that results do not depend on slots (on a GPU: trainer/data/training_data.py).
EVALUATION_BATCH = 64


@dataclass(frozen=True)
class Evaluation:
    """Loss and metrics of a model on a split, over all ranks."""

    samples: int
    loss: float | None
    """Sum of the task's loss over the sum of its counts; None: not finite."""
    metrics: dict[str, float]
    """Finite metrics by name."""
    headline: Headline
    """The main metric."""
    directions: dict[str, Direction]
    """Of each metric of the task, by name."""
    reduced: Mapping[str, Metric] = field(default_factory=dict, repr=False, compare=False)
    """Metric objects reduced over ranks."""

    def named(self, split: str) -> dict[str, float]:
        """Return metrics and loss with checkpoint names: SPLIT_NAME."""
        return {f"{split}_{name}": value for name, value in self.values().items()}

    def values(self) -> dict[str, float]:
        """Return finite metrics and loss by name."""
        return self.metrics if self.loss is None else {**self.metrics, LOSS: self.loss}

    def without_number(self) -> list[str]:
        """Return the names of non-finite metrics, and of the loss."""
        return [name for name in (*self.directions, LOSS) if name not in self.values()]

    def look_up(self, metric: str) -> tuple[float | None, Direction]:
        """Return value and direction of metric `validation_NAME` or `NAME`; an empty name is the headline."""
        name = metric.removeprefix("validation_") or self.headline.metric
        return self.values().get(name), "min" if name == LOSS else self.directions.get(name, "max")


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    batches: Iterator[EvaluationBatch],
    num_rounds: int,
    device: torch.device,
    *,
    config: RunConfig,
    numerics: Numerics,
    outcomes: OutcomeCollector | None = None,
    rounds: Callable[[Iterator[EvaluationBatch], int], Iterator[EvaluationBatch]] = islice,
) -> Evaluation | None:
    """Evaluate this rank's batches and reduce over ranks; None if the split is empty.

    Every rank must call this. The model may be sharded; it is in training mode afterwards. `num_rounds` is the largest
    number of batches of any rank. `rounds` yields as many, or fewer, but equally many on all ranks, if they agree to
    stop. `config` names user code in errors.

    Raises:
        ConfigError: A metric or a method of the task fails.
    """
    within = partial(calling, config)
    mode = Mode(training=False, memory_format=numerics.memory_format)
    names = tuple(task.signature.inputs)

    def forward(batch: Batch) -> Outputs:
        inputs = [numerics.lay_out_input(batch[name]) for name in names]
        with numerics.evaluation_autocast(device), running_network(config):
            return model(*inputs)

    metrics = SplitMetrics(task, device, within)
    model.eval()
    is_sharded = any(isinstance(module, FSDPModule) for module in model.modules())
    # Samples, loss sum and loss count; float64 is exact up to 2**53 samples.
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    with within("example"):
        idle: Batch = map_tensors(task.example(1), lambda tensor: tensor.to(device))
    # Ranks with fewer batches run idle rounds.
    for evaluated in rounds(chain(batches, repeat(EvaluationBatch(idle, range(0)))), num_rounds):
        batch = evaluated.tensors
        if not evaluated.places:
            if is_sharded:
                # A forward pass gathers parameters from all ranks.
                forward(batch)
            continue
        outputs = map_tensors(forward(batch), _as_float32)
        with within("loss"):
            loss_sum, count = checked_loss(task.loss(outputs, batch, mode), config)
        totals[0] += len(evaluated.places)
        totals[1] += loss_sum.double()
        totals[2] += count
        metrics.update(outputs, batch)
        if outcomes is not None:
            outcomes.add(outputs, evaluated)
    release_gathered(model)
    model.train()
    dist.all_reduce(totals)
    samples, total, counted = totals.tolist()
    if samples == 0:
        return None
    values, mean = metrics.reduce(), total / counted if counted else math.nan
    return Evaluation(
        int(samples),
        mean if math.isfinite(mean) else None,
        values,
        metrics.headline,
        metrics.directions,
        metrics.by_name,
    )


def _as_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
