"""Host buffers: a copy of the state, laid out as the files will be, made once and used for every checkpoint."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import nn

from contracts.artifacts import tensor_file
from contracts.errors import ModelError
from trainer.checkpoint.framing import DTYPES, Entry, make_header
from trainer.checkpoint.tensors import Group, Groups, Rows, is_sharded

# Name, type, shape, shape of the whole tensor or None where this is it, first row.
Described = tuple[str, torch.dtype, tuple[int, ...], tuple[int, ...] | None, int]


def require_storable(model: nn.Module, name: str) -> None:
    """Refuse a network with state that a checkpoint cannot hold; called before its first step.

    Args:
        model: The network.
        name: As the configuration names it.

    Raises:
        ModelError: A parameter or buffer is of another type than those of `DTYPES`, or a module has state that is none.
    """
    for key, value in model.state_dict().items():
        # torch.nn.Module.state_dict names what get_extra_state returns so. It is loaded by set_extra_state alone, which
        # would never see the rows of a sharded network.
        if not isinstance(value, torch.Tensor) or key.rpartition(".")[2] == "_extra_state":
            raise ModelError(
                f"{name}: {key} is state of its own (get_extra_state)",
                allowed="parameters and buffers: nothing of a checkpoint is pickled",
                todo="keep it in a buffer (register_buffer), or leave get_extra_state out",
            )
        if value.dtype not in DTYPES.values():
            raise ModelError(
                f"{name}: {key} is of type {_name(value.dtype)}, which a checkpoint cannot hold",
                allowed=", ".join(map(_name, DTYPES.values())),
                todo="keep complex numbers as torch.view_as_real gives them and float8 as uint8, or register a buffer "
                "that can be computed again with persistent=False",
            )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class StagedFile:
    """A file that can be written from memory."""

    group: str
    name: str
    header: bytes
    data: torch.Tensor
    """[bytes] uint8."""
    tensors: dict[str, torch.Tensor]
    """Views of `data`."""
    is_whole: bool
    """Whether it has all of its group."""


class HostBuffer:
    """A copy of one rank's part of the state.

    Args:
        rank: This rank.
        ranks: Number of ranks.
        pinned: Lock its pages, so that a GPU copies to it without a detour.
        log: Told once where pages cannot be locked.
    """

    def __init__(
        self, rank: int, ranks: int, *, pinned: bool, log: Callable[[str], None] = lambda message: None
    ) -> None:
        self._rank, self._ranks, self._pinned, self._log = rank, ranks, pinned, log
        self._layout: object = None
        self.files: list[StagedFile] = []

    @torch.no_grad()
    def stage(self, groups: Groups) -> list[StagedFile]:
        """Copy the tensors that this rank writes; return the files, which hold until the next call.

        The state may change as soon as this returns. Memory is taken at the first call, and again only when names,
        types or shapes differ from the call before.
        """
        mine = {name: _own(group, self._rank) for name, group in groups.items()}
        layout = {name: [_describe(key, value) for key, value in group.items()] for name, group in mine.items()}
        if layout != self._layout:
            # First let go of the old memory: two copies might not fit.
            self.files, self._layout = [], None
            self.files = [
                self._lay_out(name, groups[name], layout[name])
                for name in groups
                if self._rank == 0 or is_sharded(groups[name])
            ]
            self._layout = layout
        on_gpu = False
        for file in self.files:
            sources = {key: _tensor(value) for key, value in mine[file.group].items()}
            on_gpu |= any(tensor.is_cuda for tensor in sources.values())
            if sources:
                torch._foreach_copy_(
                    [file.tensors[key] for key in sources], list(sources.values()), non_blocking=self._pinned
                )
        if on_gpu and self._pinned:
            torch.cuda.current_stream().synchronize()
        return self.files

    def _lay_out(self, name: str, group: Group, tensors: list[Described]) -> StagedFile:
        header, entries = make_header(tensors)
        data = torch.empty(entries[-1].stop if entries else 0, dtype=torch.uint8)
        if self._pinned and data.numel() and (failure := _lock_pages(data)) is not None:
            self._pinned = False
            self._log(f"warning: the host memory of checkpoints is not page-locked, saves take longer: {failure}")
        sharded = is_sharded(group)
        return StagedFile(
            group=name,
            name=tensor_file(name, self._rank, self._ranks) if sharded else tensor_file(name),
            header=header,
            data=data,
            tensors={entry.name: _view(data, entry) for entry in entries},
            is_whole=not sharded,
        )


def _own(group: Group, rank: int) -> dict[str, torch.Tensor | Rows]:
    return {
        name: value
        for name, value in group.items()
        if (value.tensor.shape[0] > 0 if isinstance(value, Rows) else rank == 0)
    }


def _tensor(value: torch.Tensor | Rows) -> torch.Tensor:
    return value.tensor if isinstance(value, Rows) else value


def _describe(name: str, value: torch.Tensor | Rows) -> Described:
    tensor = _tensor(value)
    whole, offset = (value.global_shape, value.offset) if isinstance(value, Rows) else (None, 0)
    return name, tensor.dtype, tuple(tensor.shape), whole, offset


def _view(data: torch.Tensor, entry: Entry) -> torch.Tensor:
    return data[entry.start : entry.stop].view(entry.dtype).view(entry.shape)


def _lock_pages(data: torch.Tensor) -> str | None:
    """Lock the pages of a tensor in host memory until it is freed; return what went wrong, or None.

    torch.empty(pin_memory=True) would round its bytes up to a power of two and never give them back
    (CachingHostAllocator), so ordinary memory is registered, as torch/distributed/_state_dict_utils.py does.
    """
    try:
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        # cudaHostRegisterPortable: https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html
        code = int(cudart.cudaHostRegister(data.data_ptr(), data.numel(), 1))
    except (AssertionError, RuntimeError) as error:
        return str(error)
    if code != 0:
        # The runtime keeps the error for whoever asks next, which would be the check behind a kernel of training; torch
        # has no cudaGetLastError to ask first.
        with suppress(RuntimeError):
            torch.ones(1, device="cuda")
        return f"cudaHostRegister returned {code} for {data.numel()} bytes"
    # Before its memory is freed. At the end of the process the driver does it; to ask for it could wait for a GPU that
    # hangs.
    weakref.finalize(data, cudart.cudaHostUnregister, data.data_ptr()).atexit = False
    return None
