"""The network on all ranks: a copy each (DDP) or a part each (FSDP2).

Both average gradients over ranks at the last slot of a step. Buffers, such as BatchNorm's running statistics, are whole
on every rank. Ranks see other slots, so rank 0's are authoritative: those that a pass writes go to all in each step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parallel import DistributedDataParallel

from contracts.config import ParallelSection
from contracts.errors import ModelError
from trainer.checkpoint.loading import Group, StoredTensor
from trainer.launch.choices import DeviceKind, check_spread
from trainer.model.recompute import find_repeated_blocks
from trainer.model.trial import buffers_restored
from trainer.parallel.process_group import Rank

BUCKET_MB = 25.0
"""MiB of gradients that DDP averages together while the backward pass goes on; torch's own default."""


def runs_in_lockstep(section: ParallelSection) -> bool:
    """Whether a forward pass communicates, so that all ranks must run equally many in a step."""
    return section.strategy == "fsdp" or section.sync_batch_norm


class SpreadNetwork:
    """A network on all ranks, each of which makes this.

    With ddp it is on the device of the rank, with fsdp on any. `dtype` is that of forward and backward passes (None:
    that of the parameters); with `find_unused` a pass may leave parameters without a gradient.

    Raises:
        ConfigError: It needs a GPU.
        ModelError: Ranks have built different networks.
    """

    def __init__(
        self,
        model: nn.Module,
        section: ParallelSection,
        rank: Rank,
        log: Callable[[str], None],
        *,
        name: str,
        dtype: torch.dtype | None,
        find_unused: bool = False,
    ) -> None:
        check_spread(section, DeviceKind("GPU" if rank.device.type == "cuda" else ""))
        _require_same_network(model, rank, name)
        if section.sync_batch_norm:
            if not any(isinstance(module, _BatchNorm) for module in model.modules()):
                log("warning: parallel.sync_batch_norm has no effect: the model has no BatchNorm")
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        self._ranks = rank.ranks
        self._replicated: list[nn.Parameter] = []
        """With fsdp: parameters that every rank has whole."""
        self.module = model
        self.wrapped: nn.Module = model
        """What a step calls as the network."""
        if section.strategy == "ddp":
            self.wrapped = _replicate(model, rank, find_unused)
        else:
            self._replicated = _shard(model, rank, dtype, log)

    @contextmanager
    def reducing(self, now: bool) -> Iterator[None]:
        """Surround a forward and a backward pass: gradients are averaged over ranks in it, or add up on each rank."""
        if isinstance(self.wrapped, DistributedDataParallel):
            with nullcontext() if now else self.wrapped.no_sync():
                yield
            return
        assert isinstance(self.wrapped, FSDPModule)
        self.wrapped.set_requires_gradient_sync(now)
        yield
        if now:
            self._average_replicated()

    @torch.no_grad()
    def _average_replicated(self) -> None:
        """Average the gradients that FSDP leaves alone."""
        learning = [parameter for parameter in self._replicated if parameter.requires_grad]
        if not learning or self._ranks == 1:
            return
        for parameter in learning:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in learning if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        parts = torch.split(flat / self._ranks, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def warm_up(self, loss: Callable[[], torch.Tensor]) -> None:
        """Run two dummy passes; parameters, buffers and gradients are as before afterwards.

        DDP reduces its first step in the initial buckets and later ones in rebuilt buckets. Without this a resumed run
        adds gradients in another order than an undisturbed one and differs in the last bits at three and more ranks.
        It also compiles a network that is to be compiled, for this size of slot; `loss` is computed with `wrapped`.
        """
        with buffers_restored(self.module):
            for _ in range(2):
                with self.reducing(True):
                    (loss() * 0).backward()  # type: ignore[no-untyped-call]
        self.module.zero_grad(set_to_none=True)


def _require_same_network(model: nn.Module, rank: Rank, name: str) -> None:
    """Refuse networks that differ between ranks in names, shapes or types: their collectives would not match."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    own = [(key, tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad) for key, tensor in tensors]
    answers = [own] * rank.ranks
    if rank.ranks > 1:
        dist.all_gather_object(answers, own)
    if different := sorted({key for answer in answers for key, *_ in set(answer) ^ set(answers[0])}):
        raise ModelError(
            f"{name} is built differently on different ranks: {', '.join(different[:5])}",
            allowed="a network whose parameters and buffers have the same names, shapes and types in every process",
            todo="let nothing but model.arguments decide what the network is made of",
        )


def _replicate(model: nn.Module, rank: Rank, find_unused: bool) -> nn.Module:
    wrapped = DistributedDataParallel(
        model,
        device_ids=[rank.device] if rank.device.type == "cuda" else None,
        bucket_cap_mb=BUCKET_MB,
        find_unused_parameters=find_unused,
        # Otherwise gradients are held twice. They are views of buckets after the last slot of a step; until then, as
        # after zero_grad(set_to_none=True), they have memory of their own, so sums come in the same order.
        gradient_as_bucket_view=True,
    )
    # The stepper shares buffers, for both strategies alike. An attribute, since torch 2.13 renames the argument.
    wrapped.broadcast_buffers = False
    return wrapped


def _shard(model: nn.Module, rank: Rank, dtype: torch.dtype | None, log: Callable[[str], None]) -> list[nn.Parameter]:
    """Shard a network along the first dimension of its parameters; return those that every rank keeps whole."""
    model.to("cpu")
    for parameter in model.parameters():
        # FSDP2 takes no others; with train.channels_last only images have that layout.
        parameter.data = parameter.data.contiguous()
    _take_first_ranks(model, rank)
    whole = _whole_parameters(model, mixed=dtype is not None)
    for parameter in whole:
        parameter.data = parameter.data.to(rank.device)
    blocks = _find_blocks(model)
    log(_describe(model, blocks, whole, rank.ranks))
    group = dist.group.WORLD
    assert group is not None
    mesh = DeviceMesh.from_group(group, rank.device.type, mesh_dim_names=("shard",))
    # Activations are autocast's business, as with ddp; parameters are cast before they are gathered, which halves what
    # is sent.
    precision = MixedPrecisionPolicy(dtype, torch.float32 if dtype else None, cast_forward_inputs=False)
    for block in blocks.values():
        fully_shard(block, mesh=mesh, mp_policy=precision, ignored_params=set(whole))
    # The loss is computed in float32.
    precision = replace(precision, output_dtype=torch.float32 if dtype else None)
    fully_shard(model, mesh=mesh, mp_policy=precision, ignored_params=set(whole))
    if dtype is not None:
        # In evaluation too: what is gathered is of this type then as well.
        model.forward = torch.autocast(rank.device.type, dtype=dtype)(model.forward)
    return whole


@torch.no_grad()
def _take_first_ranks(model: nn.Module, rank: Rank) -> None:
    """Give every rank the parameters and buffers of rank 0, which alone reads weights to start from.

    Also of a callable that draws other weights in each process, and buffers that are in no state_dict.
    """
    if rank.ranks > 1:
        for tensor in [*model.parameters(), *model.buffers()]:
            # On the device one by one: all may not fit, and NCCL is faster than the host's network.
            value = tensor.to(rank.device).contiguous()
            if value.numel():
                # As bytes, whatever the type.
                dist.broadcast(value.reshape(-1).view(torch.uint8), src=0)
                tensor.copy_(value)


def _whole_parameters(model: nn.Module, *, mixed: bool) -> list[nn.Parameter]:
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


def _find_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Return the blocks that are gathered as one: those of activation checkpointing.

    One that shares a parameter with the rest stays with the rest: FSDP would untie them.
    """
    holders = Counter(parameter for module in model.modules() for parameter in module.parameters(recurse=False))
    return {
        name: block
        for name, block in find_repeated_blocks(model).items()
        if name and all(holders[parameter] == 1 for parameter in block.parameters())
    }


def _describe(model: nn.Module, blocks: dict[str, nn.Module], whole: list[nn.Parameter], ranks: int) -> str:
    total, on_all = (sum(parameter.numel() for parameter in each) for each in (model.parameters(), whole))
    names = list(blocks)
    gathered = f"in {len(blocks)} blocks ({names[0]} to {names[-1]}) and the rest" if blocks else "as a whole"
    return f"fsdp: {total} parameters over {ranks} ranks, gathered {gathered}; {on_all} of them on every rank"


def release_gathered(model: nn.Module) -> None:
    """Free what a forward pass without a backward pass has left gathered by FSDP.

    Without it the network's parameters would be other objects than those of its optimizer.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


# --- buffers ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def share_buffers(buffers: Iterable[torch.Tensor]) -> None:
    """Give every rank the buffers of rank 0, in one message per type; every rank must call this."""
    if dist.get_world_size() == 1:
        return
    by_type: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for buffer in buffers:
        by_type.setdefault((buffer.dtype, buffer.device), []).append(buffer)
    for group in by_type.values():
        flat = torch.cat([buffer.reshape(-1) for buffer in group])
        dist.broadcast(flat, src=0)
        parts = torch.split(flat, [buffer.numel() for buffer in group])
        # One kernel for all of them: a residual network has hundreds.
        torch._foreach_copy_(group, [part.view_as(buffer) for buffer, part in zip(group, parts, strict=True)])


@contextmanager
def written_buffers(model: nn.Module) -> Iterator[set[str]]:
    """Give the names of the buffers that are written to inside the block, filled at its end.

    Running statistics of normalisation layers count always, since their kernels pass by the counter of in-place writes
    (`_version`, torch/_tensor.py) that tells of others; another tensor under the same name counts too.
    """
    before = {name: (buffer, buffer._version) for name, buffer in model.named_buffers()}
    names = {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if isinstance(module, _NormBase) and module.training
        for name, _ in module.named_buffers(recurse=False)
    }
    yield names
    for name, buffer in model.named_buffers():
        known, version = before.get(name, (None, -1))
        if buffer is not known or buffer._version != version:
            names.add(name)


# --- tensors that may be sharded --------------------------------------------------------------------------------------


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory that this rank has of a tensor: all of it, or its rows of one that is sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a tensor that may be sharded; all ranks must call this in the same order."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def copy_tensor(target: torch.Tensor, value: torch.Tensor | StoredTensor) -> None:
    """Copy a whole tensor into one that may be sharded: of a stored one the rows of this rank alone are read."""
    if isinstance(target, DTensor):
        local, mesh = target.to_local(), target.device_mesh
        # As torch.chunk cuts: all parts but the last ones have the same number of rows.
        first = mesh.get_local_rank() * -(-target.shape[0] // mesh.size())
        local.copy_(value[first : first + len(local)])
    else:
        target.copy_(value[...])


def load_state(model: nn.Module, state: Group) -> None:
    """Copy parameters and buffers into a network that may be sharded; names and shapes are those of its own."""
    for name, target in model.state_dict().items():
        copy_tensor(target, state[name])
