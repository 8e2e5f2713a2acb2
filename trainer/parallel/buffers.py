"""Buffers of a network, such as BatchNorm's running statistics: by rule those of the first rank count.

Ranks see other slots, so what a forward pass changes parts within a step. Only that is shared in every step; a
checkpoint shares them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import nn


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


def find_changed_buffers(model: nn.Module, forward: Callable[[], object]) -> list[str]:
    """Return the names of the buffers that a forward pass writes to, whether or not their values change.

    Args:
        model: The network, in training mode.
        forward: Runs it once.
    """
    # The counter of in-place writes, which autograd keeps too (torch/_tensor.py, "_version"); and another tensor
    # under the same name.
    before = {name: (buffer, buffer._version) for name, buffer in model.named_buffers()}
    forward()
    found = []
    for name, buffer in model.named_buffers():
        known, version = before.get(name, (None, -1))
        if buffer is not known or buffer._version != version:
            found.append(name)
    return found
