"""Operators that the GPU's memory limits: bytes moved over the time of their kernels, against its bandwidth.

A trace with shapes (record_shapes=True) has the sizes of an operator's inputs, not what its kernels read and write.
Counted is the least that they must move: each input once, and the output where its size follows from those. An
operator that moves more than this may be missed; one that is found does move at least so much.
Roofline model: Williams, Waterman and Patterson, 2009 (doi.org/10.1145/1498765.1498785).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from math import prod
from typing import Any

from trainer.profiling.kineto import Event

# Share of the data sheet's bandwidth from which on memory limits an operator. Copies reach 80 to 90 % of it; one that
# reads its input twice, as batch normalisation may, is counted with two thirds of what it moves.
LEAST_PART = 0.5
# More than memory can give: the input came from a cache, or only a part of it was read (an expanded tensor).
MOST_PART = 1.1
# Bytes of an element by what torch calls its type in a trace; scalars and lists of tensors have none there.
_BYTES = {
    "double": 8,
    "float": 4,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "long int": 8,
    "int": 4,
    "short int": 2,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
}
# Operators that read only a part of what they are given.
_READS_A_PART = re.compile(r"^aten::(embedding|index|gather|scatter|take|masked_select|slice|select|as_strided)")
# Operators that write as much as the largest of their inputs.
_WRITES_AS_MUCH = re.compile(
    r"^aten::(\w*(batch|layer|group)_norm|(_log)?_softmax|native_dropout|(add|sub|rsub|mul|div|addcmul|addcdiv|lerp|pow"
    r"|sqrt|rsqrt|exp|log|neg|abs|tanh|sigmoid|silu|gelu|elu|relu6?|leaky_relu|hardtanh|hardswish|threshold|clamp"
    r"|clamp_min|clamp_max|where|masked_fill)_?)(_backward\w*)?$"
)
# Where the two factors [.., M, K] and [.., K, N] stand among the inputs.
_PRODUCTS = {"aten::mm": (0, 1), "aten::addmm": (1, 2), "aten::bmm": (0, 1), "aten::baddbmm": (1, 2)}


def memory_bound(
    operators: Sequence[Event], computing: Sequence[Event], bytes_per_s: float | None
) -> dict[str, float] | None:
    """Return the operators that memory limits, with their shares of the kernels' time, the largest first.

    Args:
        operators: Events of the category cpu_op.
        computing: Kernels other than communication; each has the external id of the operator that launched it.
        bytes_per_s: Bandwidth of the GPU's memory; None: unknown.

    Returns:
        None where it cannot be told: the bandwidth is unknown, or no operator's shapes were recorded.
    """
    moved = {str(event.arguments.get("External id")): (event.name, bytes_moved(event)) for event in operators}
    took_us: dict[str, float] = defaultdict(float)
    for event in computing:
        took_us[str(event.arguments.get("External id"))] += event.duration_us
    total_us = sum(took_us.values())
    if not bytes_per_s or total_us <= 0 or not any(moved[key][1] for key in took_us if key in moved):
        return None
    shares: dict[str, float] = defaultdict(float)
    for key, us in took_us.items():
        name, size = moved.get(key, ("", None))
        if size and us > 0 and LEAST_PART <= size / (us * 1e-6) / bytes_per_s <= MOST_PART:
            shares[name] += us / total_us
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def bytes_moved(event: Event) -> int | None:
    """Return the least bytes that a call of an operator reads and writes; None where its shapes do not say."""
    shapes, types = event.arguments.get("Input Dims"), event.arguments.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list) or _READS_A_PART.search(event.name):
        return None
    try:
        inputs = [_size(shape, kind) for shape, kind in zip(shapes, types, strict=False)]
        written = max(inputs, default=0) if _WRITES_AS_MUCH.search(event.name) else 0
        if event.name in _PRODUCTS:
            first, second = (shapes[place] for place in _PRODUCTS[event.name])
            written = prod(first[:-1]) * second[-1] * _BYTES[types[_PRODUCTS[event.name][0]]]
    except (IndexError, KeyError, TypeError):
        # Another version's form: better no number than a wrong one.
        return None
    return sum(inputs) + written or None


def _size(shape: Any, kind: str) -> int:
    return prod(shape) * _BYTES[kind] if kind in _BYTES else 0
