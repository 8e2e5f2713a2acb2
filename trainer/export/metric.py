"""Metrics and loss of a model's outputs on the proof's samples: `ProofMetrics`."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import torch

from contracts.artifacts import LOSS
from contracts.config import RunConfig
from trainer.export.arrays import Arrays
from trainer.export.tensors import restore_outputs
from trainer.tasks.loading import calling
from trainer.tasks.metrics import SplitMetrics
from trainer.tasks.on_device import checked_loss
from trainer.tasks.task import Mode, Task


class ProofMetrics:
    """Metrics of outputs, accumulated batch by batch.

    Args:
        task: The task.
        config: The configuration.
        container: Container of the network's outputs: tensor, tuple or dict.

    Attributes:
        headline: Name and direction of the headline metric.
    """

    def __init__(self, task: Task, config: RunConfig, container: str) -> None:
        self._task, self._config, self._container = task, config, container
        self._metrics = SplitMetrics(task, torch.device("cpu"), partial(calling, config))
        self._loss = self._count = 0.0
        self.headline = self._metrics.headline

    def add(self, inputs: Arrays, extras: Path, outputs: Arrays) -> None:
        """Add a batch of the proof.

        Args:
            inputs: Of the model.
            extras: File with the other entries of the batch.
            outputs: Of the model, in the order of the signature.
        """
        batch = torch.load(extras, weights_only=True)
        batch |= {name: torch.from_numpy(array) for name, array in inputs.items()}
        restored = restore_outputs(outputs, self._container)
        with torch.inference_mode():
            self._metrics.update(restored, batch)
            with calling(self._config, "loss"):
                loss, count = checked_loss(self._task.loss(restored, batch, Mode(training=False)), self._config)
        self._loss, self._count = self._loss + float(loss), self._count + float(count)

    def values(self) -> dict[str, float]:
        """Return the metrics by name, including `loss`; metrics that are not finite are left out."""
        values = {**self._metrics.values(), **({LOSS: self._loss / self._count} if self._count else {})}
        return {name: value for name, value in values.items() if math.isfinite(value)}
