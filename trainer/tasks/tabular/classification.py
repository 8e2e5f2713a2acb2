"""The task of classifying rows of a table: one of several classes for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from contracts.artifacts.signature import OutputSpec, Signature
from records.columns import Columns
from trainer.model.architecture import is_own
from trainer.tasks.classes import losses
from trainer.tasks.classes.head import Head, find_head
from trainer.tasks.protocol import Batch, Loss, Mode, Prepared, Sample, TaskContext
from trainer.tasks.tabular.inputs import LABEL, TableInputs
from trainer.tasks.tabular.network import build_network
from trainer.tasks.tabular.parts import match_columns

if TYPE_CHECKING:
    from torchmetrics import Metric

    from trainer.report.first_rows import RowsSlot
    from trainer.tasks.classes.report import ClassificationReport
    from trainer.weights.parts import InputParts
    from trainer.weights.source import WeightSource


class TabularClassification:
    """Rows to logits.

    Args:
        context: The configuration's sections model and train, and the shards' columns and classes.
        loss: cross_entropy, focal, or `module:callable` that maps logits [B, classes] and labels [B] to losses [B].
        class_weights: `balanced`, or factors of the loss by class name; empty: 1 for all.

    Attributes:
        classes: Names of the classes.
        inputs: The columns.

    Raises:
        ConfigError: An argument is none of these.
        DataError: The shards have no columns to learn from, or nothing is recorded of one.
    """

    headline = "accuracy"
    uses_global_generators = False

    def __init__(
        self, context: TaskContext, *, loss: str = "cross_entropy", class_weights: str | Mapping[str, float] = ""
    ) -> None:
        self._config = context.config
        self.classes = context.shards.classes
        self.inputs = TableInputs.of(context.shards, task=context.config.task.name)
        weights = losses.class_weights(class_weights, self.classes, context.shards)
        smoothing = context.config.train.label_smoothing
        self._training_loss = losses.make_loss(loss, smoothing=smoothing, weights=weights)
        self._evaluation_loss = losses.make_loss(loss, smoothing=0.0, weights=weights)

    @property
    def fields(self) -> Mapping[str, str]:
        """The columns, and `label` of kind class."""
        return {name: entry.kind for name, entry in self.inputs.fields.items()} | {LABEL: "class"}

    @property
    def signature(self) -> Signature:
        """`numbers` and `categories` (inputs.py) to `logits` [batch, classes] float32."""
        width = max(1, len(self.classes))
        return Signature(
            inputs=self.inputs.signature,
            outputs={"logits": OutputSpec(dtype="float32", shape=["batch", width], compare="classes")},
        )

    def build_model(self) -> nn.Module:
        """Return the network of section `model`."""
        return build_network(self._config.model, self.inputs, num_outputs=len(self.classes))

    def head(self) -> Head:
        """Return which tensors are the classifier's head, whose rows belong to classes."""

        def build(num_classes: int) -> nn.Module:
            return build_network(self._config.model, self.inputs, num_outputs=num_classes)

        def example() -> tuple[torch.Tensor, ...]:
            return tuple(cast(Mapping[str, torch.Tensor], self.inputs.example(2)).values())

        tensors = find_head(build, len(self.classes), example=example, on_meta=not is_own(self._config.model))
        return Head(tensors, tuple(self.classes))

    def match_inputs(self, source: WeightSource) -> InputParts:
        """Return which tensors belong to columns, so that weights of other columns or vocabularies are matched by name.

        Raises:
            ModelError: They are of other columns, and nobody knows which tensors these are.
        """
        return match_columns(self._config.model, self.document(), source.inputs)

    def prepare(self, sample: Sample, mode: Mode) -> Prepared:
        """Return the row and its label; nothing is drawn.

        Raises:
            RefusedSample: A list of numbers has another length than those of the training split.
        """
        return self.inputs.row_of(sample), sample[LABEL]

    def collate(self, samples: Sequence[Prepared], mode: Mode) -> Batch:
        """Return `numbers` [B, N] float32, `categories` [B, K] int64 and `label` [B] int64."""
        batch = self.inputs.batch_of([row for row, _ in samples])
        return batch | {LABEL: torch.tensor([label for _, label in samples])}

    def collate_columns(self, columns: Columns) -> dict[str, torch.Tensor] | None:
        """Return what `prepare` and `collate` make of the same samples."""
        batch = self.inputs.batch_of_columns(columns)
        return None if batch is None else batch | {LABEL: torch.from_numpy(columns[LABEL])}

    def example(self, size: int) -> Batch:
        """Return rows of the first class in which all is missing."""
        return self.inputs.example(size) | {LABEL: torch.zeros(size, dtype=torch.int64)}

    def first_slot(self) -> RowsSlot:
        """Return what keeps the first rows of training."""
        return self.inputs.first_slot(LABEL, lambda label: self.classes[int(label)])

    def to_model(self, batch: Batch, mode: Mode) -> Batch:
        """Return the batch as it is: the network prepares raw rows."""
        return batch

    def loss(self, outputs: torch.Tensor, batch: Batch, mode: Mode) -> Loss:
        """Return the loss in nats, summed over the batch, and its samples."""
        of_each = self._training_loss if mode.training else self._evaluation_loss
        return of_each(outputs.float(), batch[LABEL]).sum(), len(batch[LABEL])

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

    def document(self) -> dict[str, Any]:
        """Return the columns: all that makes arrays of rows."""
        return {"fields": self.inputs.document()}

    def warnings(self) -> list[str]:
        """Return columns that nothing can be learnt from, and unseen categories."""
        return self.inputs.warnings()
