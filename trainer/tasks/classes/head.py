"""The classifier's head: which tensors it is made of, and rows of another head by class name.

Equal shape is not equal meaning: a head of ten classes fits one of ten others, and knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from trainer.model.build import complete_model
from trainer.model.signature import Inputs
from trainer.model.trial import random_state_kept


@dataclass(frozen=True)
class Head:
    """The head of a network."""

    tensors: Mapping[str, int]
    """Names of its tensors, with the dimension of the classes."""
    classes: Sequence[str]
    """By row."""

    def take_rows(self, name: str, target: torch.Tensor, given: torch.Tensor, theirs: Sequence[str]) -> list[str]:
        """Copy the rows of classes that both heads have; return these classes.

        Args:
            name: Of the tensor.
            target: A tensor of the network's head; rows of other classes stay as they were drawn.
            given: The tensor of that name in the source.
            theirs: Classes of the source, by row.
        """
        return take_head_rows(target, given, self.tensors[name], ours=self.classes, theirs=theirs)


def find_head(
    build: Callable[[int], nn.Module], num_classes: int, *, example: Callable[[], Inputs], on_meta: bool
) -> dict[str, int]:
    """Return the tensors whose shape depends on the number of classes, with the dimension that does, by name.

    Args:
        build: Builds the network for a number of classes. It is called for one class more, too.
        num_classes: Of the network.
        example: Makes what it takes, on torch's default device.
        on_meta: Build on the meta device where that can be. Not where code of others may keep tensors, in a cache, for
            the next network, which would have no values.
    """
    shapes = []
    with random_state_kept(torch.device("cpu")):
        for number in (num_classes, num_classes + 1):
            found = _shapes(build, number, example, ("meta", "cpu") if on_meta else ("cpu",))
            if found is None:
                return {}
            shapes.append(found)
    ours, wider = shapes
    head = {}
    for name, shape in ours.items():
        other = wider.get(name, shape)
        changed = [at for at, (one, two) in enumerate(zip(shape, other, strict=False)) if one != two]
        if len(shape) == len(other) and len(changed) == 1:
            head[name] = changed[0]
    return head


def _shapes(
    build: Callable[[int], nn.Module], num_classes: int, example: Callable[[], Inputs], devices: Sequence[str]
) -> dict[str, tuple[int, ...]] | None:
    for device in devices:
        try:
            with torch.device(device):
                network = build(num_classes)
                complete_model(network, example(), name="the network")
            return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        except Exception:  # noqa: BLE001 - own code and libraries raise what they like
            # A network that cannot be on the meta device; or one that is made for one number of classes.
            continue
    return None


def take_head_rows(
    target: torch.Tensor, given: torch.Tensor, dim: int, *, ours: Sequence[str], theirs: Sequence[str]
) -> list[str]:
    """Copy the rows of classes that both heads have; return these classes.

    Args:
        target: A tensor of the network's head; rows of other classes stay as they were drawn.
        given: The tensor of that name in the source.
        dim: The dimension of the classes.
        ours: Classes of the network, by row.
        theirs: Classes of the source, by row.
    """
    expected = (*target.shape[:dim], len(theirs), *target.shape[dim + 1 :])
    if tuple(given.shape) != expected:
        return []
    rows = {name: row for row, name in enumerate(theirs)}
    shared = [(place, rows[name]) for place, name in enumerate(ours) if name in rows]
    for place, row in shared:
        target.select(dim, place).copy_(given.select(dim, row))
    return [ours[place] for place, _ in shared]
