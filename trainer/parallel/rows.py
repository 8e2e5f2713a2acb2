"""Tensors that may be sharded along dimension 0 (DTensor): this rank's rows, the whole, and copies between them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard

from trainer.checkpoint.tensors import ChooseRows, Rows, global_shape


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory that this rank has of a tensor: all of it, or its rows of one that is sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a tensor that may be sharded; all ranks must call this in the same order."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_rows(tensor: DTensor) -> tuple[int, int]:
    """Return the first row and the number of rows that this rank has of a tensor sharded along dimension 0.

    As torch.chunk cuts: all parts but the last ones have the same number of rows, the last may have none.
    """
    dimension = tensor.placements.index(Shard(0))
    part, parts = tensor.device_mesh.get_local_rank(dimension), tensor.device_mesh.size(dimension)
    rows = tensor.shape[0]
    size = -(-rows // parts)
    first = min(part * size, rows)
    found = min(size, rows - first)
    assert tensor.to_local().shape[0] == found, (tensor.shape, tensor.to_local().shape, found)
    return first, found


def local_part(tensor: torch.Tensor) -> torch.Tensor | Rows:
    """Return what a checkpoint takes of a tensor from this rank: all of it, or its rows of one that is sharded.

    Nothing is communicated or copied.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    local, mesh = tensor.to_local(), tensor.device_mesh
    if mesh.size(tensor.placements.index(Shard(0))) == 1:
        return local
    first, _ = local_rows(tensor)
    return Rows(local, tuple(tensor.shape), first)


def wanted_rows(model: nn.Module) -> ChooseRows | None:
    """Return which rows of a checkpoint's tensors this rank holds; None where no parameter is sharded: all of them."""
    held = {
        name: (tuple(parameter.shape), local_rows(parameter))
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if isinstance(parameter, DTensor)
    }

    def choose(group: str, name: str, shape: tuple[int, ...]) -> tuple[int, int]:
        key = name.rpartition("/")[0] if group == "optimizer" else name
        if key not in held or held[key][0] != shape:
            # What does not fit comes whole too, to be refused by its name.
            return 0, shape[0]
        first, rows = held[key][1]
        return first, first + rows

    return choose if held else None


@torch.no_grad()
def copy_tensor(target: torch.Tensor, value: torch.Tensor | Rows) -> None:
    """Copy a whole tensor, or the rows of this rank, into one that may be sharded. Nothing is communicated."""
    if isinstance(target, DTensor):
        first, rows = local_rows(target)
        given, offset = (value.tensor, value.offset) if isinstance(value, Rows) else (value, 0)
        part = given[first - offset : first - offset + rows] if rows else given[:0]
        assert part.shape[0] == rows, (target.shape, first, rows, given.shape, offset)
        target.to_local().copy_(part)
    else:
        assert not isinstance(value, Rows), "a tensor that is not sharded takes all rows"
        target.copy_(value)


def load_state(model: nn.Module, state: Mapping[str, torch.Tensor | Rows]) -> None:
    """Put parameters and buffers, whole or the rows of this rank, into a network that may be sharded.

    Raises:
        RuntimeError: Names or shapes differ.
    """
    targets = model.state_dict()
    if not any(isinstance(target, DTensor) for target in targets.values()):
        model.load_state_dict(state)
        return
    shapes = {name: tuple(tensor.shape) for name, tensor in targets.items()}
    found = {name: global_shape(tensor) for name, tensor in state.items()}
    if shapes != found:
        wrong = sorted(name for name in shapes.keys() | found.keys() if shapes.get(name) != found.get(name))
        raise RuntimeError(f"state of another network, differing in {', '.join(wrong[:5])}")
    for name, target in targets.items():
        copy_tensor(target, state[name])
