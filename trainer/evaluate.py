"""Evaluation over ranks: every sample of a split counts once, at any number of ranks."""

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

# Samples of a batch on a CPU (a GPU's: trainer/data/training_data.py): fixed, so that results do not depend on slots.
EVALUATION_BATCH = 64


@dataclass(frozen=True)
class Evaluation:
    """Loss and metrics of a model on a split, over all ranks."""

    samples: int
    loss: float | None
    """Sum of the task's loss over the sum of its counts; None: not finite."""
    metrics: dict[str, float]
    """By name, those that are finite."""
    headline: Headline
    """The metric that tells how good the model is."""
    directions: dict[str, Direction]
    """Of each metric of the task, by name."""
    reduced: Mapping[str, Metric] = field(default_factory=dict, repr=False, compare=False)
    """The metrics, with the states of all ranks."""

    def named(self, split: str) -> dict[str, float]:
        """Return metrics and loss as a checkpoint has them: SPLIT_NAME."""
        return {f"{split}_{name}": value for name, value in self.values().items()}

    def values(self) -> dict[str, float]:
        """Return metrics and loss by name, those that are finite."""
        return self.metrics if self.loss is None else {**self.metrics, LOSS: self.loss}

    def without_number(self) -> list[str]:
        """Return the names of the metrics, and of the loss, that are not finite."""
        return [name for name in (*self.directions, LOSS) if name not in self.values()]

    def look_up(self, metric: str) -> tuple[float | None, Direction]:
        """Return value and direction of `validation_NAME`, `NAME`, or for an empty name the headline."""
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
    """Evaluate this rank's batches of a split and add the counts of all ranks; None when there is no sample at all.

    Every rank must call this. The model, which may be sharded, is in training mode afterwards.

    Args:
        model: The network.
        task: Of the network.
        batches: Of this rank.
        num_rounds: Batches of the rank that has most.
        device: Of the model.
        config: Names own code that fails.
        numerics: Of the model.
        outcomes: Takes the outputs of each batch.
        rounds: Yields `num_rounds` batches, or fewer where the ranks agree to stop, equally many on all of them.

    Raises:
        ConfigError: A metric of the task cannot be used, or a member fails.
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
    # Samples, and sum and count of the loss. float64: sums of up to 2**53 samples stay exact.
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    with within("example"):
        idle: Batch = map_tensors(task.example(1), lambda tensor: tensor.to(device))
    # Ranks with fewer batches go through the rounds of those with more.
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
