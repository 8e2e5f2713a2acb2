"""Activation checkpointing: blocks that the backward pass computes again, so that memory need not hold them until then.

Numbers stay bit for bit what they are without it: random states are put back for the second forward pass, and BatchNorm
counts a batch once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def recompute_blocks(model: nn.Module, mode: str) -> list[str]:
    """Have the blocks of a network that is not wrapped yet compute again in the backward pass; return their names.

    `mode` is train.activation_checkpointing: none or whole. Names of parameters stay as they are.
    """
    if mode == "none":
        return []
    blocks = find_repeated_blocks(model)
    for block in blocks.values():
        contexts = partial(_contexts, block)
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=contexts)
    return list(blocks)


def find_repeated_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Return the innermost blocks that are repeated, by name: items of a list that holds modules of one class.

    They are the residual blocks of a ResNet and the layers of a transformer. A model without any is one block.
    """
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            items = dict(module.named_children())
            # One class: `Sequential(Linear, ReLU, Linear)` inside of a block is no list of blocks.
            if len({type(item) for item in items.values()}) == 1 and all(map(_is_worth_it, items.values())):
                found |= {f"{name}.{key}" if name else key: item for key, item in items.items()}
    # A stage that holds a list of blocks is none itself.
    inner = {name: item for name, item in found.items() if not any(other.startswith(f"{name}.") for other in found)}
    return inner or {"": model}


def _is_worth_it(module: nn.Module) -> bool:
    """Whether there are two layers with weights in it: of one alone hardly more is thrown away than its input."""
    return sum(any(p.ndim >= 2 for p in layer.parameters(recurse=False)) for layer in module.modules()) >= 2


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return what surrounds the forward pass of a block, and its second one."""
    return nullcontext(), _statistics_kept(block)


@contextmanager
def _statistics_kept(block: nn.Module) -> Iterator[None]:
    """Keep running statistics as they are: without it the second forward pass counts the batch a second time."""
    # Looked for at each pass: SyncBatchNorm takes the place of the modules that were there when the network was built.
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm)]
    kept = [dict(norm.named_buffers(recurse=False)) for norm in norms]
    for norm, buffers in zip(norms, kept, strict=True):
        # Copies take the second count. Without any statistics BatchNorm would keep other tensors for its backward pass
        # than the first time, which checkpointing refuses.
        for name, buffer in buffers.items():
            setattr(norm, name, buffer.clone())
    try:
        yield
    finally:
        for norm, buffers in zip(norms, kept, strict=True):
            for name, buffer in buffers.items():
                setattr(norm, name, buffer)
