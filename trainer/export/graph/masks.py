"""Masks of attention in numbers that every precision holds.

Networks fill what attention must not see with -inf or float32's lowest number, which fp16 has no like of: a graph in
fp16 would compute with infinity, and its gates refuse that. A softmax of any fill far below the other scores is the
same to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx

# exp() of it is 0 in every precision, and up to three of it and a score add up within fp16's range (65504).
FILL = -(2.0**14)
_SOFTMAX = ("Softmax", "LogSoftmax")
# What passes a mask on to a softmax: added to scores, or only shaped.
_PASSING = ("Add", "Expand", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
# What makes a mask of a fill.
_MAKING = ("Where", "Mul")


def bound_masks(graph: onnx.GraphProto) -> int:
    """Replace fills of masks that fp16 cannot hold by `FILL`; return how many.

    A fill is one number far below zero that reaches nothing but softmaxes: the value of a Where, or the factor of a
    Mul, which is added to scores.

    Args:
        graph: A float32 graph; it is changed.
    """
    import onnx

    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    outputs = {item.name for item in graph.output}
    found = 0
    for name, tensor in _constants(graph).items():
        if tensor.data_type != onnx.TensorProto.FLOAT or int(np.prod(tensor.dims)) != 1:
            continue
        if onnx.numpy_helper.to_array(tensor).item() >= 2 * FILL:
            continue
        makers = readers.get(name, [])
        if makers and all(node.op_type in _MAKING and _is_mask(node, readers, outputs) for node in makers):
            filled = np.full(tuple(tensor.dims), FILL, np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(filled, tensor.name))
            found += 1
    return found


def _constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return tensors that never change, by the name that nodes read them by."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            found[node.output[0]] = node.attribute[0].t
    return found


def _is_mask(node: onnx.NodeProto, readers: Mapping[str, Sequence[onnx.NodeProto]], outputs: set[str]) -> bool:
    """Whether all that reads a node is a softmax, at once or after what passes masks on."""
    (name,) = node.output
    following = readers.get(name, ())
    if not following or name in outputs:
        return False
    return all(
        one.op_type in _SOFTMAX or (one.op_type in _PASSING and _is_mask(one, readers, outputs)) for one in following
    )
