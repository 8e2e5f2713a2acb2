"""Floating point operations of a call of an operator, from the shapes that the profiler records with it.

A trace holds shapes (record_shapes=True) but not the operations that torch derives from them (with_flops=True). Counted
are products, as torch.utils.flop_counter does: a multiplication and an addition each. An operator that only calls one
of these has none of its own, so that nothing is counted twice.
"""

from __future__ import annotations

import json
from math import prod
from typing import Any

from trainer.profiling.kineto import Event

Shape = list[int]

# Where the two factors stand among the inputs.
_PRODUCTS = {"aten::mm": (0, 1), "aten::addmm": (1, 2), "aten::bmm": (0, 1), "aten::baddbmm": (1, 2)}
_ATTENTION = "aten::_scaled_dot_product_"
# This one calls products, which are counted themselves.
_ATTENTION_BY_PRODUCTS = "aten::_scaled_dot_product_attention_math"
# Of the two products forward, the backward pass computes one again and has two gradients of each.
_ATTENTION_BACKWARD = 5 / 2


def operations(event: Event) -> float | None:
    """Return the floating point operations of a call; None where it has no product, or shapes were not recorded."""
    shapes = event.arguments.get("Input Dims")
    if not isinstance(shapes, list):
        return None
    try:
        if event.name in _PRODUCTS:
            first, second = _PRODUCTS[event.name]
            return 2.0 * prod(shapes[first]) * float(shapes[second][-1])
        if event.name == "aten::convolution":
            return _convolution(shapes, event.arguments.get("Concrete Inputs"))
        if event.name == "aten::convolution_backward":
            return _convolution_backward(shapes, event.arguments.get("Concrete Inputs"))
        if event.name.startswith(_ATTENTION) and event.name != _ATTENTION_BY_PRODUCTS:
            return _attention(shapes, backward=event.name.endswith("_backward"))
    except (IndexError, TypeError, ValueError):
        # Shapes of another version's operator: better no number than a wrong one.
        return None
    return None


def _convolution(shapes: list[Shape], given: Any) -> float:
    """inputs: images [N, C, *S], weight [O, C / groups, *K], bias, stride, padding, dilation, transposed, ..."""
    images, weight = shapes[0], shapes[1]
    if given[6] == "True":
        return 2.0 * images[0] * prod(images[2:]) * prod(weight)
    sizes = images[2:]
    stride, padding, dilation = (_per_axis(given[place], len(sizes)) for place in (3, 4, 5))
    out = [
        (size + 2 * pad - spread * (kernel - 1) - 1) // step + 1
        for size, kernel, step, pad, spread in zip(sizes, weight[2:], stride, padding, dilation, strict=True)
    ]
    return 2.0 * images[0] * prod(out) * prod(weight)


def _convolution_backward(shapes: list[Shape], given: Any) -> float:
    """inputs: gradient [N, O, *S'], images, weight, bias sizes, stride, ..., transposed (7), ..., mask (10)."""
    spread_over = shapes[1] if given[7] == "True" else shapes[0]
    of_images, of_weight, _ = _words(given[10])
    return (of_images + of_weight) * 2.0 * shapes[0][0] * prod(spread_over[2:]) * prod(shapes[2])


def _attention(shapes: list[Shape], *, backward: bool) -> float:
    """inputs: [gradient,] query [B, H, L, D], key [B, H, S, D], value [B, H, S, E], ..."""
    query, key, value = shapes[1:4] if backward else shapes[:3]
    forward = 2.0 * prod(query[:3]) * key[2] * (query[3] + value[3])
    return forward * _ATTENTION_BACKWARD if backward else forward


def _per_axis(text: str, axes: int) -> list[int]:
    values = json.loads(text)
    if not isinstance(values, list):
        raise TypeError(text)
    return values * axes if len(values) == 1 else values


def _words(text: str) -> list[bool]:
    return [word.strip() == "True" for word in text.strip("[]").split(",")]
