"""How much of a graph has the precision that it is called by: a graph that is int8 by name only is slower than fp16.

Here: `measure_coverage` and `judge_coverage`, from the ONNX file alone; trainer/export/task.py runs them. What counts:

* int8: nodes. Of all Conv, Gemm and MatMul nodes, inside subgraphs and functions too, the share whose first two inputs
  both come from a DequantizeLinear, directly or through a Cast: these are the ones that a builder can run in int8. A
  product of two activations (attention) counts as any other.
* fp16: weight bytes, as they are in the file. Of all floating-point constants (initializers and Constant nodes)
  the share of bytes in that type. A weight that was kept in fp32 so counts with the four bytes an element that it
  takes. Integer constants (shapes, axes) are no weights and count nowhere; what feeds a QuantizeLinear or
  DequantizeLinear (scales, and weights on their way to int8) is int8's and counts nowhere either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.artifacts.export import Gate

if TYPE_CHECKING:
    import onnx

QUANTIZED_NODES = "quantized_nodes"
WEIGHT_BYTES = "weight_bytes"

# What each precision must reach. 90 %: a builder joins int8 nodes into int8 regions, and every gap between two costs a
# conversion to and fro. 95 %: what is left are norms and the nodes that overflow in fp16.
LIMITS: dict[str, dict[str, float]] = {
    "fp32": {},
    "fp16": {WEIGHT_BYTES: 0.95},
    "int8": {QUANTIZED_NODES: 0.90},
}

QUANTIZABLE = ("Conv", "Gemm", "MatMul")


def measure_coverage(graph: Path, precision: str) -> dict[str, float]:
    """Return the shares of a graph's nodes and weight bytes that have `precision`, each from 0 to 1; none for fp32.

    A graph without a single Conv, Gemm or MatMul is 0 % int8. One without weights is all of any type.

    Args:
        graph: The ONNX file; weights outside it are not read.
        precision: fp32, fp16 or int8.
    """
    import onnx

    if not LIMITS[precision]:
        return {}
    model = onnx.load(graph, load_external_data=False)
    scopes = list(_scopes(model))
    if precision == "int8":
        return {QUANTIZED_NODES: _share_of_quantized(scopes)}
    return {WEIGHT_BYTES: _share_of_bytes(scopes, int(onnx.TensorProto.FLOAT16))}


def judge_coverage(shares: Mapping[str, float], precision: str) -> Gate:
    """Hold the shares of `measure_coverage` against the limits of `precision`."""
    limits = LIMITS[precision]
    # Written so that a share that is not there, or no number, fails.
    short = [name for name, limit in limits.items() if not shares.get(name, 0.0) >= limit]
    reasons = [
        f"{shares.get(name, 0.0):.1%} of {_WORDS[name]} are {precision}, at least {limits[name]:.0%} must be"
        for name in short
    ]
    return Gate(
        name="coverage",
        precision=precision,
        status="failed" if short else "passed",
        ran="read from the graph",
        figures=dict(shares),
        limits=limits,
        reason="; ".join(reasons),
    )


_WORDS = {
    QUANTIZED_NODES: f"{', '.join(QUANTIZABLE[:-1])} and {QUANTIZABLE[-1]} nodes",
    WEIGHT_BYTES: "the weights' bytes",
}

_Nodes = list["onnx.NodeProto"]
_Scope = tuple[_Nodes, list["onnx.TensorProto"]]
"""Nodes and initializers whose names are one space."""


def _scopes(model: onnx.ModelProto) -> Iterator[_Scope]:
    """Yield the graph, its functions, and the subgraphs inside them."""
    graphs = [(list(model.graph.node), list(model.graph.initializer))]
    graphs += [(list(function.node), []) for function in model.functions]
    while graphs:
        nodes, initializers = graphs.pop()
        yield nodes, initializers
        for node in nodes:
            for attribute in node.attribute:
                for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                    graphs.append((list(inner.node), list(inner.initializer)))


def _share_of_quantized(scopes: list[_Scope]) -> float:
    found = quantized = 0
    for nodes, _ in scopes:
        source = {name: node for node in nodes for name in node.output}
        for node in nodes:
            if node.op_type not in QUANTIZABLE or node.domain:
                continue
            found += 1
            quantized += all(_comes_from_int8(name, source) for name in node.input[:2])
    return quantized / found if found else 0.0


def _comes_from_int8(name: str, source: Mapping[str, onnx.NodeProto]) -> bool:
    """Whether a value is a DequantizeLinear's; the conversion to fp16 puts a Cast behind it."""
    node = source.get(name)
    while node is not None and node.op_type == "Cast":
        node = source.get(node.input[0])
    return node is not None and node.op_type == "DequantizeLinear"


def _share_of_bytes(scopes: list[_Scope], kind: int) -> float:
    import onnx

    size = {
        int(onnx.TensorProto.DOUBLE): 8,
        int(onnx.TensorProto.FLOAT): 4,
        int(onnx.TensorProto.FLOAT16): 2,
        int(onnx.TensorProto.BFLOAT16): 2,
    }
    total = wanted = 0
    for nodes, initializers in scopes:
        quantizers = ("QuantizeLinear", "DequantizeLinear")
        for_int8 = {name for node in nodes if node.op_type in quantizers for name in node.input}
        constants = [(tensor.name, tensor) for tensor in initializers]
        for node in nodes:
            if node.op_type == "Constant":
                constants += [(node.output[0], item.t) for item in node.attribute if item.HasField("t")]
        for name, tensor in constants:
            if tensor.data_type not in size or name in for_int8:
                continue
            elements = 1
            for dimension in tensor.dims:
                elements *= dimension
            taken = elements * size[tensor.data_type]
            total += taken
            wanted += taken if tensor.data_type == kind else 0
    return wanted / total if total else 1.0
