"""The network on all ranks: replicated (DDP) or sharded (FSDP2).

Both average gradients over ranks at the last slot of a step. Buffers, such as BatchNorm's running statistics, are
replicated. Rank 0's are authoritative: buffers that a pass writes are broadcast in each step.
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
from trainer.launch.choices import check_spread
from trainer.model.recompute import find_repeated_blocks
from trainer.model.trial import buffers_restored
from trainer.parallel.process_group import Rank

BUCKET_MB = 25.0
"""DDP bucket size in MiB; torch's default."""


def runs_in_lockstep(section: ParallelSection) -> bool:
    """Whether a forward pass has collectives, so that all ranks must run the same number per step."""
    return section.strategy == "fsdp" or section.sync_batch_norm


class SpreadNetwork:
    """A network on all ranks; every rank creates it.

    With ddp the model must be on the rank's device. `dtype` is the autocast dtype (None: no autocast). With
    `find_unused`, a pass may leave parameters without a gradient.

    Raises:
        ConfigError: The strategy needs a GPU.
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
        check_spread(section, has_gpu=rank.device.type == "cuda")
        _require_same_network(model, rank, name)
        if section.sync_batch_norm:
            if not any(isinstance(module, _BatchNorm) for module in model.modules()):
                log("warning: parallel.sync_batch_norm has no effect: the model has no BatchNorm")
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        self._ranks = rank.ranks
        self._replicated: list[nn.Parameter] = []
        """With fsdp: parameters that are not sharded."""
        self.module = model
        self.wrapped: nn.Module = model
        """The module to call in a step."""
        if section.strategy == "ddp":
            self.wrapped = _replicate(model, rank, find_unused)
        else:
            self._replicated = _shard(model, rank, dtype, log)

    @contextmanager
    def reducing(self, sync: bool) -> Iterator[None]:
        """Context of a forward and backward pass: average gradients over ranks if `sync`, else accumulate them."""
        if isinstance(self.wrapped, DistributedDataParallel):
            with nullcontext() if sync else self.wrapped.no_sync():
                yield
            return
        assert isinstance(self.wrapped, FSDPModule)
        self.wrapped.set_requires_gradient_sync(sync)
        yield
        if sync:
            self._average_replicated()

    @torch.no_grad()
    def _average_replicated(self) -> None:
        """Average the gradients of replicated parameters, which FSDP ignores."""
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
        """Run two dummy passes; parameters, buffers and gradients are restored.

        DDP uses its initial buckets in the first step and rebuilt ones later. Without warm-up, a resumed run would add
        gradients in another order and differ in the last bits with three or more ranks. This also compiles the network
        for the slot size; `loss` must call `wrapped`.
        """
        with buffers_restored(self.module):
            for _ in range(2):
                with self.reducing(True):
                    (loss() * 0).backward()  # type: ignore[no-untyped-call]
        self.module.zero_grad(set_to_none=True)


def _require_same_network(model: nn.Module, rank: Rank, name: str) -> None:
    """Raise ModelError if names, shapes or dtypes differ between ranks."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    local = [(key, tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad) for key, tensor in tensors]
    gathered = [local] * rank.ranks
    if rank.ranks > 1:
        dist.all_gather_object(gathered, local)
    if different := sorted({key for layout in gathered for key, *_ in set(layout) ^ set(gathered[0])}):
        raise ModelError(
            f"{name} is built differently on different ranks: {', '.join(different[:5])}",
            allowed="a network whose parameters and buffers have the same names, shapes and types in every process",
            todo="make the network depend on model.arguments only",
        )


def _replicate(model: nn.Module, rank: Rank, find_unused: bool) -> nn.Module:
    wrapped = DistributedDataParallel(
        model,
        device_ids=[rank.device] if rank.device.type == "cuda" else None,
        bucket_cap_mb=BUCKET_MB,
        find_unused_parameters=find_unused,
        # Saves a copy of the gradients. They become views after the last slot only, so sums keep their order.
        gradient_as_bucket_view=True,
    )
    # The stepper broadcasts buffers. Set as an attribute, since torch 2.13 renames the argument.
    wrapped.broadcast_buffers = False
    return wrapped


def _shard(model: nn.Module, rank: Rank, dtype: torch.dtype | None, log: Callable[[str], None]) -> list[nn.Parameter]:
    """Shard parameters along their first dimension; return the replicated ones."""
    model.to("cpu")
    for parameter in model.parameters():
        # FSDP2 requires contiguous parameters; channels_last applies to images only.
        parameter.data = parameter.data.contiguous()
    _take_first_ranks(model, rank)
    replicated = _replicated_parameters(model, mixed=dtype is not None)
    for parameter in replicated:
        parameter.data = parameter.data.to(rank.device)
    blocks = _find_blocks(model)
    log(_describe(model, blocks, replicated, rank.ranks))
    group = dist.group.WORLD
    assert group is not None
    mesh = DeviceMesh.from_group(group, rank.device.type, mesh_dim_names=("shard",))
    # Autocast handles activations, as with ddp. Parameters are cast before the all-gather, which halves the traffic.
    precision = MixedPrecisionPolicy(dtype, torch.float32 if dtype else None, cast_forward_inputs=False)
    for block in blocks.values():
        fully_shard(block, mesh=mesh, mp_policy=precision, ignored_params=set(replicated))
    # The loss is computed in float32.
    precision = replace(precision, output_dtype=torch.float32 if dtype else None)
    fully_shard(model, mesh=mesh, mp_policy=precision, ignored_params=set(replicated))
    if dtype is not None:
        # Evaluation gathers parameters of this dtype too.
        model.forward = torch.autocast(rank.device.type, dtype=dtype)(model.forward)
    return replicated


@torch.no_grad()
def _take_first_ranks(model: nn.Module, rank: Rank) -> None:
    """Broadcast parameters and buffers of rank 0, the only rank that reads model.weights.

    Includes buffers with persistent=False, and user networks with a different initialisation per process.
    """
    if rank.ranks > 1:
        for tensor in [*model.parameters(), *model.buffers()]:
            # One by one on the device: NCCL is faster, and all tensors may not fit.
            value = tensor.to(rank.device).contiguous()
            if value.numel():
                dist.broadcast(value.reshape(-1).view(torch.uint8), src=0)
                tensor.copy_(value)


def _replicated_parameters(model: nn.Module, *, mixed: bool) -> list[nn.Parameter]:
    """Return the parameters that are not sharded: scalars, which have no rows.

    In mixed precision also vectors of modules with buffers, such as BatchNorm's: torch's kernels need the dtype of the
    running statistics, float32 (aten/src/ATen/native/Normalization.cpp).
    """
    replicated: dict[nn.Parameter, None] = {}
    for module in model.modules():
        beside_buffers = mixed and any(buffer.is_floating_point() for buffer in module.buffers(recurse=False))
        for parameter in module.parameters(recurse=False):
            if parameter.ndim == 0 or (beside_buffers and parameter.ndim == 1):
                replicated[parameter] = None
    return list(replicated)


def _find_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Return the FSDP units: the blocks of activation checkpointing.

    Blocks with tied parameters are excluded, since FSDP would untie them.
    """
    holders = Counter(parameter for module in model.modules() for parameter in module.parameters(recurse=False))
    return {
        name: block
        for name, block in find_repeated_blocks(model).items()
        if name and all(holders[parameter] == 1 for parameter in block.parameters())
    }


def _describe(model: nn.Module, blocks: dict[str, nn.Module], replicated: list[nn.Parameter], ranks: int) -> str:
    total, num_replicated = (sum(map(nn.Parameter.numel, group)) for group in (model.parameters(), replicated))
    names = list(blocks)
    gathered = f"in {len(blocks)} blocks ({names[0]} to {names[-1]}) and the rest" if blocks else "as a whole"
    return f"fsdp: {total} parameters over {ranks} ranks, gathered {gathered}; {num_replicated} of them on every rank"


def release_gathered(model: nn.Module) -> None:
    """Reshard parameters that a forward pass without a backward pass left gathered.

    Otherwise the network's parameters would not be the objects in its optimizer.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


# --- buffers ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def share_buffers(buffers: Iterable[torch.Tensor]) -> None:
    """Broadcast buffers of rank 0, in one message per dtype and device; every rank must call this."""
    if dist.get_world_size() == 1:
        return
    by_type: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for buffer in buffers:
        by_type.setdefault((buffer.dtype, buffer.device), []).append(buffer)
    for group in by_type.values():
        flat = torch.cat([buffer.reshape(-1) for buffer in group])
        dist.broadcast(flat, src=0)
        parts = torch.split(flat, [buffer.numel() for buffer in group])
        # One kernel for all buffers.
        torch._foreach_copy_(group, [part.view_as(buffer) for buffer, part in zip(group, parts, strict=True)])


@contextmanager
def written_buffers(model: nn.Module) -> Iterator[set[str]]:
    """Yield a set that has, after the block, the names of buffers written or replaced in it.

    Writes are detected by `_version`. Running statistics of normalisation layers are always included, since their
    kernels do not increment it.
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
        previous, version = before.get(name, (None, -1))
        if buffer is not previous or buffer._version != version:
            names.add(name)


# --- tensors that may be sharded --------------------------------------------------------------------------------------


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's rows of a sharded tensor, or the tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Gather a tensor that may be sharded; all ranks must call this in the same order."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def copy_tensor(target: torch.Tensor, value: torch.Tensor | StoredTensor) -> None:
    """Copy an unsharded tensor into one that may be sharded; only this rank's rows of a stored tensor are read."""
    if isinstance(target, DTensor):
        local, mesh = target.to_local(), target.device_mesh
        # As torch.chunk: all parts but the last have the same number of rows.
        first = mesh.get_local_rank() * -(-target.shape[0] // mesh.size())
        local.copy_(value[first : first + len(local)])
    else:
        target.copy_(value[...])


def load_state(model: nn.Module, state: Group) -> None:
    """Copy parameters and buffers of equal names and shapes into a network that may be sharded."""
    for name, target in model.state_dict().items():
        copy_tensor(target, state[name])
