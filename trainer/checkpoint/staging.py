"""Copy the state to host memory in the layout of safetensors files (see loading.py)."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from contracts.artifacts import tensor_file
from contracts.errors import ModelError
from trainer.checkpoint.loading import DTYPES, LENGTH_BYTES
from trainer.parallel.process_group import Rank
from trainer.parallel.spread import local_tensor

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# A cache line; torch aligns memory to it.
_LINE_BYTES = 64
Tensors = Mapping[str, torch.Tensor]


def require_storable(model: nn.Module, name: str) -> None:
    """Raise ModelError if a checkpoint cannot store the network's state; called before the first step."""
    for key, value in model.state_dict().items():
        # Module.state_dict stores the result of get_extra_state under this name.
        if not isinstance(value, torch.Tensor) or key.rpartition(".")[2] == "_extra_state":
            raise ModelError(
                f"{name}: {key} is state of its own (get_extra_state)",
                allowed="parameters and buffers: nothing of a checkpoint is pickled",
                todo="keep it in a buffer (register_buffer), or leave get_extra_state out",
            )
        if value.dtype not in _NAMES:
            raise _unstorable(f"{name}: {key}", value.dtype)


def _unstorable(name: str, dtype: torch.dtype) -> ModelError:
    dtype_name, *allowed = [str(type_).removeprefix("torch.") for type_ in (dtype, *_NAMES)]
    return ModelError(
        f"{name} is of type {dtype_name}, which a checkpoint cannot hold",
        allowed=", ".join(allowed),
        todo="keep complex numbers as torch.view_as_real gives them and float8 as uint8, or register a buffer "
        "that can be computed again with persistent=False",
    )


def is_sharded(group: Tensors) -> bool:
    """Whether a group has sharded tensors, so that every rank writes a file; equal on all ranks."""
    return any(isinstance(tensor, DTensor) and tensor.device_mesh.size() > 1 for tensor in group.values())


@dataclass(frozen=True)
class StagedFile:
    """A safetensors file in host memory."""

    group: str
    name: str
    content: torch.Tensor
    """[bytes] uint8."""
    tensors: dict[str, torch.Tensor]
    """Views of `content`."""


class HostBuffer:
    """Copy of the tensors that one rank writes; the memory is reused for every checkpoint."""

    def __init__(self, rank: Rank, log: Callable[[str], None] = lambda message: None) -> None:
        self._rank, self._log = rank, log
        self._pinned = rank.device.type == "cuda"
        self._layout: object = None
        self._files: list[StagedFile] = []

    @torch.no_grad()
    def stage(self, groups: Mapping[str, Tensors]) -> list[StagedFile]:
        """Copy the tensors that this rank writes; return its files, valid until the next call.

        The state may change after the return. Memory is reallocated only if names, dtypes or shapes change.
        """
        first = self._rank.is_first
        parts = {name: _local_parts(group, first) for name, group in groups.items() if first or is_sharded(group)}
        layout = {name: [(key, t.dtype, t.shape) for key, t in tensors.items()] for name, tensors in parts.items()}
        if layout != self._layout:
            # Free the old memory first: two copies might not fit.
            self._files, self._layout = [], None
            self._files = [self._lay_out(name, parts[name], is_sharded(groups[name])) for name in parts]
            self._layout = layout
        for file, tensors in zip(self._files, parts.values(), strict=True):
            if tensors:
                targets = [file.tensors[key] for key in tensors]
                torch._foreach_copy_(targets, list(tensors.values()), non_blocking=self._pinned)
        if any(tensor.is_cuda for tensors in parts.values() for tensor in tensors.values()):
            torch.cuda.current_stream().synchronize()
        return self._files

    def _lay_out(self, group: str, tensors: Tensors, sharded: bool) -> StagedFile:
        """Allocate a file and write its header."""
        rank, ranks = self._rank.rank, self._rank.ranks
        metadata = {"format": "pt", **({"part": f"{rank} of {ranks}"} if sharded else {})}
        header: dict[str, Any] = {"__metadata__": metadata}
        spans, stop = {}, 0
        for name in sorted(tensors, key=lambda name: _sort_key(name, tensors[name])):
            tensor = tensors[name]
            if tensor.dtype not in _NAMES:
                raise _unstorable(f"{group}: {name}", tensor.dtype)
            start, stop = stop, stop + tensor.numel() * tensor.itemsize
            header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, stop]}
            spans[name] = slice(start, stop)
        text = json.dumps(header, separators=(",", ":")).encode()
        # Pad, so that the data starts at a cache line.
        text += b" " * (-(LENGTH_BYTES + len(text)) % _LINE_BYTES)
        text = len(text).to_bytes(LENGTH_BYTES, "little") + text
        content = torch.empty(len(text) + stop, dtype=torch.uint8)
        if self._pinned and (failure := _lock_pages(content)):
            self._pinned = False
            self._log(f"warning: the host memory of checkpoints is not page-locked, saves take longer: {failure}")
        content[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        data = content[len(text) :]
        views = {name: data[span].view(tensors[name].dtype).view(tensors[name].shape) for name, span in spans.items()}
        return StagedFile(group, tensor_file(group, rank, ranks) if sharded else tensor_file(group), content, views)


def _local_parts(group: Tensors, first: bool) -> dict[str, torch.Tensor]:
    """Return the tensors of a group that a rank writes: its rows of sharded ones; on rank 0 also all others."""
    if first:
        return {name: local_tensor(tensor) for name, tensor in group.items()}
    rows = {name: tensor.to_local() for name, tensor in group.items() if isinstance(tensor, DTensor)}
    return {name: tensor for name, tensor in rows.items() if len(tensor)}


def _sort_key(name: str, tensor: torch.Tensor) -> tuple[bool, int, str]:
    """Sort key that aligns tensors to their item size, and whole cache lines to cache lines.

    Files have no padding between tensors. A small tensor, such as an optimizer's step count, would misalign all that
    follow and slow down their copies.
    """
    return tensor.numel() * tensor.itemsize % _LINE_BYTES != 0, -tensor.itemsize, name


def _lock_pages(memory: torch.Tensor) -> str | None:
    """Page-lock a host tensor until it is freed; return the problem, or None.

    torch.empty(pin_memory=True) rounds up to a power of two and never frees memory (CachingHostAllocator), so ordinary
    memory is registered, as in torch/distributed/_state_dict_utils.py.
    """
    try:
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        # cudaHostRegisterPortable: https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html
        code = int(cudart.cudaHostRegister(memory.data_ptr(), memory.numel(), 1))
    except (AssertionError, RuntimeError) as error:
        return str(error)
    if code != 0:
        # Clear the CUDA error, which the next kernel would report; torch has no cudaGetLastError.
        with suppress(RuntimeError):
            torch.ones(1, device="cuda")
        return f"cudaHostRegister returned {code} for {memory.numel()} bytes"
    # Not at exit: the call could block on a hung GPU, and the driver cleans up.
    weakref.finalize(memory, cudart.cudaHostUnregister, memory.data_ptr()).atexit = False
    return None
