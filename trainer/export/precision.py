"""From the fp32 graph to an fp16 graph. Precision lives in the graph: the engine builder is given no flags.

Here: `convert_to_fp16`. Run by trainer/export/task.py. It never clamps a weight: one that fp16 cannot hold is an error.
Whether activations fit is not decided here; docs of trainer/export/parity.py say what the proof covers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.errors import ModelError
from trainer.export.onnx_graph import save_checked

if TYPE_CHECKING:
    import onnx

# Largest finite number of IEEE 754 binary16.
FP16_MAX = 65504.0


def convert_to_fp16(source: Path, target: Path) -> None:
    """Write `source` with weights and arithmetic in fp16; inputs and outputs stay float32.

    Weights are rounded to the nearest fp16 number; those below 2^-25 in size become 0, as in any cast.

    Raises:
        ModelError: A weight is larger than fp16 can hold, or the converter's graph is not valid.
    """
    import onnx
    from onnxconverter_common import float16  # type: ignore[import-untyped]

    graph = onnx.load(source)
    with warnings.catch_warnings():
        # The converter warns of each weight that it would clamp; such a graph is refused below, by name.
        warnings.filterwarnings("ignore", message="the float32 number .* will be truncated", category=UserWarning)
        converted = float16.convert_float_to_float16(
            graph,
            keep_io_types=True,
            # Its defaults clamp weights to sizes of 1e-7 to 1e4 without an error, although fp16 goes to 65504 and
            # rounds what is tiny by itself: a weight of 20,000 would become half of itself.
            min_positive_val=0.0,
            max_finite_val=FP16_MAX,
        )
    too_large = _find_too_large(graph, converted)
    if too_large:
        shown = ", ".join(f"{name} ({size:.3g})" for name, size in too_large[:5])
        raise ModelError(
            f"fp16 cannot hold {len(too_large)} tensor(s) of the model: {shown}",
            allowed=f"weights up to {FP16_MAX:.0f} in size",
            todo="set export.precision=fp32, or train with weight decay or normalisation that keeps weights small",
        )
    save_checked(converted, target)


def _find_too_large(graph: onnx.ModelProto, converted: onnx.ModelProto) -> list[tuple[str, float]]:
    """Return names and sizes of the tensors that are fp16 in `converted` and too large for it in `graph`."""
    import numpy as np
    import onnx

    # Tensors that the converter leaves in fp32 (bounds of a Clip, scales of a Resize) may be of any size.
    halved = {name for name, tensor in _tensors(converted) if tensor.data_type == onnx.TensorProto.FLOAT16}
    found = []
    for name, tensor in _tensors(graph):
        if name not in halved or tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        values = onnx.numpy_helper.to_array(tensor)
        # Infinities are kept as they are: masks are made of them.
        finite = np.abs(values[np.isfinite(values)])
        if finite.size and float(finite.max()) > FP16_MAX:
            found.append((name, float(finite.max())))
    return found


def _tensors(graph: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Yield the constant tensors of a graph: weights by name, constants by the name of what they feed."""
    for initializer in graph.graph.initializer:
        yield initializer.name, initializer
    for node in graph.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield node.output[0], attribute.t
