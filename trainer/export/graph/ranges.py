"""How large the values of a float32 graph get, node by node: fp16 ends at 65504.

Here: `measure_ranges` runs the float32 graph over the calibration samples, `nodes_beyond` says which nodes must stay in
fp32, `judge_ranges` is the gate. Run by trainer/export/task.py. ONNX Runtime on a CPU computes fp16 graphs in fp32, so
that no comparison of outputs there sees a value that overflows: this gate does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contracts.artifacts.export import Figure, Gate
from trainer.export.gates.arrays import Arrays, StoredArrays
from trainer.export.gates.sessions import open_session
from trainer.export.graph.nodes import Weights, float_tensors, load_parts, reads
from trainer.export.graph.precision import FP16_MAX
from trainer.export.targets import version_of

if TYPE_CHECKING:
    import onnx

# What is done number by number. In front of the first sum of products it takes no time worth saving, and reads raw
# inputs: of a table's column around 1000 with a deviation of 0.1, fp16 leaves nothing.
ELEMENTWISE = frozenset(
    {
        *("IsNaN", "IsInf", "Where", "Identity", "Cast", "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Min", "Max"),
        *("Clip", "Log", "Exp", "Sqrt", "Pow", "Reciprocal", "Sign", "Floor", "Ceil", "Round"),
    }
)
# Sums of many values, of squares, or of exponentials: where fp16 is known to drift (TensorRT issues 4493, 2922, 1262).
NORMS_AND_SOFTMAX = frozenset(
    {
        *("LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization"),
        *("BatchNormalization", "LpNormalization", "MeanVarianceNormalization", "LRN"),
        *("Softmax", "LogSoftmax", "Attention"),
        *("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceLogSum"),
        *("ReduceProd", "GlobalAveragePool"),
    }
)
# What a builder computes of several steps whose values the graph does not name: squares, exponentials, sums.
COMPOSITE = NORMS_AND_SOFTMAX | {"Gelu", "Mish", "Swish", "GRU", "LSTM", "RNN"}
# Half of fp16's largest number: samples that are not among the calibration's may give twice the values.
KEEP_ABOVE = FP16_MAX / 2


@dataclass(frozen=True)
class NodeRange:
    """What a node of a float32 graph reads and writes; infinite where a value is not finite."""

    op_type: str
    written: float
    """Largest size of a value that it writes."""
    read: float
    """Largest size of a value that it reads, weights left out: a value that another node writes, or an input."""
    weight_bytes: int
    """Bytes of the float32 weights that it reads."""
    prepares: bool = False
    """Whether it works number by number on inputs of the graph, or on what such nodes have made of them."""

    @property
    def largest(self) -> float:
        """What must fit into fp16 if the node computes in fp16.

        What it reads counts as well: a value that a node in fp32 hands to one in fp16 is cast on the way, and overflows
        there.
        """
        return max(self.written, self.read)


def measure_ranges(
    graph: Path, calibration: StoredArrays, *, batch_size: int = 8, threads: int = 1
) -> dict[str, NodeRange]:
    """Return what each node of a float32 graph reads and writes, over all calibration samples, in the graph's order.

    Nodes that touch no floats are left out. The largest and smallest number of each value are taken inside of the
    graph, right behind the node that writes it: values are let go as in any run, so that only a few are in memory at a
    time, in one pass over the samples.

    Args:
        graph: The float32 graph.
        calibration: Inputs as the model takes them.
        batch_size: Samples at once.
        threads: Intra-op threads of ONNX Runtime.
    """
    import onnx

    model, weights = load_parts(graph)
    described, watched = _describe(model.graph)
    prepare = _find_preparing(model.graph)
    _watch(model.graph, watched)
    with tempfile.TemporaryDirectory(dir=graph.parent, prefix=".ranges-") as folder:
        # Weights in a file of their own: a graph that holds them would be in memory three times.
        _move_weights(model.graph, weights, Path(folder) / "weights")
        onnx.save(model, Path(folder) / "watched.onnx")
        del weights
        sizes = _run(Path(folder) / "watched.onnx", watched, calibration.batches(batch_size), threads=threads)
    return {
        name: NodeRange(
            op_type=op_type,
            written=max((sizes[tensor] for tensor in outputs), default=0.0),
            read=max((sizes[tensor] for tensor in inputs), default=0.0),
            weight_bytes=weight_bytes,
            prepares=name in prepare,
        )
        for name, (op_type, inputs, outputs, weight_bytes) in described.items()
    }


def nodes_beyond(ranges: Mapping[str, NodeRange], limit: float = KEEP_ABOVE) -> list[str]:
    """Return the nodes with a value larger than `limit`: those that write one, and those that read it."""
    return [name for name, found in ranges.items() if found.largest > limit]


def nodes_to_keep(ranges: Mapping[str, NodeRange]) -> list[str]:
    """Return the nodes that stay in fp32 from the first try on: those beyond `KEEP_ABOVE`, and those that prepare."""
    beyond = set(nodes_beyond(ranges))
    return [name for name, found in ranges.items() if found.prepares or name in beyond]


def judge_ranges(ranges: Mapping[str, NodeRange], kept_fp32: Collection[str], *, precision: str = "fp16") -> Gate:
    """Return the gate `range`: no node that computes in fp16 may write or read a value above 65504.

    It sees what nodes hand to each other, not the values inside of a composite one, and says which those are.

    Args:
        ranges: By node.
        kept_fp32: Nodes that compute in fp32.
        precision: Of the graph that is judged: what is not int8 in an int8 graph computes in fp16.
    """
    in_fp16 = {name: found.largest for name, found in ranges.items() if name not in kept_fp32}
    failed = {name: size for name, size in in_fp16.items() if size > FP16_MAX}
    top = max(ranges, key=lambda name: ranges[name].written, default="")
    hidden = sorted({ranges[name].op_type for name in in_fp16 if ranges[name].op_type in COMPOSITE})
    figures: dict[str, Figure] = {
        "nodes": len(ranges),
        "kept_fp32": len(ranges) - len(in_fp16),
        "above_half": len(nodes_beyond(ranges)),
        "largest": _figure(ranges[top].written) if top else 0.0,
        "largest_node": top,
        "largest_fp16": _figure(max(in_fp16.values(), default=0.0)),
        "not_seen_inside_of": ", ".join(hidden),
    }
    reasons = [f"fp16 cannot hold values of {len(failed)} node(s): {_names(ranges, failed)}"] if failed else []
    if hidden:
        reasons.append(f"values inside of {', '.join(hidden)} are not seen: only a GPU shows these in fp16")
    return Gate(
        name="range",
        precision=precision,
        status="failed" if failed else "passed",
        ran=f"onnxruntime {version_of('onnxruntime')} CPUExecutionProvider, float32 values",
        figures=figures,
        limits={"largest_fp16": FP16_MAX},
        reason="; ".join(reasons),
    )


def _names(ranges: Mapping[str, NodeRange], failed: Collection[str]) -> str:
    parts = []
    for name in list(failed)[:5]:
        found = ranges[name]
        verb, size = ("writes", found.written) if found.written > FP16_MAX else ("reads", found.read)
        parts.append(f"{name} ({verb} {_figure(size)})")
    return ", ".join(parts) + (", ..." if len(failed) > len(parts) else "")


def _figure(size: float) -> float | str:
    """An infinity is no JSON."""
    return float(f"{size:.6g}") if np.isfinite(size) else "infinite"


_Described = dict[str, tuple[str, list[str], list[str], int]]
"""Operator, tensors read and written, bytes of weights: by node."""


def _describe(graph: onnx.GraphProto) -> tuple[_Described, list[str]]:
    """Return the nodes that touch floats, and the names of the tensors to watch: what nodes write, and the inputs."""
    floats = float_tensors(graph)
    weights = {item.name: 4 * int(np.prod(item.dims)) for item in graph.initializer if item.name in floats}
    described: _Described = {}
    watched: dict[str, None] = {}
    for node in graph.node:
        inputs = [name for name in reads(node) if name in floats]
        outputs = [name for name in node.output if name in floats]
        if not inputs and not outputs:
            continue
        values = [name for name in inputs if name not in weights]
        watched.update(dict.fromkeys((*values, *outputs)))
        described[node.name] = (node.op_type, values, outputs, sum(weights.get(name, 0) for name in inputs))
    return described, list(watched)


def _find_preparing(graph: onnx.GraphProto) -> set[str]:
    """Return the nodes that work number by number on inputs of the graph that are floats."""
    raw = {item.name for item in graph.input} & float_tensors(graph)
    found = set()
    for node in graph.node:
        if node.op_type in ELEMENTWISE and not raw.isdisjoint(node.input):
            found.add(node.name)
            raw.update(node.output)
    return found


# A NaN makes the sum one, while the others may pass over it; infinities show in all.
_REDUCTIONS = ("ReduceMax", "ReduceMin", "ReduceSum")


def _watch(graph: onnx.GraphProto, tensors: list[str]) -> None:
    """Let the graph give largest, smallest and sum of each tensor, and nothing else."""
    import onnx

    wanted = set(tensors)
    nodes = list(graph.node)
    del graph.node[:]
    del graph.output[:]
    for name in (item.name for item in graph.input):
        if name in wanted:
            graph.node.extend(_reductions(name))
    for node in nodes:
        graph.node.append(node)
        for name in node.output:
            if name in wanted:
                graph.node.extend(_reductions(name))
    graph.output.extend(
        onnx.helper.make_tensor_value_info(f"{op_type}:{name}", onnx.TensorProto.FLOAT, [])
        for name in tensors
        for op_type in _REDUCTIONS
    )


def _reductions(tensor: str) -> list[onnx.NodeProto]:
    import onnx

    return [
        onnx.helper.make_node(op_type, [tensor], [f"{op_type}:{tensor}"], name=f"{op_type}:{tensor}", keepdims=0)
        for op_type in _REDUCTIONS
    ]


def _move_weights(graph: onnx.GraphProto, weights: Weights, path: Path) -> None:
    """Write the weights one behind the other, and say in the graph where they are."""
    import onnx

    with path.open("wb") as file:
        for tensor in graph.initializer:
            if tensor.name not in weights:
                continue
            tensor.data_location = onnx.TensorProto.EXTERNAL
            offset = file.tell()
            length = file.write(weights[tensor.name].tobytes())
            for key, value in (("location", path.name), ("offset", offset), ("length", length)):
                tensor.external_data.add(key=key, value=str(value))


def _run(path: Path, tensors: list[str], batches: Iterator[Arrays], *, threads: int) -> dict[str, float]:
    """Return the largest size of each tensor over all batches."""
    # By default the reductions come last, and every value waits for its own.
    session = open_session(path, threads=threads, level="ORT_DISABLE_ALL", in_graph_order=True)
    sizes = np.zeros(len(tensors))
    for batch in batches:
        found = np.array(session.run(None, batch), np.float64).reshape(len(tensors), len(_REDUCTIONS))
        size = np.abs(found[:, :2]).max(axis=1)
        size[~np.isfinite(found).all(axis=1)] = np.inf
        sizes = np.maximum(sizes, size)
    return dict(zip(tensors, sizes.tolist(), strict=True))
