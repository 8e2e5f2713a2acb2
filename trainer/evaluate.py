"""Evaluation over ranks: every sample of a split counts once, at any number of ranks.

Batches have a fixed size and place whoever takes them, so that each comes out the same at any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from contracts.artifacts import LOSS, Direction, Headline
from contracts.config import RunConfig
from trainer.data.device import map_tensors
from trainer.model.precision import Numerics
from trainer.parallel import release_gathered
from trainer.tasks.load import calling, running_network
from trainer.tasks.loss import checked_loss
from trainer.tasks.metrics import Calling, SplitMetrics
from trainer.tasks.optional import SplitCollector
from trainer.tasks.protocol import Batch, Mode, Outputs, Task

# Samples of a batch on a CPU (a GPU's: trainer/data/training_data.py): fixed, so that results do not depend on slots.
EVALUATION_BATCH = 64


@dataclass(frozen=True)
class Evaluation:
    """Loss and metrics of a model on a split, over all ranks."""

    samples: int
    loss: float | None
    """Sum of the task's loss over the sum of its counts; None: it came to no finite number."""
    metrics: dict[str, float]
    """By name; those that came to no finite number are left out."""
    headline: Headline
    """The metric that tells how good the model is."""
    directions: dict[str, Direction]
    """Of each metric of the task, by name."""

    def named(self, split: str) -> dict[str, float]:
        """Return metrics and loss as a checkpoint has them: SPLIT_NAME."""
        return {f"{split}_{name}": value for name, value in self.values().items()}

    def values(self) -> dict[str, float]:
        """Return metrics and loss by name, of those that came to a finite number."""
        return self.metrics if self.loss is None else {**self.metrics, LOSS: self.loss}

    def without_number(self) -> list[str]:
        """Return the names of the metrics, and of the loss, that came to no finite number."""
        return [*(name for name in self.directions if name not in self.metrics), *([LOSS] if self.loss is None else [])]

    def look_up(self, metric: str) -> tuple[float | None, Direction]:
        """Return the value that a field of the configuration asks for, None where there is none, and what is better.

        Args:
            metric: `validation_NAME`, `NAME`, or empty for the headline.
        """
        name = metric.removeprefix("validation_") or self.headline.metric
        return (self.loss, "min") if name == LOSS else (self.metrics.get(name), self.directions.get(name, "max"))


Sized = tuple[Batch, int]
"""A batch as `to_model` returns it, and its samples."""


@dataclass(frozen=True)
class SplitPart:
    """One rank's share of a split."""

    batches: Iterator[Sized]
    """The batches rank, rank + ranks, ... of the split."""
    samples: int
    """Of the whole split."""
    rank: int
    ranks: int
    batch_size: int = EVALUATION_BATCH

    def rounds(self) -> int:
        """Return the batches of the rank that has most."""
        return -(-self.samples // (self.batch_size * self.ranks))

    def batch_per_round(self, idle: Batch) -> Iterator[Sized]:
        """Yield the batches, and without end `idle` as one of no samples, for rounds of ranks with more."""
        yield from self.batches
        while True:
            yield idle, 0

    def first_place(self, number: int) -> int:
        """Return the place in the split of the first sample of this rank's batch `number`, from 0."""
        return (number * self.ranks + self.rank) * self.batch_size


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    share: SplitPart,
    device: torch.device,
    *,
    report: SplitCollector | None = None,
    numerics: Numerics | None = None,
    rounds: Callable[[Iterator[Sized], int], Iterator[Sized]] = islice,
    config: RunConfig | None = None,
) -> Evaluation | None:
    """Evaluate this rank's share of a split and add the counts of all ranks; None when there is no sample at all.

    Every rank must call this. The model is in evaluation mode inside and in training mode afterwards.

    Args:
        model: The network; it may be sharded.
        task: The task.
        share: Of this rank.
        device: Where the model computes.
        report: Takes in what the model said of each sample.
        numerics: What the model computes in (trainer/model/precision.py, `evaluation_autocast`); unset: float32.
        rounds: Passes on as many batches, or fewer where the ranks agree to stop, the same number on all of them.
        config: The configuration, to say where own code failed.

    Raises:
        ConfigError: A metric of the task cannot be used, or a member fails.
    """
    within: Calling = nullcontext if config is None else partial(calling, config)
    memory_format = torch.contiguous_format if numerics is None else numerics.memory_format
    mode = Mode(training=False, memory_format=memory_format)
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
    taken = 0
    with within("example"):
        idle: Batch = map_tensors(task.example(1), lambda tensor: tensor.to(device))
    for batch, samples in rounds(share.batch_per_round(idle), share.rounds()):
        if not samples:
            if is_sharded:
                # A forward pass gathers parameters from all ranks.
                forward(batch)
            continue
        outputs = map_tensors(forward(batch), _as_float32)
        with within("loss"):
            found = task.loss(outputs, batch, mode)
            loss, count = found if config is None else checked_loss(found, config)
        totals[0] += samples
        totals[1] += loss.double()
        totals[2] += count
        metrics.update(outputs, batch)
        if report is not None:
            with within("report"):
                report.add(outputs, batch, first_place=share.first_place(taken))
        taken += 1
    release_gathered(model)
    model.train()
    (total, loss_sum, loss_count), values = metrics.reduce(totals)
    if total == 0:
        return None
    mean = loss_sum / loss_count if loss_count else math.nan
    number = mean if math.isfinite(mean) else None
    return Evaluation(int(total), number, values, metrics.headline, metrics.directions)


def _as_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
