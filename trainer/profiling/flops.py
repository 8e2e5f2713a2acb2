"""Floating point operations of a model's forward and backward pass, and the peaks of GPUs, for the MFU.

Operations are counted on shapes, by torch.utils.flop_counter: those of matrix products, convolutions and attention, a
multiplication and an addition each. A separate copy of the model is built on the meta device, without
torch.compile, activation checkpointing and parallelism. Computed operations of frozen layers are included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    from torch import nn

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Shape = Sequence[int]


def count_flops(
    build: Callable[[], nn.Module], inputs: Sequence[torch.Tensor], learns: Mapping[str, bool]
) -> float | None:
    """Return the operations of one forward and backward pass in training mode.

    Args:
        build: Builds the model; called again for the CPU if the pass fails on the meta device.
        inputs: Inputs of the model, on any device.
        learns: Whether a parameter has a gradient, by name (default: yes).

    Returns:
        None if operations cannot be counted: torch's counter does not count recurrent layers on every device, or the
        model fails on both devices.
    """
    # The profile stage uses only the peaks, without torch.
    import torch

    from trainer.model.trial import random_state_kept

    for device in ("meta", "cpu"):
        try:
            with random_state_kept(torch.device("cpu")), torch.device(device):
                return _count(build(), [tensor.detach().to(device) for tensor in inputs], learns)
        except Exception:  # noqa: BLE001 - the user's code, which need not support the meta device
            continue
    return None


def _count(model: nn.Module, inputs: Sequence[torch.Tensor], learns: Mapping[str, bool]) -> float | None:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import FlopCounterMode

    if any(isinstance(module, torch.nn.RNNBase) for module in model.modules()):
        return None
    model.train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(learns.get(name, True))
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward}
    )
    # The counter lacks the CPU's fused attention.
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        outputs = [value for value in tree_leaves(model(*inputs)) if isinstance(value, torch.Tensor)]
        graded = [value for value in outputs if value.requires_grad]
        torch.autograd.backward(graded, [torch.ones_like(value) for value in graded])
    return float(counter.get_total_flops()) or None


def _convolution_backward(gradient: Shape, images: Shape, weight: Shape, *more: Any, **named: Any) -> int:
    """Count the gradients of images and weight like the forward pass; torch 2.13 ignores groups for the weight's."""
    from torch.utils.flop_counter import conv_flop_count

    _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, mask = more
    forward = conv_flop_count(list(images), list(weight), list(gradient), transposed=transposed)
    return forward * (bool(mask[0]) + bool(mask[1]))


# Dense TFLOP/s in fp32, tf32, bf16, fp16 of the GPUs that Google Cloud rents, by NVIDIA's data sheets (where a sheet
# gives tensor cores "with sparsity", half of it). The first pattern that matches the driver's name applies.
_PEAKS: tuple[tuple[str, tuple[float | None, float | None, float | None, float | None]], ...] = (
    (r"\bP4\b", (5.5, None, None, None)),
    (r"P100-PCIE", (9.3, None, None, 18.7)),
    (r"V100-SXM2", (15.7, None, None, 125.0)),
    (r"\bT4\b", (8.1, None, None, 65.0)),
    (r"\bL4\b", (30.3, 60.0, 121.0, 121.0)),
    (r"\bA100\b", (19.5, 156.0, 312.0, 312.0)),
    (r"\bH100 \d+GB HBM3|\bH200$", (67.0, 494.5, 989.5, 989.5)),
    (r"\bGB200\b", (80.0, 1250.0, 2500.0, 2500.0)),
    (r"\bB200\b", (75.0, 1100.0, 2250.0, 2250.0)),
)
_COLUMNS: dict[Precision, int] = {"fp32": 0, "tf32": 1, "bf16": 2, "fp16": 3}


def peak_flops(gpu_name: str | None, precision: Precision) -> float | None:
    """Return the peak FLOP/s of a GPU; None where no data sheet gives it.

    Args:
        gpu_name: Name by torch.cuda.get_device_name; MIG slices have no peak.
        precision: Precision of matrix products; a GPU without TF32 computes such products in fp32.
    """
    if gpu_name is None or "MIG" in gpu_name:
        return None
    peaks = next((peaks for pattern, peaks in _PEAKS if re.search(pattern, gpu_name)), None)
    if peaks is None:
        return None
    tera = peaks[_COLUMNS[precision]]
    if tera is None and precision == "tf32":
        tera = peaks[_COLUMNS["fp32"]]
    return None if tera is None else tera * 1e12
