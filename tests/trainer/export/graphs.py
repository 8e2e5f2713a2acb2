"""Graphs made by hand, bad layers planted in one, and images and logits by the names of their signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf import text_format
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from contracts.artifacts import Gate, Parity
from contracts.artifacts.signature import OutputSpec, Signature, TensorSpec
from trainer.export.bundle.triton_config import triton_messages
from trainer.export.gates import parity
from trainer.export.gates.arrays import StoredArrays, store_arrays
from trainer.export.graph import onnx_graph

# Q/DQ graphs are run without optimisation.
AS_IT_STANDS = "int8"


def image_signature(size: int = 32, classes: int = 10) -> Signature:
    """Return the signature of an image classifier."""
    return Signature(
        inputs={"images": TensorSpec(dtype="float32", shape=["batch", 3, size, size])},
        outputs={"logits": OutputSpec(dtype="float32", shape=["batch", classes], compare="classes")},
    )


LOGITS = image_signature().outputs


def run_outputs(path: Path, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    """Return the outputs of an ONNX file by name."""
    return parity.open_graph(path, threads=1, precision=AS_IT_STANDS)(inputs)


def run_onnx(path: Path, images: np.ndarray) -> np.ndarray:
    """Return the logits of an ONNX file."""
    return parity.open_graph(path, threads=1, precision=AS_IT_STANDS)({"images": images})["logits"]


def compare_logits(reference: np.ndarray, found: np.ndarray, *, ran: str = "test", precision: str) -> Parity:
    return parity.compare([{"logits": reference}], [{"logits": found}], outputs=LOGITS, ran=ran, precision=precision)


def run_exactly(path: Path, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    """Return every value of a graph by name, as ONNX's reference evaluator computes it: its fp16 is fp16."""
    with np.errstate(all="ignore"):
        found = ReferenceEvaluator(onnx.load(path)).run(None, inputs, intermediate=True)
    return {name: np.asarray(value) for name, value in found.items()}


def judge_logits(graph: Path, images: np.ndarray, logits: np.ndarray) -> Gate:
    """Hold a graph in real fp16 arithmetic against logits; no fp16 value on the way may be infinite."""
    values = run_exactly(graph, images=images)
    spoiled = [name for name, value in values.items() if value.dtype == np.float16 and not np.isfinite(value).all()]
    found = compare_logits(logits, np.nan_to_num(values["logits"]), precision="fp16")
    return Gate(
        name="arithmetic",
        precision="fp16",
        status="failed" if spoiled or not found.passed else "passed",
        ran="onnx.reference",
        reason=", ".join(spoiled),
    )


def store_images(folder: Path, images: np.ndarray) -> StoredArrays:
    """Write images as the work folder has them."""
    return store_arrays(folder, [{"images": images}])


def write_graph(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    weights: Mapping[str, Any],
    *,
    image: Sequence[int] = (1,),
    classes: int = 1,
) -> Path:
    """Write a graph from images [batch, *image] to logits [batch, classes]."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", *image])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


def plant(source: Path, target: Path, factors: Mapping[str, float]) -> Path:
    """Scale what the named convolutions write, and divide by as much right behind them: the network computes the same.

    The dividing nodes are called NAME_back. Factors that are powers of two change no digit of any number.
    """
    model = onnx.load(source)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        model.graph.node.append(node)
        if node.name not in factors:
            continue
        conv = model.graph.node[-1]
        assert conv.op_type == "Conv"
        factor = np.float32(factors[node.name])
        for name in conv.input[1:]:
            tensor = weights[name]
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * factor, name))
        output = conv.output[0]
        conv.output[0] = f"{output}_planted"
        model.graph.initializer.append(numpy_helper.from_array(1 / factor, f"{output}_factor"))
        inputs = [conv.output[0], f"{output}_factor"]
        model.graph.node.append(helper.make_node("Mul", inputs, [output], name=f"{node.name}_back"))
    del model.graph.value_info[:]
    onnx.save(model, target)
    return target


def plant_between(source: Path, target: Path, pairs: Mapping[str, str], factor: float) -> Path:
    """Scale what convolutions write, and divide the weights of those that read it, through a Relu at most."""
    model = onnx.load(source)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    convs = {node.name: node for node in model.graph.node}
    for first, second in pairs.items():
        for name in convs[first].input[1:]:
            weights[name].CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(weights[name]) * np.float32(factor), name)
            )
        name = convs[second].input[1]
        weights[name].CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights[name]) / np.float32(factor), name))
    onnx.save(model, target)
    return target


def describe(path: Path) -> tuple[onnx_graph.Shapes, onnx_graph.Shapes]:
    """Return names and shapes of a file's inputs and outputs."""
    return onnx_graph.describe(onnx.load(path).graph, path.name)


def convolutions(path: Path) -> list[str]:
    """Return the names of a graph's convolutions, in order."""
    return [node.name for node in onnx.load(path).graph.node if node.op_type == "Conv"]


def parse_config(content: str) -> Any:
    """Read a config.pbtxt by Triton's own message, which refuses unknown fields."""
    return text_format.Parse(content, triton_messages().ModelConfig())
