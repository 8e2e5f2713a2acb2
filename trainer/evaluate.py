"""Evaluation over ranks: every sample of a split counts once, at any number of ranks.

Batches have a fixed size and place whoever takes them, so that each comes out the same at any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from contracts.artifacts import CheckpointManifest, EvaluationReport, WorstSample
from trainer.data.device import map_tensors
from trainer.model.precision import Numerics
from trainer.parallel import release_gathered
from trainer.parallel.process_group import sum_over_ranks
from trainer.report.outcomes import Outcomes
from trainer.tasks.protocol import Batch, Mode, Outputs, Task

# Samples of a batch on a CPU (a GPU's: trainer/data/training_data.py): fixed, so that results do not depend on slots.
EVALUATION_BATCH = 64


@dataclass(frozen=True)
class Evaluation:
    """What a model got right on a split."""

    samples: int
    accuracy: float
    """Share of samples whose largest logit is their label."""
    loss: float
    """Mean cross-entropy in nats."""


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
    outcomes: Outcomes | None = None,
    numerics: Numerics | None = None,
    rounds: Callable[[Iterator[Sized], int], Iterator[Sized]] = islice,
) -> Evaluation | None:
    """Evaluate this rank's share of a split and add the counts of all ranks; None when there is no sample at all.

    Every rank must call this. The model is in evaluation mode inside and in training mode afterwards.

    Args:
        model: The network; it may be sharded.
        task: The task.
        share: Of this rank.
        device: Where the model computes.
        outcomes: Takes in what the model said of each sample; unset: only counts are kept.
        numerics: What the model computes in (trainer/model/precision.py, `evaluation_autocast`); unset: float32.
        rounds: Passes on as many batches, or fewer where the ranks agree to stop, the same number on all of them.
    """
    memory_format = torch.contiguous_format if numerics is None else numerics.memory_format
    mode = Mode(training=False, memory_format=memory_format)
    names = tuple(task.signature.inputs)

    def forward(batch: Batch) -> Outputs:
        inputs = [batch[name] if numerics is None else numerics.lay_out_input(batch[name]) for name in names]
        with nullcontext() if numerics is None else numerics.evaluation_autocast(device):
            return model(*inputs)

    model.eval()
    is_sharded = any(isinstance(module, FSDPModule) for module in model.modules())
    # float64: sums of up to 2**53 samples stay exact.
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    taken = 0
    idle: Batch = map_tensors(task.example(1), lambda tensor: tensor.to(device))
    for batch, samples in rounds(share.batch_per_round(idle), share.rounds()):
        if not samples:
            if is_sharded:
                # A forward pass gathers parameters from all ranks.
                forward(batch)
            continue
        logits = forward(batch).float()
        loss, _ = task.loss(logits, batch, mode)
        totals[0] += samples
        totals[1] += (logits.argmax(dim=1) == batch["label"]).sum()
        totals[2] += loss.double()
        if outcomes is not None:
            outcomes.add(logits, batch["label"], first_place=share.first_place(taken))
        taken += 1
    release_gathered(model)
    model.train()
    total, right, loss = sum_over_ranks(totals).tolist()
    return None if total == 0 else Evaluation(int(total), right / total, loss / total)


def make_report(
    best: CheckpointManifest,
    found: Evaluation,
    outcomes: Outcomes,
    origins: list[tuple[str, str]],
    *,
    weights: Literal["model", "ema"],
    parameters_sha256: str,
) -> EvaluationReport:
    """Return the document about a checkpoint on the test split.

    Args:
        best: The checkpoint.
        found: Its counts, over all ranks.
        outcomes: Of all ranks.
        origins: Shard and key of each sample in `outcomes.worst()`.
        weights: Which of its weights were evaluated.
        parameters_sha256: Their hash.
    """
    confusion, left_out = outcomes.confusion()
    worst = [
        WorstSample(
            shard=shard,
            key=key,
            place=said.place,
            label=said.label,
            predicted=said.predicted,
            probability=said.label_probability,
            predicted_probability=said.predicted_probability,
        )
        for said, (shard, key) in zip(outcomes.worst(), origins, strict=True)
    ]
    return EvaluationReport(
        fingerprint=best.fingerprint,
        made_from=best.made_from,
        step=best.step,
        weights=weights,
        parameters_sha256=parameters_sha256,
        shards_fingerprint=best.shards_fingerprint,
        samples=found.samples,
        accuracy=found.accuracy,
        loss=found.loss,
        classes=outcomes.by_class(best.classes),
        confusion=confusion,
        confusion_left_out=left_out,
        worst=worst,
    )
