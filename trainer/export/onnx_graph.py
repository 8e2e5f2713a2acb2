"""From a torch model to an ONNX graph with a dynamic batch, checked.

Here: `export_graph` writes the fp32 graph, `describe` says what a graph takes and gives. Run by trainer/export/task.py;
`python -m trainer.export.task` is the command. This module never changes weights or precision: precision.py does.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.errors import ModelError

if TYPE_CHECKING:
    import onnx
    from torch import nn

INPUT_NAME = "images"
OUTPUT_NAME = "logits"
BATCH_DIMENSION = "batch"
CHANNELS = 3

# A batch of one would let torch.export take the batch for a constant.
_EXAMPLE_BATCH = 2


def export_graph(model: nn.Module, path: Path, *, image_size: int, opset: int) -> None:
    """Write the model as ONNX in fp32: `images` [batch, 3, S, S] float32 to `logits` [batch, classes] float32.

    The model is put into evaluation mode and stays in it: batch norm uses its running statistics, dropout is off.

    Args:
        model: Maps images [B, 3, S, S] float32, normalised, to logits [B, classes].
        path: File to write; weights are inside it.
        image_size: S, in pixels.
        opset: ONNX opset.

    Raises:
        ModelError: The model cannot be traced with a dynamic batch, or the graph is not valid ONNX.
    """
    import torch

    model.eval()
    example = torch.zeros(_EXAMPLE_BATCH, CHANNELS, image_size, image_size)
    try:
        with _quiet_exporter():
            program = torch.onnx.export(
                model,
                (example,),
                dynamo=True,
                opset_version=opset,
                input_names=[INPUT_NAME],
                output_names=[OUTPUT_NAME],
                dynamic_shapes=({0: torch.export.Dim(BATCH_DIMENSION, min=1)},),
                external_data=False,
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
    assert program is not None  # dynamo=True returns a program
    graph = program.model_proto
    strip_metadata(graph)
    save_checked(graph, path)


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


def describe(path: Path) -> tuple[dict[str, list[str | int]], dict[str, list[str | int]]]:
    """Return names and shapes of a graph's inputs and outputs; the dynamic dimension is given by its name.

    Raises:
        ModelError: The batch is not dynamic, so the graph would accept one batch size only.
    """
    import onnx

    graph = onnx.load(path).graph
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
