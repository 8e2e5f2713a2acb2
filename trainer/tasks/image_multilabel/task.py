"""The task of several labels: any number of the classes for each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from contracts.artifacts.multilabel import thresholds_of
from trainer.model.build import is_of_transformers
from trainer.tasks.classes.losses import PerSample
from trainer.tasks.image_multilabel.losses import make_loss, positive_weights
from trainer.tasks.image_multilabel.scores import fits_memory
from trainer.tasks.images.image_task import ImageTask
from trainer.tasks.protocol import Batch, Mode, TaskContext

if TYPE_CHECKING:
    from torchmetrics import Metric

    from trainer.tasks.image_multilabel.calibration import ThresholdChoice
    from trainer.tasks.image_multilabel.report import MultilabelReport


class ImageMultilabel(ImageTask):
    """Images to logits of classes, of which each image has any number: the sigmoid of a logit is a probability.

    Args:
        context: The configuration's sections data, model and train, and the shards' classes and pixels.
        loss: bce, focal, or `module:callable` that maps logits and labels [B, classes] to losses [B].
        class_weights: `balanced`, or factors of the loss of what is of a class, by its name; empty: 1 for all.

    Raises:
        ConfigError: An argument is none of these, data.transform cannot be imported, or there is no mean and std.
    """

    fields: Mapping[str, str] = {"image": "image", "label": "classes"}  # nobody changes it

    def __init__(
        self, context: TaskContext, *, loss: str = "bce", class_weights: str | Mapping[str, float] = ""
    ) -> None:
        super().__init__(context, compare="values")
        weights = positive_weights(class_weights, self.classes, context.shards)
        smoothing = context.config.train.label_smoothing
        self._training_loss = make_loss(loss, smoothing=smoothing, weights=weights)
        self._evaluation_loss = make_loss(loss, smoothing=0.0, weights=weights)
        self._is_exact = fits_memory(context.shards, len(self.classes))
        # Before the shards are written nobody knows how many samples a split will have.
        self._is_planned = not context.shards_uri

    @property
    def headline(self) -> str:
        """`average_precision`; where the scores of a split do not fit into memory, `average_precision_binned`."""
        from trainer.tasks.image_multilabel.metrics import BINNED, EXACT

        return EXACT if self._is_exact else BINNED

    def build_model(self) -> nn.Module:
        """Return the network of section `model`; one of transformers says to its pipelines that labels are several."""
        network = super().build_model()
        if is_of_transformers(network):
            network.config.problem_type = "multi_label_classification"  # type: ignore[union-attr]
        return network

    def _stack_labels(self, labels: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return [B, classes] float32: 1 for each class of a sample; there may be none."""
        found = torch.zeros(len(labels), max(1, len(self.classes)))
        rows = [row for row, own in enumerate(labels) for _ in own]
        found[rows, [label for own in labels for label in own]] = 1.0
        return found

    def _empty_label(self) -> tuple[int, ...]:
        """Return no class."""
        return ()

    def _loss_of_each(self, mode: Mode) -> PerSample:
        return self._training_loss if mode.training else self._evaluation_loss

    def metrics(self) -> Mapping[str, Metric]:
        """Return mean average precision, and F1 at one half over classes and over all pairs.

        Before the shards are written average precision is there in both ways: a configuration may ask for either.
        """
        from trainer.tasks.image_multilabel.metrics import make_metrics

        found = make_metrics(len(self.classes), exact=self._is_exact)
        if self._is_planned:
            found |= make_metrics(len(self.classes), exact=not self._is_exact)
        return found

    def update(self, metrics: Mapping[str, Metric], outputs: torch.Tensor, batch: Batch) -> None:
        """Take logits and labels [B, classes] in."""
        from trainer.tasks.image_multilabel.metrics import update_metrics

        update_metrics(metrics, outputs, batch)

    def calibration(self, device: torch.device) -> ThresholdChoice:
        """Return what takes in the validation split with the best weights, and chooses a threshold for each class."""
        from trainer.tasks.image_multilabel.calibration import ThresholdChoice

        return ThresholdChoice(len(self.classes), device, exact=self._is_exact)

    def report(self, device: torch.device, calibrated: dict[str, Any]) -> MultilabelReport:
        """Return what takes in the samples of the test split: every class at its threshold, and the worst samples."""
        from trainer.tasks.image_multilabel.report import MultilabelReport

        return MultilabelReport(
            self.classes,
            thresholds_of(calibrated, len(self.classes)),
            device,
            exact=self._is_exact,
            loss=self._evaluation_loss,
        )
