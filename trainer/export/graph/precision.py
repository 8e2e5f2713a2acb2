"""From a float32 graph to one of mixed precision. Precision lives in the graph: the engine builder is given no flags.

Here: `convert_to_fp16`, by onnxconverter_common. Inputs and outputs stay float32. Which nodes are to be kept in fp32 is
decided in rounds.py, by what ranges.py and layer_errors.py measured; only nodes with a weight that fp16 cannot hold are
added here. No weight is ever clamped.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contracts.errors import ModelError
from trainer.export.graph.nodes import Weights, float_tensors, load_parts, reads
from trainer.export.graph.onnx_graph import save_checked

if TYPE_CHECKING:
    import onnx

# Largest finite number of IEEE 754 binary16.
FP16_MAX = 65504.0
# Half of the smallest one that is not 0: what is smaller is rounded to 0.
FP16_TINY = 2.0**-25

# Their scales stay float32: int8's are the quantiser's, and TensorRT takes them so.
_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
_COPY_SUFFIX = "_fp32"


@dataclass(frozen=True)
class Conversion:
    """What became of a graph."""

    kept_fp32: list[str]
    """Nodes that compute in fp32, in the graph's order: those asked for, those with a weight that fp16 cannot hold, and
    those of operators that the converter never touches (Resize, Min, Max, ...)."""
    too_large: dict[str, float]
    """Weights that fp16 cannot hold, with their largest size."""
    vanishing: list[str]
    """Scalars that fp16 would make 0: an epsilon, without which a division by zero is near."""


def convert_to_fp16(source: Path, target: Path, *, keep_fp32: Sequence[str] = ()) -> Conversion:
    """Write `source` with weights and arithmetic in fp16; inputs and outputs stay float32.

    Weights are rounded to the nearest fp16 number; those below 2^-25 in size become 0, as in any cast. A node that is
    kept reads float32 from other kept nodes without a detour over fp16. Works on int8 graphs too: Q/DQ nodes keep
    float32 scales, and the weights in front of them stay float32. The bytes written are a function of the arguments.

    Args:
        source: The float32 graph.
        target: File to write.
        keep_fp32: Names of nodes that are to compute in fp32. A name that the graph does not have is ignored: a
            quantised graph may lack a node of the graph that it was made from.

    Raises:
        ModelError: Parts of the model are fp16 already, or the converter's graph is not valid.
    """
    from onnxconverter_common import float16  # type: ignore[import-untyped]

    graph, weights = load_parts(source)
    if float16.check_if_fp16_ready(graph.graph):
        raise ModelError(
            f"parts of {source.name} are fp16 already",
            allowed="a model that computes in float32; the export makes it fp16",
            todo="remove torch.autocast, .half() and casts to float16 from the model's forward",
        )
    blocked = {*float16.DEFAULT_OP_BLOCK_LIST, *_QUANTIZERS}
    too_large, vanishing = _unholdable(graph, weights)
    copies = _separate_outputs(graph.graph)
    wanted = {*keep_fp32}
    for node in graph.graph.node:
        if node.op_type not in blocked and not {*too_large, *vanishing}.isdisjoint(reads(node)):
            wanted.add(node.name)
    in_fp32 = {node.name for node in graph.graph.node if node.op_type in blocked or node.name in wanted}
    in_fp32 |= {name for name, producer in copies.items() if producer in in_fp32}
    kept = _touching_floats(graph, in_fp32)
    _separate_weights(graph, weights, in_fp32)
    originals = {node.name for node in graph.graph.node}
    with warnings.catch_warnings():
        # It says so of weights that are 65504 in size, which is no loss; larger ones are not handed to it.
        warnings.filterwarnings("ignore", message="the float32 number .* will be truncated", category=UserWarning)
        converted = float16.convert_float_to_float16(
            graph,
            keep_io_types=True,
            disable_shape_infer=True,
            # Its defaults clamp weights to sizes of 1e-7 to 1e4 without an error, although fp16 goes to 65504 and
            # rounds what is tiny by itself: a weight of 20,000 would become half of itself.
            min_positive_val=0.0,
            max_finite_val=FP16_MAX,
            op_block_list=sorted(blocked),
            node_block_list=sorted(in_fp32),
        )
    _narrow_casts(converted.graph, originals - in_fp32)
    _join_casts(converted.graph, originals, in_fp32)
    _fill_weights(converted.graph, weights)
    save_checked(converted, target)
    return Conversion(kept_fp32=kept, too_large=too_large, vanishing=vanishing)


def _unholdable(graph: onnx.ModelProto, weights: Weights) -> tuple[dict[str, float], list[str]]:
    """Return weights larger than fp16's largest number, with their size, and scalars that it would make 0."""
    import onnx

    too_large, vanishing = {}, []
    for tensor in graph.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        size = largest(weights[tensor.name] if tensor.name in weights else onnx.numpy_helper.to_array(tensor))
        if size > FP16_MAX:
            too_large[tensor.name] = size
        elif not tensor.dims and 0 < size <= FP16_TINY:
            vanishing.append(tensor.name)
    return too_large, vanishing


def largest(values: np.ndarray) -> float:
    """Return the largest finite size in a weight, 0 without one; infinities are for masks, and fp16 has them."""
    top = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
    if not np.isfinite(top):
        finite = values[np.isfinite(values)]
        top = float(np.abs(finite).max(initial=0.0))
    return top


def _touching_floats(graph: onnx.ModelProto, names: Collection[str]) -> list[str]:
    """Return those of the named nodes that read or write float32, Q/DQ aside, in the graph's order."""
    floats = float_tensors(graph.graph)
    return [
        node.name
        for node in graph.graph.node
        if node.name in names
        and node.op_type not in _QUANTIZERS
        and not floats.isdisjoint((*reads(node), *node.output))
    ]


def _separate_outputs(graph: onnx.GraphProto) -> dict[str, str]:
    """Let an output that nodes read too be a copy of what they read: the converter casts it for all of its readers.

    Returns:
        The node that writes the value, by the name of the node that copies it.
    """
    import onnx

    producers = {output: node for node in graph.node for output in node.output}
    read = {name for node in graph.node for name in reads(node)}
    copies = {}
    for item in graph.output:
        if item.name not in read or item.name not in producers:
            continue
        inner, producer = f"{item.name}_inside", producers[item.name]
        for node in graph.node:
            node.input[:] = [inner if name == item.name else name for name in node.input]
        producer.output[:] = [inner if name == item.name else name for name in producer.output]
        value = graph.value_info.add()
        value.CopyFrom(item)
        value.name = inner
        copy = onnx.helper.make_node("Identity", [inner], [item.name], name=f"{item.name}_outside")
        graph.node.append(copy)
        copies[copy.name] = producer.name
    return copies


def _separate_weights(graph: onnx.ModelProto, weights: Weights, in_fp32: Collection[str]) -> None:
    """Give fp32 nodes a copy of each weight that they share with fp16 nodes: the converter knows one type for each."""
    import onnx

    readers: dict[str, set[bool]] = {}
    for node in graph.graph.node:
        for name in node.input:
            readers.setdefault(name, set()).add(node.name in in_fp32)
    shared = {
        tensor.name: tensor
        for tensor in graph.graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and len(readers.get(tensor.name, ())) > 1
    }
    for name, tensor in shared.items():
        copy = graph.graph.initializer.add()
        copy.CopyFrom(tensor)
        copy.name = name + _COPY_SUFFIX
        if name in weights:
            weights[copy.name] = weights[name]
    for node in graph.graph.node:
        if node.name in in_fp32:
            node.input[:] = [name + _COPY_SUFFIX if name in shared else name for name in node.input]


def _narrow_casts(graph: onnx.GraphProto, names: Collection[str]) -> None:
    """Let the model's own casts to float32 be casts to fp16: the converter leaves them, and their readers are fp16."""
    import onnx

    for node in graph.node:
        if node.op_type == "Cast" and node.name in names:
            for attribute in node.attribute:
                if attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                    attribute.i = onnx.TensorProto.FLOAT16


def _join_casts(graph: onnx.GraphProto, originals: Collection[str], in_fp32: Collection[str]) -> None:
    """Let fp32 nodes hand float32 to each other and to the outputs.

    The converter removes the casts between two kept nodes only where nothing else reads the value, and makes an output
    of a kept node fp16: in both cases a value above 65504 would pass through fp16.
    """
    import onnx

    casts = {
        node.output[0]: node for node in graph.node if node.op_type == "Cast" and node.name not in originals
    }  # the converter's
    wide = {output for node in graph.node if node.name in in_fp32 for output in node.output}

    def source_of(name: str) -> str:
        outer = casts.get(name)
        inner = casts.get(outer.input[0]) if outer is not None and _casts_to(outer, onnx.TensorProto.FLOAT) else None
        if inner is not None and _casts_to(inner, onnx.TensorProto.FLOAT16):
            return str(inner.input[0])
        return name

    outputs = {item.name for item in graph.output}
    for item in graph.output:
        if item.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16:
            item.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    renamed = {
        node.input[0]: output for output, node in casts.items() if output in outputs and node.input[0] in wide
    }  # what a kept node writes, and the output that it is
    for node in graph.node:
        node.input[:] = [renamed.get(source_of(name), source_of(name)) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    dead = [node for node in graph.node if node.output[0] in casts and node.input[0] == node.output[0]]
    while dead:
        for node in dead:
            graph.node.remove(node)
        used = {name for node in graph.node for name in reads(node)} | outputs
        dead = [node for node in graph.node if node.output[0] in casts and node.output[0] not in used]
    written = {name for node in graph.node for name in node.output}
    stale = [item for item in graph.value_info if item.name not in written]
    for item in stale:
        graph.value_info.remove(item)


def _casts_to(node: onnx.NodeProto, kind: int) -> bool:
    return any(attribute.name == "to" and attribute.i == kind for attribute in node.attribute)


def _fill_weights(graph: onnx.GraphProto, weights: Weights) -> None:
    """Put the weights back, each in the type that the converter gave to its tensor."""
    import onnx

    for tensor in graph.initializer:
        if tensor.name not in weights:
            continue
        values = weights.pop(tensor.name)
        if tensor.data_type == onnx.TensorProto.FLOAT16:
            with np.errstate(under="ignore"):
                values = values.astype(np.float16)
        tensor.raw_data = values.tobytes()
