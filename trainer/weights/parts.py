"""Tensors whose entries belong to inputs, such as columns of a table: taken by what they mean, not by their place.

Equal shape is not equal meaning: the embeddings of five towns fit those of five others, and know nothing of them. A
task says which tensors these are by its member `match_inputs` (trainer/weights/start.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Part:
    """A tensor with a name for each place along one of its dimensions."""

    tensor: str
    """Its name in the network."""
    names: Sequence[str]
    """By place."""
    dim: int = 0
    skips_zero: bool = False
    """Whether a zero of the source says that it knows nothing."""


@dataclass(frozen=True)
class InputParts:
    """Tensors of a network and of the source of its weights that depend on the inputs."""

    ours: Mapping[str, Part] = field(default_factory=dict)
    """By what they are about, such as the embedding of a column."""
    theirs: Mapping[str, Part] = field(default_factory=dict)
    """The same of the source."""
    kept: frozenset[str] = frozenset()
    """Names of tensors that follow from the inputs: the source's are not taken."""


@torch.no_grad()
def take_part(target: torch.Tensor, given: torch.Tensor, ours: Part, theirs: Part, *, looks: bool) -> int | None:
    """Copy the entries that both have; return how many elements were taken, None where shapes do not fit.

    Args:
        target: A tensor of the network; all other entries stay as they were drawn.
        given: The tensor of the source.
        ours: Names of the network's entries.
        theirs: Names of the source's.
        looks: Only tell: nothing is copied.
    """
    dim = ours.dim
    expected = (*target.shape[:dim], len(theirs.names), *target.shape[dim + 1 :])
    if tuple(given.shape) != expected or target.shape[dim] != len(ours.names):
        return None
    places = {name: place for place, name in enumerate(theirs.names)}
    shared = [(place, places[name]) for place, name in enumerate(ours.names) if name in places]
    if not looks and shared:
        to, source = (torch.tensor(one, device=target.device) for one in zip(*shared, strict=True))
        found = given.to(target.device, target.dtype).index_select(dim, source)
        if ours.skips_zero:
            found = torch.where(found == 0, target.index_select(dim, to), found)
        target.index_copy_(dim, to, found)
    return target.numel() // max(1, len(ours.names)) * len(shared)
