"""FSDP2: parameters, gradients and optimizer state are split along their first dimension over ranks.

A block is gathered before its forward and its backward pass and let go after it. Every rank must therefore run the same
number of passes: `runs_in_lockstep` of this package says so to who hands out slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from trainer.checkpoint.staging import Rows
from trainer.parallel.blocks import find_blocks
from trainer.parallel.process_group import Rank


class Sharded:
    """A network of which every rank has a part."""

    def __init__(
        self,
        model: nn.Module,
        rank: Rank,
        images: torch.Tensor,
        log: Callable[[str], None],
        *,
        shard_ranks: int,
        cpu_offload: bool,
        setup_timeout_s: float,
    ) -> None:
        # FSDP2 takes contiguous parameters only; with train.channels_last images alone have that layout.
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        blocks = find_blocks(model, images)
        # Every rank has built the same weights from the seed, but for what a callable of the user's does; copies
        # and parts must be of one network.
        for tensor in [*model.parameters(), *model.buffers()]:
            _broadcast(tensor, rank.device)
        log(_describe(model, blocks, rank.ranks, shard_ranks))
        mesh = _make_mesh(rank, shard_ranks, timedelta(seconds=setup_timeout_s))
        policy = CPUOffloadPolicy() if cpu_offload else OffloadPolicy()
        for _, block in blocks:
            fully_shard(block, mesh=mesh, offload_policy=policy)
        self._root = fully_shard(model, mesh=mesh, offload_policy=policy)
        # Buffers are no part of what is sharded; the root has moved them to the device.
        self.module = model

    @property
    def wrapped(self) -> nn.Module:
        """What a step calls: maps images to logits, and sees to it that gradients are averaged."""
        return self.module

    def reducing(self, now: bool) -> AbstractContextManager[None]:
        """Return a context for a forward and a backward pass: gradients are averaged over ranks in it, or add up.

        While they add up, a rank holds the gradients of the whole network.
        """
        return self._reducing(now)

    @contextmanager
    def _reducing(self, now: bool) -> Iterator[None]:
        self._root.set_requires_gradient_sync(now)
        yield

    def warm_up(self, images: torch.Tensor, forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Run a dummy pass, so that what is compiled is compiled before the first step.

        The order of sums is that of the blocks from the first step on. Arguments as for DDP.
        """
        state = {name: tensor.clone() for name, tensor in self.module.state_dict().items()}
        (forward(images).sum() * 0).backward()  # type: ignore[no-untyped-call]
        self.module.load_state_dict(state)
        self.module.zero_grad(set_to_none=True)


def release_gathered(model: nn.Module) -> None:
    """Let go of what a forward pass without a backward pass has left gathered; a network without parts stays as it is.

    Without it the network's parameters would be other objects than those of its optimizer.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a tensor that may be sharded; all ranks must call this in the same order."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def copy_full_tensor(target: torch.Tensor, value: torch.Tensor) -> None:
    """Copy a whole tensor into one that may be sharded: each rank takes its own rows. Nothing is communicated."""
    if isinstance(target, DTensor):
        first, rows = local_rows(target)
        target.to_local().copy_(value[first : first + rows] if rows else value[:0])
    else:
        target.copy_(value)


def load_full_state(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Put whole parameters and buffers into a network that may be sharded.

    Raises:
        RuntimeError: Names or shapes differ.
    """
    targets = model.state_dict()
    if not any(isinstance(target, DTensor) for target in targets.values()):
        model.load_state_dict(state)
        return
    shapes = {name: tuple(tensor.shape) for name, tensor in targets.items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if shapes != found:
        wrong = sorted(name for name in shapes.keys() | found.keys() if shapes.get(name) != found.get(name))
        raise RuntimeError(f"state of another network, differing in {', '.join(wrong[:5])}")
    for name, target in targets.items():
        copy_full_tensor(target, state[name])


def local_part(tensor: torch.Tensor) -> torch.Tensor | Rows:
    """Return what a checkpoint takes of a tensor from this rank: all of it, or its rows of one that is sharded.

    Of copies (HSDP) the first one's ranks have the rows, the other ones' have none. Nothing is communicated or copied.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    local, mesh = tensor.to_local(), tensor.device_mesh
    if mesh.size(tensor.placements.index(Shard(0))) == 1:
        return local
    first, _ = local_rows(tensor)
    is_copy = any(mesh.get_local_rank(i) for i, place in enumerate(tensor.placements) if place.is_replicate())
    return Rows(local[:0] if is_copy else local, tuple(tensor.shape), first)


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


def _make_mesh(rank: Rank, shard_ranks: int, timeout: timedelta) -> DeviceMesh:
    """Return ranks in rows of `shard_ranks`: a row holds the network once, rows are copies (HSDP)."""
    kind = rank.device.type
    if shard_ranks == rank.ranks:
        group = dist.group.WORLD
        assert group is not None
        return DeviceMesh.from_group(group, kind, mesh_dim_names=("shard",))
    rows = torch.arange(rank.ranks).view(-1, shard_ranks)
    # Made here, not by init_device_mesh: its groups would wait half an hour for a dead peer.
    shard, replicate = (
        dist.new_subgroups_by_enumeration(groups.tolist(), timeout=timeout)[0]  # type: ignore[no-untyped-call]
        for groups in (rows, rows.T)
    )
    return DeviceMesh.from_group([replicate, shard], kind, mesh=rows, mesh_dim_names=("replicate", "shard"))


def _broadcast(tensor: torch.Tensor, device: torch.device) -> None:
    """Overwrite a tensor by the first rank's; it may be on another device than what the ranks talk through."""
    there = tensor.detach().to(device)
    dist.broadcast(there, src=0)
    if there.device != tensor.device:
        tensor.detach().copy_(there)


def _describe(model: nn.Module, blocks: list[tuple[str, nn.Module]], ranks: int, shard_ranks: int) -> str:
    total = sum(parameter.numel() for parameter in model.parameters())
    sizes = [sum(parameter.numel() for parameter in block.parameters()) for _, block in blocks]
    copies = f", {ranks // shard_ranks} copies" if shard_ranks != ranks else ""
    summary = f"fsdp: {total} parameters over {shard_ranks} ranks{copies}"
    if not blocks:
        return f"{summary}, gathered as a whole: no block was found in a ModuleList or Sequential"
    return (
        f"{summary}, gathered in {len(blocks)} blocks ({blocks[0][0]} to {blocks[-1][0]}, at most {max(sizes)} "
        f"parameters) and the rest ({total - sum(sizes)})"
    )
