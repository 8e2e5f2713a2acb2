"""The task of image classification: one of several classes for each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from trainer.tasks.classes import losses
from trainer.tasks.classes.losses import PerSample
from trainer.tasks.images.image_task import ImageTask
from trainer.tasks.protocol import Batch, Loss, Mode, TaskContext

if TYPE_CHECKING:
    from torchmetrics import Metric

    from trainer.tasks.classes.report import ClassificationReport


class ImageClassification(ImageTask):
    """Images to logits of classes, of which each image has one.

    Args:
        context: The configuration's sections data, model and train, and the shards' classes and pixels.
        loss: cross_entropy, focal, or `module:callable` that maps logits [B, classes] and labels [B] to losses [B].
        class_weights: `balanced`, or factors of the loss by class name; empty: 1 for all.

    Raises:
        ConfigError: An argument is none of these, data.transform cannot be imported, or there is no mean and std.
    """

    fields: Mapping[str, str] = {"image": "image", "label": "class"}  # nobody changes it
    headline = "accuracy"

    def __init__(
        self, context: TaskContext, *, loss: str = "cross_entropy", class_weights: str | Mapping[str, float] = ""
    ) -> None:
        super().__init__(context, compare="classes")
        smoothing = context.config.train.label_smoothing
        weights = losses.class_weights(class_weights, self.classes, context.shards)
        self._is_plain = loss == "cross_entropy" and weights is None
        self._training_loss = losses.make_loss(loss, smoothing=smoothing, weights=weights)
        self._evaluation_loss = losses.make_loss(loss, smoothing=0.0, weights=weights)

    def _stack_labels(self, labels: Sequence[int]) -> torch.Tensor:
        """Return [B] int64."""
        return torch.tensor(labels, dtype=torch.int64)

    def _empty_label(self) -> int:
        """Return the first class."""
        return 0

    def _loss_of_each(self, mode: Mode) -> PerSample:
        return self._training_loss if mode.training else self._evaluation_loss

    def loss(self, outputs: torch.Tensor, batch: Batch, mode: Mode) -> Loss:
        """Return the loss in nats, summed over the batch, and its samples."""
        if not self._is_plain or "shares" in batch:
            return super().loss(outputs, batch, mode)
        # In one kernel.
        smoothing = self._config.train.label_smoothing if mode.training else 0.0
        logits, label = outputs.float(), batch["label"]
        return functional.cross_entropy(logits, label, reduction="sum", label_smoothing=smoothing), len(label)

    def metrics(self) -> Mapping[str, Metric]:
        """Return accuracy, and the means over classes of F1 and of recall."""
        from trainer.tasks.classes.metrics import make_metrics

        return make_metrics(len(self.classes))

    def update(self, metrics: Mapping[str, Metric], outputs: torch.Tensor, batch: Batch) -> None:
        """Take logits [B, classes] and labels in."""
        from trainer.tasks.classes.metrics import update_metrics

        update_metrics(metrics, outputs, batch)

    def report(self, device: torch.device) -> ClassificationReport:
        """Return what takes in the samples of the test split: confusion, curves, and the worst ones."""
        from trainer.tasks.classes.report import ClassificationReport

        return ClassificationReport(self.classes, device)
