"""FSDP2: parameters, gradients and optimizer state are split along their first dimension over ranks.

A block is gathered before its forward and its backward pass and let go after it. Every rank must therefore run the same
number of passes: `runs_in_lockstep` of this package says so to who hands out slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from trainer.model.trial import buffers_restored
from trainer.parallel.process_group import Rank
from trainer.parallel.rows import local_rows, local_tensor


class Sharded:
    """A network of which every rank has a part.

    Args:
        model: On the CPU with the first rank's weights there; on the CPU or the meta device of the other ranks.
        gathered_blocks: Names of the blocks that are gathered as one.
        rank: This process.
        log: Says how the network is spread.
        dtype: Type that forward and backward passes compute in; None: that of the parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        gathered_blocks: list[str],
        rank: Rank,
        log: Callable[[str], None],
        *,
        dtype: torch.dtype | None,
    ) -> None:
        self._rank = rank
        for parameter in model.parameters():
            # FSDP2 takes no others; with train.channels_last images alone have that layout.
            parameter.data = parameter.data.contiguous()
        replicated = _replicated_parameters(model, mixed=dtype is not None)
        first_ranks = _first_ranks_tensors(model) if rank.is_first else {}
        blocks = [model.get_submodule(name) for name in gathered_blocks]
        log(_describe(model, gathered_blocks, replicated, rank.ranks))
        group = dist.group.WORLD
        assert group is not None
        mesh = DeviceMesh.from_group(group, rank.device.type, mesh_dim_names=("shard",))
        # Activations are autocast's business, as with ddp; here parameters are cast before they are gathered, which
        # halves what is sent.
        precision = MixedPrecisionPolicy(dtype, torch.float32 if dtype else None, cast_forward_inputs=False)
        ignored = set(replicated)
        for block in blocks:
            fully_shard(block, mesh=mesh, mp_policy=precision, ignored_params=ignored)
        # The loss is computed in float32.
        precision = replace(precision, output_dtype=torch.float32 if dtype else None)
        self._root = fully_shard(model, mesh=mesh, mp_policy=precision, ignored_params=ignored)
        if dtype is not None:
            # In evaluation too: what is gathered is of this type then as well.
            model.forward = torch.autocast(rank.device.type, dtype=dtype)(model.forward)
        _allocate(model, rank.device)
        self._replicated = [p for p in model.parameters() if not isinstance(p, DTensor)]
        _receive(model, first_ranks, rank)
        self.module = model

    @property
    def wrapped(self) -> nn.Module:
        """What a step calls as the network; it sees to it that gradients are averaged."""
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
        if now:
            self._average_replicated()

    @torch.no_grad()
    def _average_replicated(self) -> None:
        """Average the gradients of the parameters that are not sharded, which FSDP leaves alone."""
        asking = [parameter for parameter in self._replicated if parameter.requires_grad]
        if not asking or self._rank.ranks == 1:
            return
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in asking]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self._rank.ranks
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for parameter, part in zip(asking, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def warm_up(self, loss: Callable[[], torch.Tensor]) -> None:
        """Run a dummy pass, so that what is compiled is compiled for this size of slot before the first step.

        The order of sums is that of the blocks from the first step on. Arguments as for DDP.
        """
        with buffers_restored(self.module), self.reducing(True):
            (loss() * 0).backward()  # type: ignore[no-untyped-call]
        self.module.zero_grad(set_to_none=True)


def release_gathered(model: nn.Module) -> None:
    """Let go of what a forward pass without a backward pass has left gathered; a network without parts stays as it is.

    Without it the network's parameters would be other objects than those of its optimizer.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _replicated_parameters(model: nn.Module, *, mixed: bool) -> list[nn.Parameter]:
    """Return the parameters of which every rank keeps all: scalars, which have no rows.

    In mixed precision also the vectors beside buffers, such as BatchNorm's: torch's kernels take float32 for all of
    them or for none (aten/src/ATen/native/Normalization.cpp), and running statistics are float32.
    """
    found: dict[nn.Parameter, None] = {}
    for module in model.modules():
        beside_buffers = mixed and any(buffer.is_floating_point() for buffer in module.buffers(recurse=False))
        for parameter in module.parameters(recurse=False):
            if parameter.ndim == 0 or (beside_buffers and parameter.ndim == 1):
                found[parameter] = None
    return list(found)


def _first_ranks_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    # Detached: fully_shard gives parameters other memory.
    return {name: tensor.detach() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}


def _allocate(model: nn.Module, device: torch.device) -> None:
    """Take memory for this rank's rows and for what is not sharded, where a network has none (the meta device)."""
    tensors = [*model.parameters(), *model.buffers()]
    if not any(tensor.is_meta for tensor in tensors):
        for tensor in tensors:
            if not isinstance(tensor, DTensor):
                tensor.data = tensor.data.to(device)
        return
    tied = [*_tied(model.named_parameters(remove_duplicate=False)), *_tied(model.named_buffers(remove_duplicate=False))]

    def allocate(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device=device)

    # As nn.Module.to_empty does it.
    model._apply(allocate)  # type: ignore[no-untyped-call]
    for first, *others in tied:
        for name in others:
            holder, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(holder), attribute, _get(model, first))


def _tied(named: Iterator[tuple[str, torch.Tensor]]) -> list[list[str]]:
    """Return the names of tensors that several modules hold, by tensor."""
    names: dict[int, list[str]] = {}
    for name, tensor in named:
        names.setdefault(id(tensor), []).append(name)
    return [found for found in names.values() if len(found) > 1]


def _get(model: nn.Module, name: str) -> object:
    holder, _, attribute = name.rpartition(".")
    return getattr(model.get_submodule(holder), attribute)


@torch.no_grad()
def _receive(model: nn.Module, first_ranks: dict[str, torch.Tensor], rank: Rank) -> None:
    """Give every rank its rows of the first rank's parameters, and the first rank's buffers; all ranks together."""
    for name, target in [*model.named_parameters(), *model.named_buffers()]:
        # Whatever its type: bytes are sent.
        whole = first_ranks.get(name)
        if isinstance(target, DTensor):
            _scatter_rows(target, whole, rank)
        else:
            there = (target if whole is None else whole).to(rank.device).contiguous()
            if rank.ranks > 1 and there.numel():
                dist.broadcast(_bytes(there), src=0)
            target.copy_(there)


def _scatter_rows(target: DTensor, whole: torch.Tensor | None, rank: Rank) -> None:
    """Send every rank its rows of a tensor that the first rank has."""
    _, rows = local_rows(target)
    parts = target.device_mesh.size(target.device_mesh.ndim - 1)
    # As torch.chunk cuts; the last parts are filled up, since ranks get equally many bytes.
    size = -(-target.shape[0] // parts)
    mine = torch.empty((size, *target.shape[1:]), dtype=target.dtype, device=rank.device)
    pieces = None
    if whole is not None:
        filled = torch.zeros((size * parts, *target.shape[1:]), dtype=target.dtype, device=rank.device)
        filled[: target.shape[0]] = whole
        pieces = [_bytes(filled[number % parts * size :][:size]) for number in range(rank.ranks)]
    if rank.ranks == 1:
        assert whole is not None
        mine = filled
    elif mine.numel():
        dist.scatter(_bytes(mine), pieces, src=0)
    local_tensor(target).copy_(mine[:rows])


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _describe(model: nn.Module, gathered_blocks: list[str], replicated: list[nn.Parameter], ranks: int) -> str:
    total = sum(parameter.numel() for parameter in model.parameters())
    sizes = [sum(p.numel() for p in model.get_submodule(name).parameters()) for name in gathered_blocks]
    summary = f"fsdp: {total} parameters over {ranks} ranks"
    if replicated:
        summary += f", {sum(parameter.numel() for parameter in replicated)} of them on every rank"
    if not gathered_blocks:
        return f"{summary}, gathered as a whole: no block was found in a ModuleList or Sequential"
    return (
        f"{summary}, gathered in {len(gathered_blocks)} blocks ({gathered_blocks[0]} to {gathered_blocks[-1]}, at most "
        f"{max(sizes)} parameters) and the rest ({total - sum(sizes)})"
    )
