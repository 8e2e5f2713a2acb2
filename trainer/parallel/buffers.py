"""Buffers of a network, such as BatchNorm's running statistics: by rule those of the first rank count.

Ranks see other slots, so what a forward pass changes parts within a step. Only that is shared in every step; a
checkpoint shares them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _NormBase


@torch.no_grad()
def share_buffers(buffers: Iterable[torch.Tensor]) -> None:
    """Give every rank the first rank's buffers, in one message per type; every rank must call this."""
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

    Whether their values change does not matter. Running statistics of normalisation layers count always; of others the
    counter of in-place writes tells (`_version`, torch/_tensor.py), which their kernels pass by, and another tensor
    under the same name.
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
