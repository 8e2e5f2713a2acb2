"""The blocks of a network that FSDP gathers as one: before their forward and backward pass, let go after it.

The rule knows no architecture. Networks repeat blocks in a ModuleList or a Sequential; the blocks are what is gathered.
Blocks that are recomputed in the backward pass are found by another rule (trainer/model/recompute.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from trainer.model.trial import buffers_restored, random_state_kept

# A block with more than this share of all parameters is looked into for smaller ones: what is gathered at a time
# should be small beside the whole. ResNet's last stage holds more than half of it, a transformer's layer rarely 1/8.
LARGEST_SHARE = 1 / 8
# A single layer (a Linear in a Sequential) is worth collectives of its own when it holds this share.
SMALLEST_LAYER_SHARE = 1 / 16


def find_gathered_blocks(model: nn.Module, inputs: Sequence[torch.Tensor]) -> list[str]:
    """Return the names of the blocks that are gathered, none inside another; what is left is gathered as a whole.

    A block is an entry of a ModuleList or Sequential that runs exactly once a forward pass through its own `forward`
    (else nothing would gather it) and shares no parameter with the rest. Buffers and the random state are as before
    afterwards.

    Args:
        model: A network that nothing has wrapped yet.
        inputs: As the model takes them, on its device.
    """
    once = _called_once(model, inputs)
    shared = _shared_parameters(model)
    total = sum(parameter.numel() for parameter in model.parameters())

    def may_be_block(module: nn.Module) -> bool:
        own = set(module.parameters())
        return module in once and bool(own) and not own & shared

    def descend(module: nn.Module, name: str) -> Iterator[str]:
        is_container = isinstance(module, nn.ModuleList | nn.Sequential)
        for child_name, child in module.named_children():
            path = f"{name}.{child_name}" if name else child_name
            smaller = list(descend(child, path))
            share = sum(parameter.numel() for parameter in child.parameters()) / max(1, total)
            is_layer = not any(True for _ in child.children())
            if not is_container or not may_be_block(child) or (is_layer and share < SMALLEST_LAYER_SHARE):
                yield from smaller
            elif share <= LARGEST_SHARE or not smaller:
                yield path
            else:
                yield from smaller

    return list(descend(model, ""))


def _called_once(model: nn.Module, inputs: Sequence[torch.Tensor]) -> set[nn.Module]:
    """Return the modules whose forward runs exactly once in a forward pass."""
    calls: Counter[nn.Module] = Counter()

    def count(module: nn.Module, arguments: object) -> None:
        calls[module] += 1

    hooks = [module.register_forward_pre_hook(count) for module in model.modules()]
    was_training = model.training
    # Evaluation mode: no layer is dropped.
    model.eval()
    try:
        with torch.no_grad(), buffers_restored(model), random_state_kept(inputs[0].device):
            model(*inputs)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return {module for module, number in calls.items() if number == 1}


def _shared_parameters(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters that several modules hold, such as tied weights."""
    holders: Counter[nn.Parameter] = Counter()
    for module in model.modules():
        holders.update(parameter for parameter in module.parameters(recurse=False))
    # One module may hold a parameter under two names: named_parameters would hide the second.
    names = Counter(parameter for _, parameter in model.named_parameters(remove_duplicate=False))
    return {parameter for parameter in holders if holders[parameter] > 1 or names[parameter] > 1}
