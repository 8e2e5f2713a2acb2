"""Evaluation over ranks: every sample of a split counts once, at any number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from contracts.artifacts import LOSS, Direction, Headline
from contracts.config import RunConfig
from trainer.data.device import map_tensors
from trainer.model.numerics import Numerics
from trainer.parallel.spread import release_gathered
from trainer.tasks.load import calling, running_network
from trainer.tasks.loss import checked_loss
from trainer.tasks.metrics import Calling, SplitMetrics
from trainer.tasks.optional import SplitCollector
from trainer.tasks.protocol import Batch, Mode, Outputs, Task

# Samples of a batch on a CPU (a GPU's: trainer/data/training_data.py): fixed, so that results do not depend on slots.
EVALUATION_BATCH = 64

Placed = tuple[Batch, range]
"""A batch as `to_model` returns it, and the places of its samples in the split."""


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
    batches: Iterator[Placed],
    num_rounds: int,
    device: torch.device,
    *,
    report: SplitCollector | None = None,
    numerics: Numerics | None = None,
    rounds: Callable[[Iterator[Placed], int], Iterator[Placed]] = islice,
    config: RunConfig | None = None,
) -> Evaluation | None:
    """Evaluate this rank's batches of a split and add the counts of all ranks; None when there is no sample at all.

    Every rank must call this. The model is in evaluation mode inside and in training mode afterwards.

    Args:
        model: The network; it may be sharded.
        task: Of the network.
        batches: Of this rank.
        num_rounds: Batches of the rank that has most.
        device: Of the model.
        report: Takes the outputs of each batch.
        numerics: Of the model; unset: float32.
        rounds: Yields `num_rounds` batches, or fewer where the ranks agree to stop, equally many on all of them.
        config: To say where own code failed.

    Raises:
        ConfigError: A metric of the task cannot be used, or a member fails.
    """
    within: Calling = nullcontext if config is None else partial(calling, config)
    mode = Mode(training=False, memory_format=torch.contiguous_format if numerics is None else numerics.memory_format)
    names = tuple(task.signature.inputs)

    def forward(batch: Batch) -> Outputs:
        inputs = [batch[name] if numerics is None else numerics.lay_out_input(batch[name]) for name in names]
        with (
            nullcontext() if numerics is None else numerics.evaluation_autocast(device),
            nullcontext() if config is None else running_network(config),
        ):
            return model(*inputs)

    metrics = SplitMetrics(task, device, within)
    model.eval()
    is_sharded = any(isinstance(module, FSDPModule) for module in model.modules())
    # Samples, and sum and count of the loss. float64: sums of up to 2**53 samples stay exact.
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    with within("example"):
        idle: Batch = map_tensors(task.example(1), lambda tensor: tensor.to(device))
    # Ranks with fewer batches go through the rounds of those with more.
    for batch, places in rounds(chain(batches, repeat((idle, range(0)))), num_rounds):
        if not places:
            if is_sharded:
                # A forward pass gathers parameters from all ranks.
                forward(batch)
            continue
        outputs = map_tensors(forward(batch), _as_float32)
        with within("loss"):
            found = task.loss(outputs, batch, mode)
            loss, count = found if config is None else checked_loss(found, config)
        totals[0] += len(places)
        totals[1] += loss.double()
        totals[2] += count
        metrics.update(outputs, batch)
        if report is not None:
            with within("report"):
                report.add(outputs, batch, first_place=places.start)
    release_gathered(model)
    model.train()
    (total, loss_sum, loss_count), values = metrics.reduce(totals)
    if total == 0:
        return None
    mean = loss_sum / loss_count if loss_count else math.nan
    return Evaluation(int(total), mean if math.isfinite(mean) else None, values, metrics.headline, metrics.directions)


def _as_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
