"""Passes on trial: no trace in buffers (BatchNorm's running statistics) and random generators, and nothing tuned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn
from torch.nn.parameter import is_lazy


@contextmanager
def buffers_restored(model: nn.Module) -> Iterator[None]:
    """Give all buffers the values from before the block at its end, but for those that a lazy module made in it."""
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
    """Take what cuDNN names first in a block: to search for the fastest algorithm pays for many passes of a size."""
    searches = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = searches


def random_state_kept(device: torch.device) -> AbstractContextManager[None]:
    """Put back the state of torch's generators, of the CPU and of a GPU, at the end of a block."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
