"""Metrics of image classification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from trainer.tasks.protocol import Batch

if TYPE_CHECKING:
    from torchmetrics import Metric


def make_metrics(num_classes: int) -> dict[str, Metric]:
    """Return the metrics."""
    raise NotImplementedError


def update_metrics(metrics: Mapping[str, Metric], outputs: torch.Tensor, batch: Batch) -> None:
    """Take a batch in."""
    raise NotImplementedError
