"""From a torch model to an ONNX graph with the names, types and dynamic dimensions of its signature, checked.

Here: `export_graph` writes the fp32 graph, `describe` says what a graph takes and gives. Run by
trainer/export/task.py; `python -m trainer.export.task` is the command. This module never changes weights or precision:
half.py does.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.artifacts.signature import BATCH, Signature, TensorSpec
from contracts.errors import ModelError

if TYPE_CHECKING:
    import onnx
    import torch
    from torch import nn

Shapes = dict[str, list[str | int]]
"""Shape by name; the dynamic dimension is given by its own name."""

# A protobuf message, which an ONNX file is, ends there (protobuf's documentation, "Proto Limits").
MAX_FILE_BYTES = 2**31 - 1

# Of a constant: shapes, axes and scales are smaller.
_SMALL_BYTES = 1024

OPSET = 20
"""ONNX opset of graphs."""
EXAMPLE_BATCH = 2
"""Samples of the example batch: one would let torch.export take the batch for a constant."""


def export_graph(
    model: nn.Module, path: Path, *, signature: Signature, example: Sequence[torch.Tensor], opset: int
) -> tuple[Shapes, Shapes]:
    """Write the model as ONNX in fp32, with the names and the dynamic dimensions of its signature, checked.

    It is written once, as one file, without the exporter's notes. The model is put into evaluation mode and stays in
    it: batch norm uses its running statistics, dropout is off.

    Args:
        model: Takes the signature's inputs by position; returns its outputs: a tensor, or a tuple or dictionary of
            tensors.
        path: File to write, in a folder that is there.
        signature: Inputs and outputs of the model.
        example: `EXAMPLE_BATCH` samples of each input.
        opset: ONNX opset.

    Returns:
        Shapes of inputs and of outputs, as `describe` says.

    Raises:
        ModelError: The model cannot be traced with these dimensions, chooses its own precision, gives other outputs
            than the signature says, or is larger than one file can be.
    """
    graph = _trace_graph(model, signature, example, opset)
    strip_metadata(graph)
    _name_dimensions(graph.graph, signature)
    shapes = describe(graph.graph, path.name)
    check_signature(graph.graph, signature, path.name)
    save_checked(graph, path)
    return shapes


def _trace_graph(
    model: nn.Module, signature: Signature, example: Sequence[torch.Tensor], opset: int
) -> onnx.ModelProto:
    """Return the graph as torch's exporter makes it."""
    import torch

    from trainer.model.signature import check_example, name_outputs

    model.eval()
    check_example(example, signature)
    with _no_autocast(), torch.inference_mode():
        outputs = model(*example)
    named = name_outputs(outputs, signature)
    try:
        with _quiet_exporter():
            program = torch.onnx.export(
                model,
                tuple(example),
                dynamo=True,
                opset_version=opset,
                input_names=list(signature.inputs),
                # A dictionary is flattened in its own order.
                output_names=list(outputs if isinstance(outputs, dict) else named),
                dynamic_shapes=_dynamic_shapes(signature, model),
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        # The error's text is a report of several pages; its cause names what torch could not trace.
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ModelError(
            f"the model cannot be exported to ONNX opset {opset}: {reason}",
            allowed=f"a model that torch.export can trace with dynamic {', '.join((BATCH, *signature.dimensions))}",
            todo="remove what depends on the batch size or on values of tensors from its forward",
        ) from error
    assert program is not None
    weights = (value.const_value for value in program.model.graph.initializers.values())
    size = sum(tensor.nbytes for tensor in weights if tensor is not None)
    if size >= MAX_FILE_BYTES:
        raise ModelError(
            f"the graph has {size / 1e9:.1f} GB",
            allowed=f"less than {MAX_FILE_BYTES / 1e9:.1f} GB, which one ONNX file can hold",
            todo="export a smaller model",
        )
    graph: onnx.ModelProto = program.model_proto
    return graph


def _dynamic_shapes(signature: Signature, model: nn.Module) -> tuple[Any, ...]:
    """Return what torch.export takes for dynamic, by place of the input and place in its shape."""
    import torch

    # Without an end: the graph takes any batch, engines those of their profile.
    dims: dict[str, Any] = {BATCH: torch.export.Dim(BATCH, min=1)}
    for name, found in signature.dimensions.items():
        if found.multiple == 1:
            dims[name] = torch.export.Dim(name, min=found.min, max=found.max)
        else:
            part = torch.export.Dim(f"_{name}", min=found.min // found.multiple, max=found.max // found.multiple)
            dims[name] = found.multiple * part
    shapes = tuple(
        {place: dims[size] for place, size in enumerate(spec.shape) if isinstance(size, str)}
        for spec in signature.inputs.values()
    )
    kinds = {parameter.kind for parameter in inspect.signature(model.forward).parameters.values()}
    # `*inputs` is one argument, a tuple.
    return (shapes,) if inspect.Parameter.VAR_POSITIONAL in kinds else shapes


def _name_dimensions(graph: onnx.GraphProto, signature: Signature) -> None:
    """Call dynamic dimensions as the signature does: the exporter has names of its own for a multiple of something."""
    specs: dict[str, TensorSpec] = {**signature.inputs, **signature.outputs}
    names: dict[str, str] = {}
    for item in (*graph.input, *graph.output):
        sizes = specs[item.name].shape if item.name in specs else []
        for dimension, size in zip(item.type.tensor_type.shape.dim, sizes, strict=False):
            if isinstance(size, str) and dimension.dim_param:
                names.setdefault(dimension.dim_param, size)
    for item in (*graph.input, *graph.output, *graph.value_info):
        for dimension in item.type.tensor_type.shape.dim:
            if dimension.dim_param in names:
                dimension.dim_param = names[dimension.dim_param]


def check_signature(graph: onnx.GraphProto, signature: Signature, name: str) -> None:
    """Compare a graph's inputs and outputs with the signature.

    Args:
        graph: The graph.
        signature: What its task says.
        name: How messages call the graph.

    Raises:
        ModelError: They are others.
    """
    for side, items in (("input", graph.input), ("output", graph.output)):
        specs: Mapping[str, TensorSpec] = signature.inputs if side == "input" else signature.outputs
        said = {tensor: f"{spec.dtype} {spec.shape}" for tensor, spec in specs.items()}
        found = {item.name: f"{_dtype_of(item)} {_shape_of(item)}" for item in items}
        for tensor in {**said, **found}:
            has, wanted = (side_of.get(tensor, "not there") for side_of in (found, said))
            if has != wanted:
                raise ModelError(
                    f"{side} {tensor} of {name} is {has}, the task's signature says {wanted}",
                    allowed="a signature that says what the model takes and gives",
                    todo="correct the task's signature, or the model",
                )


@contextlib.contextmanager
def _no_autocast() -> Iterator[None]:
    """Refuse a model that opens torch.autocast.

    The exporter writes its casts into the graph, some convolutions then get inputs and weights of different types, and
    neither ONNX Runtime nor TensorRT takes such a graph; parity with fp32 would be lost in any case.
    """
    import torch

    enter = torch.autocast.__enter__

    def refuse(self: Any) -> Any:
        if self._enabled:
            raise ModelError(
                "the model's forward opens torch.autocast",
                allowed="a forward that computes in the precision of its inputs",
                todo="remove autocast from the model: train.precision and export.precision choose the precision",
            )
        return enter(self)  # type: ignore[no-untyped-call]

    torch.autocast.__enter__ = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__enter__ = enter  # type: ignore[method-assign]


def save_checked(graph: onnx.ModelProto, path: Path) -> None:
    """Write a graph after ONNX's own check of operators, types and shapes.

    Raises:
        ModelError: The graph is not valid.
    """
    import onnx

    light = _without_weights(graph)
    rest = light.graph.SerializeToString()
    _describe_weights(graph, light)
    try:
        onnx.checker.check_model(light, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(
            f"the graph for {path.name} is not valid ONNX: {str(error).strip()}",
            allowed="a graph that onnx.checker accepts",
            todo="report the model's architecture; another one may work",
        ) from error
    light.ClearField("graph")
    # Written a weight at a time: to serialise the whole message takes four times its size in memory. A field's order in
    # a message is free (protobuf's documentation, "Encoding": "Field Order").
    weights = graph.graph.initializer
    field = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
    heads = [_field_head(field, tensor.ByteSize()) for tensor in weights]
    size = len(rest) + sum(len(head) + tensor.ByteSize() for head, tensor in zip(heads, weights, strict=True))
    with path.open("wb") as file:
        file.write(light.SerializeToString())
        file.write(_field_head(onnx.ModelProto.GRAPH_FIELD_NUMBER, size))
        file.write(rest)
        for head, tensor in zip(heads, weights, strict=True):
            file.write(head)
            file.write(tensor.SerializeToString())


def _field_head(number: int, size: int) -> bytes:
    """Return what stands before a message that is a field of another (protobuf's documentation, "Encoding")."""
    found = bytearray()
    for value in (number << 3 | 2, size):
        while value > 0x7F:
            found.append(value & 0x7F | 0x80)
            value >>= 7
        found.append(value)
    return bytes(found)


def _without_weights(graph: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of all but the initializers."""
    import onnx

    light = onnx.ModelProto()
    for source, target, left_out in ((graph, light, "graph"), (graph.graph, light.graph, "initializer")):
        for field, value in source.ListFields():
            if field.name == left_out:
                continue
            if isinstance(value, str | int):
                setattr(target, field.name, value)
            else:
                getattr(target, field.name).extend(value)
    return light


def _describe_weights(graph: onnx.ModelProto, light: onnx.ModelProto) -> None:
    """Make inputs of large weights: the check copies its graph twice, and reads no number of them.

    Inference reads small constants, such as the shape of a Reshape.
    """
    import onnx

    inputs = {item.name for item in graph.graph.input}
    for tensor in graph.graph.initializer:
        if len(tensor.raw_data) <= _SMALL_BYTES or tensor.name in inputs:
            light.graph.initializer.append(tensor)
        else:
            light.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )


def strip_metadata(graph: onnx.ModelProto) -> None:
    """Remove the exporter's notes.

    They hold source paths of the machine that exported, which do not belong into a file that ships, and would make the
    same weights other bytes on another machine.
    """
    for part in (graph, graph.graph, *graph.functions):
        del part.metadata_props[:]
    inner = graph.graph
    for item in (*inner.node, *inner.initializer, *inner.value_info, *inner.input, *inner.output):
        del item.metadata_props[:]
    for node in (*inner.node, *(node for function in graph.functions for node in function.node)):
        del node.metadata_props[:]
        node.doc_string = ""


def describe(graph: onnx.GraphProto, name: str) -> tuple[Shapes, Shapes]:
    """Return names and shapes of a graph's inputs and outputs; a dynamic dimension is given by its name.

    Args:
        graph: The graph.
        name: How messages call it.

    Raises:
        ModelError: The batch is not dynamic, so the graph would accept one batch size only.
    """
    inputs = {item.name: _shape_of(item) for item in graph.input}
    outputs = {item.name: _shape_of(item) for item in graph.output}
    for tensor, shape in {**inputs, **outputs}.items():
        if not shape or shape[0] != BATCH:
            raise ModelError(
                f"{tensor} of {name} has shape {shape}",
                allowed=f"a first dimension that is dynamic ({BATCH})",
                todo="remove what fixes the batch size from the model's forward",
            )
    return inputs, outputs


def _dtype_of(item: onnx.ValueInfoProto) -> str:
    """Return a type as signatures call it; one that no signature knows has ONNX's name."""
    import onnx

    name = onnx.TensorProto.DataType.Name(item.type.tensor_type.elem_type)
    return str(_TYPES.get(name, name))


_TYPES = {"FLOAT": "float32", "INT64": "int64", "INT32": "int32", "UINT8": "uint8", "BOOL": "bool"}


def _shape_of(item: onnx.ValueInfoProto) -> list[str | int]:
    return [dimension.dim_param or dimension.dim_value for dimension in item.type.tensor_type.shape.dim]


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence what the exporter says about itself, and nothing else."""
    # It warns that it found no torchvision, which is not a dependency of ours.
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = registration.disabled
    registration.disabled = True
    try:
        with warnings.catch_warnings():
            # torch.export calls a name that torch itself deprecated.
            warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)`", category=FutureWarning)
            # Of several inputs with the same dimension; `_name_dimensions` names them all.
            warnings.filterwarnings("ignore", message="# The axis name: .* will not be used", category=UserWarning)
            yield
    finally:
        registration.disabled = before
