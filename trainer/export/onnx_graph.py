"""From a torch model to an ONNX graph with a dynamic batch, checked.

Here: `export_graph` and `join_graph` write the fp32 graph, `describe` says what a graph takes and gives. Run by
trainer/export/task.py; `python -m trainer.export.task` is the command. This module never changes weights or precision:
precision.py does.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.errors import ModelError

if TYPE_CHECKING:
    import onnx
    from torch import nn

Shapes = dict[str, list[str | int]]
"""Shape by name; the dynamic dimension is given by its own name."""

INPUT_NAME = "images"
OUTPUT_NAME = "logits"
BATCH_DIMENSION = "batch"
CHANNELS = 3
# A protobuf message, which an ONNX file is, ends there (protobuf's documentation, "Proto Limits").
MAX_FILE_BYTES = 2**31 - 1

# A batch of one would let torch.export take the batch for a constant.
_EXAMPLE_BATCH = 2


def export_graph(model: nn.Module, path: Path, *, image_size: int, opset: int) -> None:
    """Write the model as ONNX in fp32: `images` [batch, 3, S, S] float32 to `logits` [batch, classes] float32.

    The weights lie beside it in files that belong to it: in one file they take three times the memory here, so
    `join_graph` makes one of it in a process of its own. The model is put into evaluation mode and stays in it: batch
    norm uses its running statistics, dropout is off.

    Args:
        model: Maps images [B, 3, S, S] float32, normalised, to logits [B, classes].
        path: File to write, in a folder that is there; only `join_graph` reads it.
        image_size: S, in pixels.
        opset: ONNX opset.

    Raises:
        ModelError: The model cannot be traced with a dynamic batch, or chooses its own precision.
    """
    import torch

    model.eval()
    example = torch.zeros(_EXAMPLE_BATCH, CHANNELS, image_size, image_size)
    with _no_autocast(), torch.inference_mode():
        model(example)
    try:
        with _quiet_exporter():
            torch.onnx.export(
                model,
                (example,),
                path,
                dynamo=True,
                opset_version=opset,
                input_names=[INPUT_NAME],
                output_names=[OUTPUT_NAME],
                dynamic_shapes=({0: torch.export.Dim(BATCH_DIMENSION, min=1)},),
                external_data=True,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        # The error's text is a report of several pages; its cause names what torch could not trace.
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ModelError(
            f"the model cannot be exported to ONNX opset {opset}: {reason}",
            allowed="a model that torch.export can trace with a dynamic batch dimension",
            todo="remove what depends on the batch size or on values of tensors from its forward",
        ) from error
    except OSError as error:
        if error.errno is not None:
            raise
        # The exporter writes weights with numpy, whose short write has no number.
        raise OSError(errno.ENOSPC, str(error), str(path)) from error


def join_graph(source: Path, target: Path) -> tuple[Shapes, Shapes]:
    """Write what `export_graph` wrote as one file, checked, without the exporter's notes; return what `describe` says.

    Raises:
        ModelError: It is larger than one file can be, no valid ONNX, or has a fixed batch.
    """
    import onnx

    graph = onnx.load(source)
    size = graph.ByteSize()
    if size >= MAX_FILE_BYTES:
        raise ModelError(
            f"the graph has {size / 1e9:.1f} GB",
            allowed=f"less than {MAX_FILE_BYTES / 1e9:.1f} GB, which one ONNX file can hold",
            todo="export a smaller model",
        )
    strip_metadata(graph)
    save_checked(graph, target)
    return describe(target)


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

    try:
        onnx.checker.check_model(graph, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(
            f"the graph for {path.name} is not valid ONNX: {str(error).strip()}",
            allowed="a graph that onnx.checker accepts",
            todo="report the model's architecture; another one may work",
        ) from error
    onnx.save(graph, path)


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


def describe(path: Path) -> tuple[Shapes, Shapes]:
    """Return names and shapes of a graph's inputs and outputs; the dynamic dimension is given by its name.

    Raises:
        ModelError: The batch is not dynamic, so the graph would accept one batch size only.
    """
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    inputs = {item.name: _shape_of(item) for item in graph.input}
    outputs = {item.name: _shape_of(item) for item in graph.output}
    for name, shape in {**inputs, **outputs}.items():
        if not shape or shape[0] != BATCH_DIMENSION:
            raise ModelError(
                f"{name} of {path.name} has shape {shape}",
                allowed=f"a first dimension that is dynamic ({BATCH_DIMENSION})",
                todo="remove what fixes the batch size from the model's forward",
            )
    return inputs, outputs


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
            yield
    finally:
        registration.disabled = before
