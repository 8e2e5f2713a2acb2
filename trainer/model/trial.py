"""Contexts for trial passes: buffers and random generators are restored, and cuDNN does not benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn
from torch.nn.parameter import is_lazy


@contextmanager
def buffers_restored(model: nn.Module) -> Iterator[None]:
    """Restore all buffers at the end of the block, except those that a lazy module created in it."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers() if not is_lazy(buffer)}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in before:
                    buffer.copy_(before[name])


@contextmanager
def first_algorithms() -> Iterator[None]:
    """Disable cudnn.benchmark in a block: the search pays off only after many passes of one size."""
    searches = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = searches


def random_state_kept(device: torch.device) -> AbstractContextManager[None]:
    """Restore torch's CPU and GPU generators at the end of a block."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
