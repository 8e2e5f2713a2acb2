from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from contracts.errors import ModelError
from trainer.export.precision import convert_to_fp16


def write_graph(path: Path, weight: float, *, bound: float | None = None) -> Path:
    """Write images [batch, 1] @ weight -> logits, then a Clip when `bound` is given."""
    make = onnx.helper.make_tensor_value_info
    nodes = [onnx.helper.make_node("MatMul", ["images", "weight"], ["product" if bound else "logits"], name="product")]
    initializers = [onnx.numpy_helper.from_array(np.array([[weight]], np.float32), "weight")]
    if bound:
        nodes.append(onnx.helper.make_node("Max", ["product", "bound"], ["logits"], name="clip"))
        initializers.append(onnx.numpy_helper.from_array(np.array(-bound, np.float32), "bound"))
    graph = onnx.helper.make_graph(
        nodes,
        "graph",
        [make("images", onnx.TensorProto.FLOAT, ["batch", 1])],
        [make("logits", onnx.TensorProto.FLOAT, ["batch", 1])],
        initializers,
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def weight_of(path: Path) -> Any:
    (found,) = [item for item in onnx.load(path).graph.initializer if item.name == "weight"]
    return onnx.numpy_helper.to_array(found)


def test_weights_are_fp16_and_the_interface_is_fp32(exported: Any) -> None:
    graph = onnx.load(exported.fp16).graph
    assert {item.data_type for item in graph.initializer} == {onnx.TensorProto.FLOAT16, onnx.TensorProto.INT64}
    for item in (*graph.input, *graph.output):
        assert item.type.tensor_type.elem_type == onnx.TensorProto.FLOAT


# The converter's own defaults would make 10,000 and 1e-7 of the second and the third.
@pytest.mark.parametrize("weight", [1.0, 20_000.0, 6e-8, -65504.0, 1e-12])
def test_a_weight_is_rounded_and_never_clamped(tmp_path: Path, weight: float) -> None:
    target = tmp_path / "fp16.onnx"
    convert_to_fp16(write_graph(tmp_path / "fp32.onnx", weight), target)
    assert weight_of(target) == np.float16(weight)


def test_a_weight_that_fp16_cannot_hold_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "fp16.onnx"
    with pytest.raises(ModelError, match=r"fp16 cannot hold 1 tensor\(s\) of the model: weight \(1e\+05\)") as caught:
        convert_to_fp16(write_graph(tmp_path / "fp32.onnx", 1e5), target)
    assert "export.precision=fp32" in caught.value.todo
    assert not target.exists()


def test_a_large_tensor_that_stays_fp32_is_no_finding(tmp_path: Path) -> None:
    target = tmp_path / "fp16.onnx"
    convert_to_fp16(write_graph(tmp_path / "fp32.onnx", 2.0, bound=1e6), target)
    types = {item.name: item.data_type for item in onnx.load(target).graph.initializer}
    assert types == {"weight": onnx.TensorProto.FLOAT16, "bound": onnx.TensorProto.FLOAT}
