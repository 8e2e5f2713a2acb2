"""What a checkpoint is made of: groups (model, optimizer, ema, scaler) of tensors by name, whole or a rank's rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Rows:
    """This rank's rows of a tensor that is spread over ranks along dimension 0."""

    tensor: torch.Tensor
    """[rows, ...]; rows may be 0."""
    global_shape: tuple[int, ...]
    """Shape of the whole tensor."""
    offset: int
    """Place of the first row in the whole tensor."""

    def __post_init__(self) -> None:
        rows, *rest = self.tensor.shape
        if (*rest,) != self.global_shape[1:] or self.offset < 0 or (rows and self.offset + rows > self.global_shape[0]):
            raise ValueError(
                f"rows of shape {tuple(self.tensor.shape)} at {self.offset} are no part of {self.global_shape}"
            )


# A whole tensor is written by rank 0, rows by the rank that has them.
Group = Mapping[str, torch.Tensor | Rows]
Groups = Mapping[str, Group]
# Which rows of a tensor a rank wants, by group, name and shape of the whole: [first, last + 1).
ChooseRows = Callable[[str, str, tuple[int, ...]], tuple[int, int]]


def global_shape(value: torch.Tensor | Rows) -> tuple[int, ...]:
    """Return the shape of the whole tensor."""
    return value.global_shape if isinstance(value, Rows) else tuple(value.shape)


def whole_tensors(group: Group) -> dict[str, torch.Tensor]:
    """Return a group that has no rows."""
    tensors = {name: value for name, value in group.items() if not isinstance(value, Rows)}
    assert len(tensors) == len(group), sorted(set(group) - set(tensors))
    return tensors


def is_sharded(group: Group) -> bool:
    """Whether a group has rows: then each rank writes a file. The same on all ranks."""
    return any(isinstance(value, Rows) for value in group.values())
