"""Activation checkpointing: the backward pass recomputes blocks instead of storing their activations.

Results are bit-identical: random states are restored for the second forward pass, and BatchNorm counts a batch once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def recompute_blocks(model: nn.Module, mode: str) -> list[str]:
    """Checkpoint the blocks of an unwrapped network; return their names.

    `mode` is train.activation_checkpointing: none or whole. Parameter names do not change.
    """
    if mode == "none":
        return []
    blocks = find_repeated_blocks(model)
    for block in blocks.values():
        contexts = partial(_contexts, block)
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=contexts)
    return list(blocks)


def find_repeated_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Return the innermost repeated blocks by name: items of a ModuleList or Sequential of one class.

    They are the residual blocks of a ResNet and the layers of a transformer. A model without any is one block.
    """
    blocks: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            items = dict(module.named_children())
            # One class: `Sequential(Linear, ReLU, Linear)` inside of a block is no list of blocks.
            if len({type(item) for item in items.values()}) == 1 and all(map(_has_two_weighted_layers, items.values())):
                blocks |= {f"{name}.{key}" if name else key: item for key, item in items.items()}
    # A stage that contains a list of blocks is not a block.
    inner = {name: item for name, item in blocks.items() if not any(path.startswith(f"{name}.") for path in blocks)}
    return inner or {"": model}


def _has_two_weighted_layers(module: nn.Module) -> bool:
    """Whether a module has two weighted layers; checkpointing a single one saves little memory."""
    return sum(any(p.ndim >= 2 for p in layer.parameters(recurse=False)) for layer in module.modules()) >= 2


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the first and the second forward pass."""
    return nullcontext(), _statistics_restored(block)


@contextmanager
def _statistics_restored(block: nn.Module) -> Iterator[None]:
    """Restore running statistics: the second forward pass would count the batch twice."""
    # Collected in each pass, since SyncBatchNorm may have replaced modules.
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm)]
    original_buffers = [dict(norm.named_buffers(recurse=False)) for norm in norms]
    for norm, buffers in zip(norms, original_buffers, strict=True):
        # Copies receive the second update. Removing statistics would change the tensors BatchNorm saves, which
        # checkpointing rejects.
        for name, buffer in buffers.items():
            setattr(norm, name, buffer.clone())
    try:
        yield
    finally:
        for norm, buffers in zip(norms, original_buffers, strict=True):
            for name, buffer in buffers.items():
                setattr(norm, name, buffer)
