"""ONNX export of a torch model: names, types and dynamic dimensions are checked against the signature.

Here: `export_graph` traces the model in the precision of its weights (half.py gives a half model); `save_graph` checks
and writes a graph. Nothing here changes weights or precision.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from contracts.artifacts.signature import BATCH, Signature, TensorSpec
from contracts.errors import ModelError

if TYPE_CHECKING:
    import onnx_ir
    import torch
    from google.protobuf.message import Message
    from torch import nn

OPSET = 20
"""ONNX opset of graphs."""
EXAMPLE_BATCH = 2
"""Samples of the example batch; torch.export would treat a batch of 1 as a constant."""
# Largest size of a protobuf message, such as an ONNX file (protobuf's documentation, "Proto Limits").
MAX_FILE_BYTES = 2**31 - 1
# Of torch.export, which calls a name that torch itself deprecated; and of several inputs with the same dimension.
_NEEDLESS_WARNINGS = (r"`isinstance\(treespec, LeafSpec\)`", "# The axis name: .* will not be used")
# Of a constant that type inference reads, such as the shape of a Reshape; weights are larger.
_CONSTANT_BYTES = 1024


def export_graph(
    model: nn.Module, path: Path, *, signature: Signature, example: Sequence[torch.Tensor], keep_attention: bool = False
) -> None:
    """Write the model as ONNX with the names and dynamic dimensions of its signature, and check the file.

    The model stays in evaluation mode, and attention of transformers stays in its eager implementation.

    Args:
        model: Takes the signature's inputs by position; returns a tensor, or a tuple or dictionary of tensors.
        path: File to write, in an existing folder.
        signature: Inputs and outputs of the model.
        example: `EXAMPLE_BATCH` samples of each input.
        keep_attention: Trace attention as the model has it.

    Raises:
        ModelError: The model cannot be traced with these dimensions, chooses its own precision, gives other outputs
            than the signature says, or is larger than one file can be.
    """
    import torch

    from trainer.model.signature import check_example, name_outputs

    model.eval()
    check_example(example, signature)
    if not keep_attention:
        use_eager_attention(model)
    with _no_autocast(), torch.inference_mode():
        outputs = model(*example)
    named = name_outputs(outputs, signature)
    # It logs that torchvision, which is not a dependency, is missing.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for message in _NEEDLESS_WARNINGS:
                warnings.filterwarnings("ignore", message)
            program = torch.onnx.export(
                model,
                tuple(example),
                dynamo=True,
                opset_version=OPSET,
                input_names=list(signature.inputs),
                # A dictionary is flattened in its own order.
                output_names=list(outputs if isinstance(outputs, dict) else named),
                dynamic_shapes=_dynamic_shapes(signature, model),
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        # The message is a report of several pages; the cause has the construct that torch cannot trace.
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ModelError(
            f"the model cannot be exported to ONNX opset {OPSET}: {reason}",
            allowed=f"a model that torch.export can trace with dynamic {', '.join((BATCH, *signature.dimensions))}",
            todo="remove code that depends on the batch size or on values of tensors from its forward",
        ) from error
    assert program is not None
    save_graph(program.model, path, signature=signature)


def use_eager_attention(model: nn.Module) -> None:
    """Have networks of transformers compute attention by plain products and a softmax.

    Such graphs have a quarter fewer nodes, and torch cannot trace Swin and BEiT otherwise.
    """
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "_attn_implementation"):
            module.config._attn_implementation = "eager"  # type: ignore[union-attr]


def _dynamic_shapes(signature: Signature, model: nn.Module) -> tuple[Any, ...]:
    """Return torch.export's dynamic_shapes: dimensions by input and axis."""
    import torch

    # No maximum: the graph accepts any batch size, engines those of their profile.
    dims: dict[str, Any] = {BATCH: torch.export.Dim(BATCH, min=1)}
    for name, size in signature.dimensions.items():
        part = torch.export.Dim(f"_{name}", min=size.min // size.multiple, max=size.max // size.multiple)
        dims[name] = part if size.multiple == 1 else size.multiple * part
    shapes = tuple(
        {place: dims[size] for place, size in enumerate(spec.shape) if isinstance(size, str)}
        for spec in signature.inputs.values()
    )
    kinds = {parameter.kind for parameter in inspect.signature(model.forward).parameters.values()}
    # `*inputs` is one argument, a tuple.
    return (shapes,) if inspect.Parameter.VAR_POSITIONAL in kinds else shapes


def save_graph(model: onnx_ir.Model, path: Path, *, signature: Signature | None = None) -> None:
    """Check a graph and write it as one file, without metadata of the exporter.

    Args:
        model: The graph; it loses its weights.
        path: File to write.
        signature: Inputs and outputs; the graph's dynamic dimensions get these names. None: they are not checked.

    Raises:
        ModelError: The graph is not valid ONNX, does not fit the signature, or is larger than one file can be.
    """
    import onnx_ir

    weights: dict[str, Any] = {name: value.const_value for name, value in model.graph.initializers.items()}
    weights = {name: weight for name, weight in weights.items() if weight.nbytes > _CONSTANT_BYTES}
    for name in weights:
        del model.graph.initializers[name]
    proto = onnx_ir.to_proto(model)
    _strip_notes(proto)
    if signature is not None:
        _fit_signature(proto.graph, signature, path.name)
    _check_graph(proto, weights, path.name)
    structure = proto.graph.SerializeToString()
    proto.ClearField("graph")
    size = sum(map(len, _graph_parts(structure, weights)))
    if size >= MAX_FILE_BYTES:
        raise ModelError(
            f"the graph has {size / 1e9:.1f} GB",
            allowed=f"less than {MAX_FILE_BYTES / 1e9:.1f} GB, which one ONNX file can hold",
            todo="export a smaller model",
        )
    with path.open("wb") as file:
        file.write(proto.SerializeToString() + _graph_head(size))
        file.writelines(_graph_parts(structure, weights))


def _graph_parts(structure: bytes, weights: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield a graph's message in parts, one per weight; serialising it whole takes four times its size in memory."""
    yield structure
    for name, weight in weights.items():
        tensor = onnx.helper.make_tensor(name, int(weight.dtype), list(weight.shape), weight.tobytes(), raw=True)
        yield onnx.GraphProto(initializer=[tensor]).SerializeToString()


def _graph_head(size: int) -> bytes:
    """Return tag and length of the field `graph` in an ONNX file (protobuf's documentation, "Encoding")."""
    head = bytearray([7 << 3 | 2])
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*head, size])


def _strip_notes(message: Message) -> None:
    """Remove notes of the exporter: they have source paths of this machine, and change the file's bytes."""
    for field, value in message.ListFields():
        if field.name in ("metadata_props", "doc_string"):
            message.ClearField(field.name)
        elif field.message_type is not None:
            for part in value if field.is_repeated else (value,):
                _strip_notes(part)


def _fit_signature(graph: onnx.GraphProto, signature: Signature, name: str) -> None:
    """Name dynamic dimensions as in the signature, and refuse a graph with other inputs or outputs."""
    specs: dict[str, TensorSpec] = {**signature.inputs, **signature.outputs}
    items = [*graph.input, *graph.output]
    names: dict[str, str] = {}
    for item in items:
        sizes = specs[item.name].shape if item.name in specs else []
        for dimension, size in zip(item.type.tensor_type.shape.dim, sizes, strict=False):
            # The exporter invents a name for a multiple of a dimension.
            if isinstance(size, str) and dimension.dim_param:
                names.setdefault(dimension.dim_param, size)
    for item in (*items, *graph.value_info):
        for dimension in item.type.tensor_type.shape.dim:
            if dimension.dim_param in names:
                dimension.dim_param = names[dimension.dim_param]
    expected = {tensor: f"{spec.dtype} {spec.shape}" for tensor, spec in specs.items()}
    actual = {item.name: _describe(item) for item in items}
    for tensor in {**expected, **actual}:
        actual_spec, expected_spec = (tensors.get(tensor, "missing") for tensors in (actual, expected))
        if actual_spec != expected_spec:
            raise ModelError(
                f"{tensor} of {name} is {actual_spec}, the task's signature says {expected_spec}",
                allowed="a signature with the inputs and outputs of the model",
                todo="correct the task's signature, or the model",
            )


def _describe(item: onnx.ValueInfoProto) -> str:
    """Return type and shape as signatures write them."""
    tensor = item.type.tensor_type
    shape = [dimension.dim_param or dimension.dim_value for dimension in tensor.shape.dim]
    return f"{onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name} {shape}"


def _check_graph(model: onnx.ModelProto, weights: Mapping[str, Any], name: str) -> None:
    """Run ONNX's own check of operators, types and shapes; weights are passed as inputs, without values."""
    inputs = model.graph.input
    num_inputs = len(inputs)
    for weight_name, weight in weights.items():
        inputs.append(onnx.helper.make_tensor_value_info(weight_name, int(weight.dtype), list(weight.shape)))
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(
            f"the graph for {name} is not valid ONNX: {str(error).strip()}",
            allowed="a graph that onnx.checker accepts",
            todo="report the model's architecture; another one may work",
        ) from error
    del inputs[num_inputs:]


@contextlib.contextmanager
def _no_autocast() -> Iterator[None]:
    """Refuse a model that opens torch.autocast: its casts in a graph give nodes inputs of different types."""
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
