"""Evaluation over ranks, and the scalars that TensorBoard shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from trainer.distributed import sum_over_ranks

# Evaluation needs no gradients, so it takes more samples at once than a slot; the size changes no result.
EVALUATION_BATCH = 64


@dataclass(frozen=True)
class Evaluation:
    """What a model got right on a split."""

    samples: int
    accuracy: float
    """Share of samples whose largest logit is their label."""
    loss: float
    """Mean cross-entropy in nats."""


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Iterable[tuple[torch.Tensor, torch.Tensor]], device: torch.device
) -> Evaluation | None:
    """Evaluate the batches of this rank and add the counts of all ranks; None when there is no sample at all.

    Every rank must call this. The model is in evaluation mode inside and in training mode afterwards.
    """
    model.eval()
    # float64: sums of up to 2**53 samples stay exact.
    totals = torch.zeros(3, dtype=torch.float64, device=device)
    for images, labels in batches:
        labels = labels.to(device)
        logits = model(images.to(device)).float()
        totals[0] += len(labels)
        totals[1] += (logits.argmax(dim=1) == labels).sum()
        totals[2] += functional.cross_entropy(logits, labels, reduction="sum").double()
    model.train()
    samples, right, loss = sum_over_ranks(totals).tolist()
    if samples == 0:
        return None
    return Evaluation(int(samples), right / samples, loss / samples)


class Scalars:
    """TensorBoard scalars of one attempt; ranks other than the first write nothing."""

    def __init__(self, folder: Path | None, *, first_step: int) -> None:
        self._writer: Any = None
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            # purge_step: what a killed attempt wrote beyond its last checkpoint is hidden.
            # The step that it went on from was written before it was saved, and does not come again.
            self._writer = SummaryWriter(str(folder), purge_step=first_step + 1)

    def add(self, step: int, values: dict[str, float]) -> None:
        """Write values by name at an optimizer step."""
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Write what is still in memory."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Flush and close."""
        if self._writer is not None:
            self._writer.close()
