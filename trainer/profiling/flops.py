"""Floating point operations of a network's forward and backward pass, counted on shapes alone.

The network is built anew on the meta device, eager: without torch.compile, activation checkpointing and what spreads it
over ranks, whose operations are none of the model's. What is frozen is counted as far as it is computed: forward, and
backward where gradients pass through it. Counted are products, a multiplication and an addition each, as
torch.utils.flop_counter does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count, sdpa_backward_flop_count, sdpa_flop_count

from trainer.model.trial import random_state_kept

Shape = Sequence[int]
aten = torch.ops.aten


def count_flops(
    build: Callable[[], nn.Module], inputs: Sequence[torch.Tensor], learns: Mapping[str, bool]
) -> float | None:
    """Return the operations of one forward and backward pass in training mode.

    Args:
        build: Makes the network anew, without weights that matter. Where it, or the pass, does not work on the meta
            device, it is done once more on the CPU.
        inputs: As the network takes them, on any device.
        learns: By parameter, whether it asks for a gradient; those that are not in it do.

    Returns:
        None where the network cannot be counted: it has recurrent layers, whose operations torch's counter does not
        see on every device, or fails on both.
    """
    for device in ("meta", "cpu"):
        try:
            with random_state_kept(torch.device("cpu")), torch.device(device):
                return _count(build(), [_on(device, tensor) for tensor in inputs], learns)
        except Exception:  # noqa: BLE001 - the user's code, which need not know the meta device
            continue
    return None


def _on(device: str, tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device=device) if device == "meta" else tensor.detach().to(device)


def _count(model: nn.Module, inputs: Sequence[torch.Tensor], learns: Mapping[str, bool]) -> float | None:
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        return None
    model.train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(learns.get(name, True))
    counter = FlopCounterMode(display=False, custom_mapping=_FORMULAS)
    with torch.enable_grad(), counter:
        outputs = [value for value in tree_leaves(model(*inputs)) if isinstance(value, torch.Tensor)]
        graded = [value for value in outputs if value.requires_grad]
        torch.autograd.backward(graded, [torch.ones_like(value) for value in graded])
    return float(counter.get_total_flops()) or None


def _convolution_backward(gradient: Shape, images: Shape, weight: Shape, *more: Any, **named: Any) -> int:
    """Count the gradients of images and weight, each as many operations as the forward pass.

    torch counts the weight's as if there were no groups (torch 2.13, conv_backward_flop).
    """
    _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, mask = more
    forward = conv_flop_count(list(images), list(weight), list(gradient), transposed=transposed)
    return forward * (bool(mask[0]) + bool(mask[1]))


def _attention(query: Shape, key: Shape, value: Shape, *more: Any, **named: Any) -> int:
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def _attention_backward(gradient: Shape, query: Shape, key: Shape, value: Shape, *more: Any, **named: Any) -> int:
    return int(sdpa_backward_flop_count(gradient, query, key, value))  # type: ignore[no-untyped-call]


# In the place of torch's formulas, which are wrong for grouped convolutions and know no attention of a CPU.
_FORMULAS: dict[Any, Any] = {
    aten.convolution_backward: _convolution_backward,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
