from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from trainer.export.graph.coverage import judge_coverage, measure_coverage


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray],
    functions: list[onnx.FunctionProto] | None = None,
) -> Path:
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 4])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 4])
    initializers = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", [images], [logits], initializers)
    onnx.save(helper.make_model(graph, functions=functions or [], opset_imports=[helper.make_opsetid("", 20)]), path)
    return path


def quantised(name: str) -> list[onnx.NodeProto]:
    """Return Q and DQ around a value: NAME becomes NAME_dq."""
    return [
        helper.make_node("QuantizeLinear", [name, "scale", "zero"], [f"{name}_q"]),
        helper.make_node("DequantizeLinear", [f"{name}_q", "scale", "zero"], [f"{name}_dq"]),
    ]


SCALES = {"scale": np.array(0.5, np.float32), "zero": np.array(0, np.int8)}
SQUARE = np.zeros((4, 4), np.float32)


def matmul(left: str, right: str, out: str) -> onnx.NodeProto:
    return helper.make_node("MatMul", [left, right], [out])


@pytest.mark.parametrize(
    ("left", "right", "share"), [("images_dq", "w_dq", 1.0), ("images_dq", "w", 0.0), ("images", "w_dq", 0.0)]
)
def test_a_node_is_int8_when_both_inputs_are(tmp_path: Path, left: str, right: str, share: float) -> None:
    nodes = [*quantised("images"), *quantised("w"), matmul(left, right, "logits")]
    path = save(tmp_path / "g.onnx", nodes, {**SCALES, "w": SQUARE})
    assert measure_coverage(path, "int8") == {"quantized_nodes": share}


def test_casts_of_the_conversion_to_fp16_are_looked_through(tmp_path: Path) -> None:
    casts = [
        helper.make_node("Cast", [f"{name}_dq"], [f"{name}_half"], to=TensorProto.FLOAT16) for name in ("images", "w")
    ]
    nodes = [*quantised("images"), *quantised("w"), *casts, matmul("images_half", "w_half", "half")]
    nodes.append(helper.make_node("Cast", ["half"], ["logits"], to=TensorProto.FLOAT))
    path = save(tmp_path / "g.onnx", nodes, {**SCALES, "w": SQUARE})
    assert measure_coverage(path, "int8") == {"quantized_nodes": 1.0}


def test_all_of_conv_gemm_and_matmul_count_and_nothing_else(tmp_path: Path) -> None:
    nodes = [
        *quantised("images"),
        *quantised("w"),
        matmul("images_dq", "w_dq", "a"),
        helper.make_node("Gemm", ["images", "w_dq", "bias"], ["b"]),
        helper.make_node("Conv", ["images_dq", "w"], ["c"]),
        helper.make_node("Add", ["a", "b"], ["d"]),
        # The third input, the bias, need not be int8.
        helper.make_node("Gemm", ["images_dq", "w_dq", "bias"], ["logits"]),
    ]
    path = save(tmp_path / "g.onnx", nodes, {**SCALES, "w": SQUARE, "bias": SQUARE[0]})
    assert measure_coverage(path, "int8") == {"quantized_nodes": 0.5}


def test_subgraphs_and_functions_count(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [matmul("images", "w", "t")], "then", [], [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)]
    )
    function = helper.make_function(
        "own", "twice", ["x", "y"], ["z"], [matmul("x", "y", "z")], [helper.make_opsetid("", 20)]
    )
    nodes = [
        *quantised("images"),
        *quantised("w"),
        matmul("images_dq", "w_dq", "a"),
        helper.make_node("If", ["yes"], ["b"], then_branch=inner, else_branch=inner),
        helper.make_node("twice", ["a", "b"], ["logits"], domain="own"),
    ]
    path = save(tmp_path / "g.onnx", nodes, {**SCALES, "w": SQUARE, "yes": np.array(True)}, [function])
    assert measure_coverage(path, "int8") == {"quantized_nodes": 0.25}


def test_weight_bytes_are_counted_as_they_are_in_the_file(tmp_path: Path) -> None:
    shape = helper.make_node("Constant", [], ["shape"], value=numpy_helper.from_array(np.zeros(9, np.int64)))
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.zeros(5, np.float32)))
    weights = {
        "half": np.zeros((10, 9), np.float16),  # 180 bytes
        "single": np.zeros(10, np.float32),  # 40 bytes, and 20 of the constant
        "axes": np.zeros(99, np.int64),
        **SCALES,
        "w": np.zeros(99, np.float32),  # on its way to int8
    }
    nodes = [shape, constant, *quantised("w"), helper.make_node("Identity", ["images"], ["logits"])]
    path = save(tmp_path / "g.onnx", nodes, weights)
    assert measure_coverage(path, "fp16") == {"weight_bytes": 0.75}
    assert measure_coverage(path, "fp32") == {}


def test_weights_outside_the_file_count(tmp_path: Path) -> None:
    path = save(
        tmp_path / "g.onnx",
        [helper.make_node("Identity", ["images"], ["logits"])],
        {"half": np.zeros((2000, 9), np.float16), "single": np.zeros((1000, 9), np.float32)},
    )
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="g.data", size_threshold=0)
    (tmp_path / "g.data").unlink()
    assert measure_coverage(path, "fp16") == {"weight_bytes": 0.5}


@pytest.mark.parametrize(
    ("precision", "name", "limit"), [("int8", "quantized_nodes", 0.9), ("fp16", "weight_bytes", 0.95)]
)
def test_the_gate_is_at_its_limit(precision: str, name: str, limit: float) -> None:
    at = judge_coverage({name: limit}, precision)
    assert (at.status, at.reason, at.figures, at.limits) == ("passed", "", {name: limit}, {name: limit})
    below = judge_coverage({name: limit - 0.001}, precision)
    assert (below.name, below.precision, below.status) == ("coverage", precision, "failed")
    assert f"at least {limit:.0%}" in below.reason
    assert judge_coverage({name: float("nan")}, precision).status == "failed"
    assert judge_coverage({}, precision).status == "failed"


def test_fp32_has_nothing_to_cover() -> None:
    assert judge_coverage({}, "fp32").status == "passed"
