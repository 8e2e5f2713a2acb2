"""The network of a table: raw rows to logits or values, with imputation, normalisation and lookups inside of the graph.

    numbers [B, N] float32, nan where one is missing  -> the mean instead, then (x - mean) / std
    categories [B, K] int64, 0 missing or unseen      -> clamped to the vocabulary
    both                                              -> the architecture -> outputs [B, classes], or a value [B]

What is done with raw rows is measured on the training split, kept in buffers, and so part of checkpoints and exports.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

import torch
from torch import nn

from contracts.artifacts.shards import ColumnStatistics
from contracts.config import ModelSection
from contracts.errors import ModelError
from trainer.model.architecture import build_from_callable, is_own, refused
from trainer.model.build import MISFITS
from trainer.tasks.tabular.inputs import TableInputs
from trainer.tasks.tabular.mlp import Mlp
from trainer.tasks.tabular.table_transformer import TableTransformer

ARCHITECTURES: dict[str, Callable[..., nn.Module]] = {"mlp": Mlp, "table_transformer": TableTransformer}
# The smallest normal number of float32: of a smaller deviation the reciprocal would be infinite.
_TINY = float(torch.finfo(torch.float32).tiny)


class TableNetwork(nn.Module):
    """An architecture behind the preparation of raw rows.

    Args:
        inputs: The columns.
        body: Maps numbers [B, N], normalised, and categories [B, K] (those that the table has) to outputs [B, width].
        target: Statistics of a regression's target: the output is scaled to its unit; None: outputs are logits.
    """

    mean: torch.Tensor
    scale: torch.Tensor
    largest: torch.Tensor
    target: torch.Tensor

    def __init__(self, inputs: TableInputs, body: nn.Module, target: ColumnStatistics | None = None) -> None:
        super().__init__()
        self.body = body
        self._has_numbers, self._has_categories = bool(inputs.statistics), bool(inputs.vocabulary_sizes)
        self._is_regression = target is not None
        if self._has_numbers:
            self.register_buffer("mean", _as_tensor([column.mean or 0.0 for column in inputs.statistics]))
            self.register_buffer("scale", _as_tensor([scale_of(column) for column in inputs.statistics]))
        if self._has_categories:
            self.register_buffer("largest", torch.tensor(inputs.vocabulary_sizes))
        if target is not None:
            self.register_buffer("target", _as_tensor([target.mean or 0.0, deviation_of(target)]))

    def forward(self, first: torch.Tensor, second: torch.Tensor | None = None) -> torch.Tensor:
        """Map raw rows to logits [B, classes], or to values [B] in the target's unit.

        Args:
            first: numbers [B, N] float32; of a table without numbers categories [B, K] int64.
            second: categories, where there are both.
        """
        prepared = []
        if self._has_numbers:
            known = torch.where(first.isnan(), self.mean, first)
            prepared.append((known - self.mean) * self.scale)
        if self._has_categories:
            given = first if second is None else second
            # Whoever calls an exported graph may give it anything; beyond the vocabulary is what is unseen.
            inside = (given >= 0) & (given <= self.largest)
            prepared.append(torch.where(inside, given, 0))
        outputs: torch.Tensor = self.body(*prepared)
        if not self._is_regression:
            return outputs
        # In float32: autocast leaves the last layer's outputs in a type with fewer digits than targets have.
        return outputs.float()[:, 0] * self.target[1] + self.target[0]


def build_network(
    section: ModelSection, inputs: TableInputs, *, num_outputs: int, target: ColumnStatistics | None = None
) -> TableNetwork:
    """Build the network with random weights from torch's current seed.

    Args:
        section: The model section of the configuration.
        inputs: The columns.
        num_outputs: Width of the last layer.
        target: Statistics of a regression's target; None: outputs are logits.

    Raises:
        ModelError: The architecture is unknown, or does not take these arguments.
    """
    given = {
        "num_numbers": len(inputs.statistics),
        "vocabulary_sizes": inputs.vocabulary_sizes,
        "num_outputs": num_outputs,
    }
    name = section.architecture
    if is_own(section):
        body = build_from_callable(
            section,
            allowed="a torch.nn.Module that maps numbers [B, N] and categories [B, K] to outputs [B, num_outputs]",
            **given,
        )
    elif name in ARCHITECTURES:
        try:
            body = ARCHITECTURES[name](**given, **section.arguments)
        except MISFITS as error:
            raise refused(section, error, ARCHITECTURES[name], given) from error
    else:
        close = difflib.get_close_matches(name, ARCHITECTURES, n=1)
        raise ModelError(
            f"model.architecture {name!r} is no network for tables",
            allowed=f"{', '.join(ARCHITECTURES)}, or module:callable",
            todo=f"did you mean {close[0]}?" if close else "set model.architecture=mlp",
        )
    return TableNetwork(inputs, body, target)


def scale_of(column: ColumnStatistics) -> float:
    """Return what a number is multiplied by: 1 / std, and 0 for a column without two values, which says nothing."""
    return 1 / max(column.std, _TINY) if column.std else 0.0


def deviation_of(target: ColumnStatistics) -> float:
    """Return the standard deviation of a target; 1 where all are alike."""
    return target.std or 1.0


def _as_tensor(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)
