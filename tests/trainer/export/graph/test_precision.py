from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from contracts.errors import ModelError
from tests.trainer.export.graphs import convolutions, image_signature, run_exactly, run_onnx, write_graph
from trainer.export.engines.engine import build_engine
from trainer.export.graph.precision import convert_to_fp16
from trainer.export.targets import TENSORRT_RTX, Builder

FLOAT, FLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16


def write_product(path: Path, weight: float) -> Path:
    """Write images [batch, 1] @ weight -> logits."""
    node = helper.make_node("MatMul", ["images", "weight"], ["logits"], name="product")
    return write_graph(path, [node], {"weight": np.array([[weight]], np.float32)})


def weights_of(path: Path) -> dict[str, Any]:
    return {item.name: numpy_helper.to_array(item) for item in onnx.load(path).graph.initializer}


def operators_of(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def run(path: Path, values: Any) -> Any:
    """Run a graph in real fp16 arithmetic, after ONNX Runtime accepted its types."""
    images = np.array(values, np.float32)
    run_onnx(path, images)
    return run_exactly(path, images=images)["logits"]


def test_weights_are_fp16_and_the_interface_is_fp32(exported: Any) -> None:
    graph = onnx.load(exported.fp16).graph
    assert {item.data_type for item in graph.initializer} == {FLOAT16, TensorProto.INT64}
    for item in (*graph.input, *graph.output):
        assert item.type.tensor_type.elem_type == FLOAT


# The converter's own defaults would make 10,000 and 1e-7 of the second and the third.
@pytest.mark.parametrize("weight", [20_000.0, 6e-8, -65504.0])
def test_a_weight_is_rounded_and_never_clamped(tmp_path: Path, weight: float) -> None:
    target = tmp_path / "fp16.onnx"
    assert convert_to_fp16(write_product(tmp_path / "fp32.onnx", weight), target).kept_fp32 == []
    assert weights_of(target)["weight"] == np.float16(weight)
    assert weights_of(target)["weight"].dtype == np.float16


def test_the_node_of_a_weight_that_fp16_cannot_hold_stays_fp32_and_is_named(tmp_path: Path) -> None:
    target = tmp_path / "fp16.onnx"
    found = convert_to_fp16(write_product(tmp_path / "fp32.onnx", 1e5), target)
    assert found.kept_fp32 == ["product"]
    assert found.too_large == {"weight": np.float32(1e5)}
    assert weights_of(target)["weight"] == np.float32(1e5)
    # Neither what it reads nor what it writes went through fp16, which knows no 1.0001 and nothing above 65504.
    assert run(target, [[1.0001]]) == np.float32(1.0001) * np.float32(1e5)
    assert operators_of(target) == ["MatMul"]


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_an_infinity_is_no_finding(tmp_path: Path, value: float) -> None:
    node = helper.make_node("Add", ["images", "mask"], ["logits"], name="sum")
    source = write_graph(tmp_path / "fp32.onnx", [node], {"mask": np.array([value], np.float32)})
    found = convert_to_fp16(source, tmp_path / "fp16.onnx")
    assert (found.kept_fp32, found.too_large) == ([], {})


def test_an_epsilon_that_fp16_would_make_0_keeps_its_node_in_fp32(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["epsilon"], name="constant", value_float=1e-12),
        helper.make_node("Add", ["images", "epsilon"], ["sum"], name="add"),
        helper.make_node("Div", ["images", "sum"], ["logits"], name="div"),
    ]
    found = convert_to_fp16(write_graph(tmp_path / "fp32.onnx", nodes, {}), tmp_path / "fp16.onnx")
    assert (found.kept_fp32, found.vanishing) == (["add"], ["epsilon"])
    assert weights_of(tmp_path / "fp16.onnx")["epsilon"] == np.float32(1e-12)


def test_a_value_that_two_kept_nodes_read_does_not_pass_through_fp16(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["images", "factor"], ["large"], name="large"),
        helper.make_node("Mul", ["large", "back"], ["left"], name="left"),
        helper.make_node("Mul", ["large", "back"], ["right"], name="right"),
        helper.make_node("Add", ["left", "right"], ["logits"], name="sum"),
    ]
    weights = {"factor": np.array([2.0**17], np.float32), "back": np.array([2.0**-17], np.float32)}
    source, target = write_graph(tmp_path / "fp32.onnx", nodes, weights), tmp_path / "fp16.onnx"
    kept = ["large", "left", "right"]
    assert convert_to_fp16(source, target, keep_fp32=kept).kept_fp32 == kept
    assert run(target, [[1.5]]) == 3.0
    # One of the readers in fp16 reads an infinity: it must be kept as well, which is the range gate's to see.
    convert_to_fp16(source, target, keep_fp32=["large", "left"])
    assert not np.isfinite(run(target, [[1.5]]))


def test_an_output_of_a_kept_node_is_not_rounded(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["images"], ["positive"], name="relu"),
        helper.make_node("MatMul", ["positive", "weight"], ["logits"], name="product"),
    ]
    source = write_graph(tmp_path / "fp32.onnx", nodes, {"weight": np.array([[60_000.0]], np.float32)})
    target = tmp_path / "fp16.onnx"
    convert_to_fp16(source, target, keep_fp32=["product"])
    assert operators_of(target) == ["Cast", "Relu", "Cast", "MatMul"]
    assert run(target, [[3.0]]) == 180_000.0


def test_a_weight_of_nodes_in_both_precisions_is_there_in_both(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["images", "weight"], ["first"], name="first"),
        helper.make_node("Mul", ["first", "weight"], ["logits"], name="second"),
    ]
    source = write_graph(tmp_path / "fp32.onnx", nodes, {"weight": np.full(100, 1.0001, np.float32)}, classes=100)
    convert_to_fp16(source, tmp_path / "fp16.onnx", keep_fp32=["second"])
    found = weights_of(tmp_path / "fp16.onnx")
    assert {name: value.dtype for name, value in found.items()} == {"weight": np.float16, "weight_fp32": np.float32}
    assert (found["weight_fp32"] == np.float32(1.0001)).all()
    assert run(tmp_path / "fp16.onnx", [[1.0]])[0, 0] == np.float32(1.0001)


def test_a_cast_of_the_model_itself_is_to_fp16(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Greater", ["images", "bound"], ["above"], name="greater"),
        helper.make_node("Cast", ["above"], ["count"], name="cast", to=FLOAT),
        helper.make_node("Mul", ["images", "count"], ["logits"], name="product"),
    ]
    source = write_graph(tmp_path / "fp32.onnx", nodes, {"bound": np.float32(0.5)})
    for kept in ([], ["product"], ["cast"], ["cast", "product"]):
        convert_to_fp16(source, tmp_path / "fp16.onnx", keep_fp32=kept)
        assert run(tmp_path / "fp16.onnx", [[2.0]]) == 2.0, kept


def test_operators_that_the_converter_leaves_are_named_as_kept(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["images", "weight"], ["product"]),
        helper.make_node("Max", ["product", "bound"], ["logits"]),
    ]
    weights = {"weight": np.array([[2.0]], np.float32), "bound": np.float32(-1e6)}
    found = convert_to_fp16(write_graph(tmp_path / "fp32.onnx", nodes, weights), tmp_path / "fp16.onnx")
    # Its bound is no finding, for all its size: it stays float32 anyway. Nodes without names have got some.
    assert (found.kept_fp32, found.too_large) == (["Max_1"], {"bound": 1e6})
    types = {name: value.dtype for name, value in weights_of(tmp_path / "fp16.onnx").items()}
    assert types == {"weight": np.float16, "bound": np.float32}


def test_a_name_that_the_graph_lacks_is_ignored(tmp_path: Path) -> None:
    found = convert_to_fp16(write_product(tmp_path / "a", 1.0), tmp_path / "b", keep_fp32=["product", "gone"])
    assert found.kept_fp32 == ["product"]


def test_a_model_that_is_fp16_already_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["images"], ["half"], name="half", to=FLOAT16),
        helper.make_node("Cast", ["half"], ["logits"], name="whole", to=FLOAT),
    ]
    with pytest.raises(ModelError, match=r"parts of fp32\.onnx are fp16 already"):
        convert_to_fp16(write_graph(tmp_path / "fp32.onnx", nodes, {}), tmp_path / "fp16.onnx")
    assert not (tmp_path / "fp16.onnx").exists()


def test_the_bytes_depend_on_the_arguments_alone(tmp_path: Path, exported: Any) -> None:
    kept = convolutions(exported.fp32)[1:3]
    program = (
        "import sys; from pathlib import Path; from trainer.export.graph.precision import convert_to_fp16; "
        "convert_to_fp16(Path(sys.argv[1]), Path(sys.argv[2]), keep_fp32=sys.argv[3:])"
    )
    # The order of Python's sets differs between the two processes.
    for seed, names in (("1", kept), ("2", kept[::-1])):
        command = [sys.executable, "-c", program, str(exported.fp32), str(tmp_path / seed), *names]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


@pytest.mark.skipif(importlib.util.find_spec(TENSORRT_RTX) is None, reason="tensorrt_rtx is not installed")
def test_engines_are_built_from_graphs_with_kept_nodes(tmp_path: Path, exported: Any) -> None:
    graph = tmp_path / "fp16.onnx"
    _, first, second, *_ = convolutions(exported.fp32)
    kept = [first, "node_relu_1", second]
    assert convert_to_fp16(exported.fp32, graph, keep_fp32=kept).kept_fp32 == kept
    build(graph, "sm80", "sm89")
    # Turing has no convolution in fp32, but other nodes it has.
    convert_to_fp16(exported.fp32, graph, keep_fp32=["node_relu_1", "node_mean"])
    build(graph, "sm75")


def build(graph: Path, *targets: str, image_size: int = 32) -> None:
    builder = Builder(TENSORRT_RTX, "", targets)
    engine = graph.with_suffix(".engine")
    build_engine(graph, engine, builder=builder, signature=image_signature(image_size), opt_batch=2, max_batch=4)
    assert engine.stat().st_size
