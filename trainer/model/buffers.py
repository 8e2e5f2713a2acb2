"""Buffers, such as BatchNorm's running statistics, kept over forward passes that must leave no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.parameter import is_lazy


@contextmanager
def buffers_restored(model: nn.Module) -> Iterator[None]:
    """Give all buffers the values from before the block at its end; a lazy module's are those that it has made."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers() if not is_lazy(buffer)}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in before:
                    buffer.copy_(before[name])
