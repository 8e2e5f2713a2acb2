"""The nodes of an ONNX graph, as precision sees them: their names, what they read and write, and the weights.

Here: `load_parts` reads a graph and takes its weights out, so that what follows works on a small graph; `reads` says
what a node takes from outside. Used by precision.py, ranges.py and layer_errors.py. Nothing here changes what a graph
computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from contracts.errors import ModelError

if TYPE_CHECKING:
    import onnx

Weights = dict[str, npt.NDArray[Any]]

# Numbers.
_SMALL = 64


def load_graph(path: Path) -> onnx.ModelProto:
    """Return a graph in which every node has a name of its own, and constants are initializers.

    Large weights that lie outside of the file stay there.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        if onnx.external_data_helper.uses_external_data(tensor) and not is_weight(tensor):
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(path.parent))
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
    name_nodes(model.graph)
    lift_constants(model.graph)
    return model


def infer_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with the types of all values, in which large float weights have no bytes.

    Raises:
        ModelError: ONNX cannot infer the types.
    """
    import onnx

    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    light.graph.CopyFrom(
        onnx.GraphProto(
            name=graph.name,
            node=graph.node,
            input=graph.input,
            output=graph.output,
            # The exporter describes weights as well, which the fp16 converter then takes for values: it would round
            # the weight of a node that is kept in fp32, and cast it back.
            value_info=[item for item in graph.value_info if item.name not in constants],
        )
    )
    for tensor in graph.initializer:
        if is_weight(tensor):
            tensor = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        light.graph.initializer.append(tensor)
    try:
        return onnx.shape_inference.infer_shapes(light, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise ModelError(
            f"the types of the graph cannot be inferred: {str(error).strip()}",
            allowed="a graph of standard ONNX operators",
            todo="set export.precision=fp32, or choose another architecture",
        ) from error


def load_parts(path: Path) -> tuple[onnx.ModelProto, Weights]:
    """Return a graph with types and without its large float weights, and these by name.

    Raises:
        ModelError: ONNX cannot infer the types of the graph.
    """
    import onnx

    model = load_graph(path)
    weights = {
        tensor.name: onnx.numpy_helper.to_array(tensor, str(path.parent))
        for tensor in model.graph.initializer
        if is_weight(tensor)
    }
    return infer_types(model), weights


def is_weight(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor is a large float one. Inference reads some of the small ones (the scales of a Resize)."""
    import onnx

    return bool(tensor.data_type == onnx.TensorProto.FLOAT and np.prod(tensor.dims) > _SMALL)


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give a name to each node that has none, or one that an earlier node has: `OPERATOR_PLACE`."""
    used = Counter(node.name for node in graph.node)
    seen: set[str] = set()
    for place, node in enumerate(graph.node):
        if not node.name or node.name in seen:
            name = f"{node.op_type}_{place}"
            while used[name]:
                name += "_"
            used[name] += 1
            node.name = name
        seen.add(node.name)


def lift_constants(graph: onnx.GraphProto) -> None:
    """Make initializers of Constant nodes: a weight is then in one place, whichever way it was written."""
    import onnx

    constants = [node for node in graph.node if node.op_type == "Constant" and not node.domain]
    for node in constants:
        (attribute,) = node.attribute
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.name == "value":
            tensor = onnx.TensorProto()
            tensor.CopyFrom(value)
            tensor.name = node.output[0]
        elif attribute.name in _CONSTANT_TYPES:
            tensor = onnx.numpy_helper.from_array(np.array(value, _CONSTANT_TYPES[attribute.name]), node.output[0])
        else:
            continue  # strings and sparse tensors have no precision
        graph.initializer.append(tensor)
        graph.node.remove(node)


_CONSTANT_TYPES: dict[str, type[np.generic]] = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def float_tensors(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all tensors of type float32: inputs, weights and what nodes write."""
    import onnx

    values = (*graph.input, *graph.value_info, *graph.output)
    found = {item.name for item in values if item.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    return found | {item.name for item in graph.initializer if item.data_type == onnx.TensorProto.FLOAT}


def reads(node: onnx.NodeProto) -> list[str]:
    """Return the names of the tensors that a node takes, those that its subgraphs take from outside included."""
    names = [name for name in node.input if name]
    for inner in _subgraphs(node):
        written = {output for item in inner.node for output in item.output}
        written |= {item.name for item in (*inner.input, *inner.initializer)}
        for item in inner.node:
            names.extend(name for name in reads(item) if name not in written)
        names.extend(item.name for item in inner.output if item.name not in written)
    return list(dict.fromkeys(names))


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
