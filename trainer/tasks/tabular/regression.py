"""The task of regression: a number for each row of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from contracts.artifacts.shards import ColumnStatistics
from contracts.artifacts.signature import OutputSpec, Signature
from contracts.errors import DataError
from records.columns import Columns
from trainer.tasks.needs import FIELDS, check_fields
from trainer.tasks.protocol import Batch, Loss, Mode, Prepared, RefusedSample, Sample, TaskContext
from trainer.tasks.tabular.inputs import LABEL, TableInputs, columns_of, missing_statistics, require_float32
from trainer.tasks.tabular.network import build_network, deviation_of
from trainer.tasks.tabular.parts import match_columns

if TYPE_CHECKING:
    from torchmetrics import Metric

    from trainer.report.first_rows import RowsSlot
    from trainer.tasks.tabular.report import RegressionReport
    from trainer.weights.parts import InputParts
    from trainer.weights.source import WeightSource


class TabularRegression:
    """Rows to values, in the unit of the target.

    Args:
        context: The configuration's section model, and the shards' columns.

    Attributes:
        inputs: The columns that are learnt from.
        target: Statistics of the target, field `label`.

    Raises:
        DataError: The shards have no columns to learn from, nothing is recorded of one, or targets are missing.
    """

    headline = "r2"
    uses_global_generators = False

    def __init__(self, context: TaskContext) -> None:
        self._config = context.config
        self.inputs = TableInputs.of(context.shards, task=context.config.task.name)
        self.target = _target_of(context)
        self._column = columns_of(LABEL, context.shards.sample_fields[LABEL])[0]

    @property
    def fields(self) -> Mapping[str, str]:
        """The columns, and `label` of kind number."""
        return {name: entry.kind for name, entry in self.inputs.fields.items()} | {LABEL: "number"}

    @property
    def signature(self) -> Signature:
        """`numbers` and `categories` (inputs.py) to `value` [batch] float32."""
        return Signature(inputs=self.inputs.signature, outputs={"value": OutputSpec(dtype="float32", shape=["batch"])})

    def build_model(self) -> nn.Module:
        """Return the network of section `model`; its outputs are scaled to the target's unit."""
        return build_network(self._config.model, self.inputs, num_outputs=1, target=self.target)

    def match_inputs(self, source: WeightSource) -> InputParts:
        """Return which tensors belong to columns, so that weights of other columns or vocabularies are matched by name.

        Raises:
            ModelError: They are of other columns, and nobody knows which tensors these are.
        """
        return match_columns(self._config.model, self.document(), source.inputs)

    def prepare(self, sample: Sample, mode: Mode) -> Prepared:
        """Return the row and its target; nothing is drawn.

        Raises:
            RefusedSample: The target is missing, or a list of numbers has another length than in the training split.
        """
        target: float = sample[LABEL]
        if math.isnan(target):
            raise RefusedSample(
                f"field {LABEL!r} (column {self._column!r}) is missing",
                allowed="a number to learn, in every row",
                todo="leave such rows out of the source, or set sharding.fields.label.missing=refuse, and shard again",
            )
        return self.inputs.row_of(sample), target

    def collate(self, samples: Sequence[Prepared], mode: Mode) -> Batch:
        """Return `numbers` [B, N] float32, `categories` [B, K] int64 and `label` [B] float64."""
        batch = self.inputs.batch_of([row for row, _ in samples])
        return batch | {LABEL: torch.tensor([target for _, target in samples], dtype=torch.float64)}

    def collate_columns(self, columns: Columns) -> dict[str, torch.Tensor] | None:
        """Return what `prepare` and `collate` make of the same samples; None where a target is missing."""
        targets, batch = columns[LABEL], self.inputs.batch_of_columns(columns)
        if batch is None or np.isnan(targets).any():
            return None
        return batch | {LABEL: torch.from_numpy(targets.copy())}

    def example(self, size: int) -> Batch:
        """Return rows in which all is missing, and 0 as their targets."""
        return self.inputs.example(size) | {LABEL: torch.zeros(size, dtype=torch.float64)}

    def first_slot(self) -> RowsSlot:
        """Return what keeps the first rows of training."""
        return self.inputs.first_slot(self._column, lambda target: f"{target:.6g}")

    def to_model(self, batch: Batch, mode: Mode) -> Batch:
        """Return the batch as it is: the network prepares raw rows."""
        return batch

    def loss(self, outputs: torch.Tensor, batch: Batch, mode: Mode) -> Loss:
        """Return the squared error in standard deviations of the target, summed over the batch, and its samples."""
        apart = (outputs.float() - batch[LABEL].float()) / deviation_of(self.target)
        return apart.square().sum(), len(apart)

    def metrics(self) -> Mapping[str, Metric]:
        """Return the mean absolute error, the root of the mean squared error, and R2."""
        from trainer.tasks.tabular.metrics import make_metrics

        return make_metrics(self.target.mean or 0.0)

    def update(self, metrics: Mapping[str, Metric], outputs: torch.Tensor, batch: Batch) -> None:
        """Take values [B] and targets in."""
        for metric in metrics.values():
            metric.update(outputs.double(), batch[LABEL])

    def report(self, device: torch.device) -> RegressionReport:
        """Return what takes in the samples of the test split: residuals, and the worst ones."""
        from trainer.tasks.tabular.report import RegressionReport

        return RegressionReport(self.target, self._column)

    def document(self) -> dict[str, Any]:
        """Return the columns, all that makes arrays of rows, and the name of the target's."""
        return {"fields": self.inputs.document(), "target": self._column}

    def warnings(self) -> list[str]:
        """Return columns that nothing can be learnt from, and unseen categories."""
        return self.inputs.warnings()


def _target_of(context: TaskContext) -> ColumnStatistics:
    """Return the statistics of the target.

    Raises:
        DataError: There is no target of kind number, nothing is recorded of it, or some are missing or too large.
    """
    name = context.config.task.name
    check_fields(FIELDS[name], context.shards, name=name)
    statistics = context.shards.sample_fields[LABEL].statistics
    if not statistics:
        raise missing_statistics(LABEL)
    (target,) = statistics
    if target.missing or target.mean is None:
        raise DataError(
            f"{target.missing} rows of the training split have no target (column {target.name!r})",
            allowed="a number to learn, in every row",
            todo="leave such rows out of the source, and shard again",
        )
    require_float32(target)
    return target
