from __future__ import annotations

import itertools
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.trainer.export.conftest import Digits
from tests.trainer.export.graphs import (
    compare_logits,
    convolutions,
    judge_logits,
    plant,
    run_onnx,
    run_outputs,
    write_graph,
)
from trainer.export.precision import convert_to_fp16
from trainer.export.reference import ReferenceGraph, TooSlow, Values, evaluate, measure_errors


@pytest.fixture(scope="module")
def fp16(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("reference") / "fp16.onnx"
    convert_to_fp16(digits.fp32, target)
    return target


@pytest.fixture(scope="module")
def images(digits: Digits) -> np.ndarray:
    return digits.images[:12]


@pytest.fixture(scope="module")
def expected(digits: Digits, images: np.ndarray) -> np.ndarray:
    return run_onnx(digits.fp32, images)


def test_a_float32_graph_gives_what_onnx_runtime_gives(
    digits: Digits, images: np.ndarray, expected: np.ndarray
) -> None:
    assert np.allclose(evaluate(digits.fp32, {"images": images})["logits"], expected, atol=1e-5)


def test_a_sound_fp16_graph_passes(fp16: Path, images: np.ndarray, expected: np.ndarray) -> None:
    gate = judge_logits(fp16, images, expected)
    assert gate.status == "passed", gate
    assert gate.figures["samples"] == 12
    # Not what ONNX Runtime gives, which rounds the weights only.
    rounded = compare_logits(expected, run_onnx(fp16, images), ran="", precision="fp16")
    assert gate.figures["relative_error"] != rounded.relative_error


def test_an_overflow_is_seen_that_onnx_runtime_does_not_see(
    tmp_path: Path, digits: Digits, images: np.ndarray, expected: np.ndarray
) -> None:
    conv = convolutions(digits.fp32)[2]
    planted = plant(digits.fp32, tmp_path / "planted.onnx", {conv: 2.0**15})
    found = convert_to_fp16(planted, tmp_path / "fp16.onnx")
    assert found.too_large == {}
    by_runtime = run_onnx(tmp_path / "fp16.onnx", images)
    assert compare_logits(expected, by_runtime, ran="", precision="fp16").passed
    gate = judge_logits(tmp_path / "fp16.onnx", images, expected)
    assert gate.status == "failed"
    assert f"values that are not finite, first from {conv}" in gate.reason
    assert gate.figures["non_finite_values"]


def test_a_value_that_is_infinite_on_the_way_only_fails(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["images", "factor"], ["large"], name="large"),
        helper.make_node("Min", ["large", "bound"], ["logits"], name="bound"),
    ]
    weights = {"factor": np.float32(1000.0), "bound": np.float32(5.0)}
    source = write_graph(tmp_path / "fp32.onnx", nodes, weights, image=(2,), classes=2)
    convert_to_fp16(source, tmp_path / "fp16.onnx")
    images = np.array([[100.0, -0.002]], np.float32)
    gate = judge_logits(tmp_path / "fp16.onnx", images, np.array([[5.0, -2.0]], np.float32))
    assert gate.status == "failed"
    assert gate.reason == "values that are not finite, first from large"
    assert (gate.figures["non_finite_values"], gate.figures["non_finite_outputs"]) == (1, 0)


def test_logits_that_are_off_fail(fp16: Path, images: np.ndarray, expected: np.ndarray) -> None:
    wrong = expected.copy()
    wrong[11] *= 1.5
    gate = judge_logits(fp16, images, wrong)
    assert (gate.status, gate.reason) == ("failed", "the outputs are off")


def test_an_answer_that_flips_is_a_figure_and_no_failure(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["images", "one"], ["logits"], name="same")]
    source = write_graph(tmp_path / "fp32.onnx", nodes, {"one": np.float32(1.0)}, image=(6,), classes=6)
    convert_to_fp16(source, tmp_path / "fp16.onnx")
    images = 10 * np.eye(6, dtype=np.float32)
    images[0, 1] = 10.001  # 10 in fp16, as its neighbour is
    gate = judge_logits(tmp_path / "fp16.onnx", images, images)
    assert gate.figures["top1_agreement"] == 5 / 6
    assert (gate.status, gate.reason) == ("passed", "")
    assert "top1_agreement" not in gate.limits


def test_what_would_take_too_long_is_not_run(fp16: Path, images: np.ndarray, expected: np.ndarray) -> None:
    gate = judge_logits(fp16, images, expected, limit_s=0.0)
    assert gate.status == "not run"
    assert gate.ran == "not run: 12 samples would take more than 0 s"
    assert gate.figures == {}


def test_an_operator_that_the_evaluator_lacks_is_not_run(tmp_path: Path) -> None:
    nodes = [helper.make_node("Unknown", ["images"], ["logits"], name="unknown")]
    graph = write_graph(tmp_path / "model.onnx", nodes, {})
    gate = judge_logits(graph, np.ones((1, 1), np.float32), np.ones((1, 1), np.float32))
    assert gate.status == "not run"
    assert "lacks an operator" in gate.reason


def test_values_are_let_go_after_their_last_reader(tmp_path: Path) -> None:
    names = ["images", *(f"value{number}" for number in range(9)), "logits"]
    nodes = [helper.make_node("Neg", [source], [target], name=target) for source, target in itertools.pairwise(names)]
    graph = ReferenceGraph(write_graph(tmp_path / "model.onnx", nodes, {}))
    made: list[weakref.ref[np.ndarray]] = []
    alive: list[int] = []

    def watch(node: onnx.NodeProto, inputs: Values, outputs: Values) -> None:
        made.extend(weakref.ref(value) for value in outputs.values())
        alive.append(sum(value() is not None for value in made))

    graph.run({"images": np.ones((1, 1), np.float32)}, on_node=watch)
    assert max(alive) == 2  # what a node reads, and what it writes
    with pytest.raises(TooSlow):
        graph.run({"images": np.ones((1, 1), np.float32)}, deadline=0.0)


def test_the_error_of_a_node_is_its_own(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["images", "offset"], ["shifted"], name="shift"),
        helper.make_node("Sub", ["shifted", "offset"], ["same"], name="cancel"),
        helper.make_node("Mul", ["same", "two"], ["doubled"], name="double"),
        helper.make_node("Mul", ["doubled", "huge"], ["logits"], name="overflow"),
    ]
    weights = {"offset": np.float32(1000.0), "two": np.float32(2.0), "huge": np.float32(60_000.0)}
    graph = write_graph(tmp_path / "fp32.onnx", nodes, weights, classes=1)
    errors = measure_errors(graph, {"images": np.array([[1.3]], np.float32)})
    assert list(errors) == ["shift", "cancel", "double", "overflow"]
    assert errors["cancel"] > 0.1  # 1001.3 is 1001.5 in fp16
    assert errors["shift"] < 1e-3  # which is little of 1001.3
    assert errors["double"] < 1e-3  # and what it was handed wrong is not its own
    assert errors["overflow"] == np.inf
    assert measure_errors(graph, {"images": np.array([[1.3]], np.float32)}, limit_s=-1.0) == {}


def test_errors_are_measured_as_far_as_the_evaluator_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["images", "first", "second", "unknown", "logits"]
    nodes = [
        helper.make_node("Unknown" if target == "unknown" else "Neg", [source], [target], name=target)
        for source, target in itertools.pairwise(names)
    ]
    graph = write_graph(tmp_path / "model.onnx", nodes, {})
    assert list(measure_errors(graph, {"images": np.ones((1, 1), np.float32)})) == ["first", "second"]
    run_node = ReferenceGraph.run_node

    def lack(self: ReferenceGraph, node: onnx.NodeProto, inputs: Values) -> dict[str, np.ndarray]:
        if node.name == "first" and inputs["images"].dtype == np.float16:
            raise NotImplementedError("no fp16")
        return run_node(self, node, inputs)

    monkeypatch.setattr(ReferenceGraph, "run_node", lack)
    assert list(measure_errors(graph, {"images": np.ones((1, 1), np.float32)})) == ["second"]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements_are_gathered_along_long_dimensions(tmp_path: Path, axis: int) -> None:
    """The evaluator's own operator fails above 64: a transformer of 128 positions has it."""
    data = np.random.default_rng(0).standard_normal((90, 100)).astype(np.float32)
    places = np.random.default_rng(1).integers(-90, 90, (80, 70))
    graph = helper.make_graph(
        [helper.make_node("GatherElements", ["data", "places"], ["out"], axis=axis)],
        "gather",
        [
            helper.make_tensor_value_info("data", onnx.TensorProto.FLOAT, data.shape),
            helper.make_tensor_value_info("places", onnx.TensorProto.INT64, places.shape),
        ],
        [helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, places.shape)],
    )
    path = tmp_path / "graph.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    found = ReferenceGraph(path).run({"data": data, "places": places})["out"]
    assert np.array_equal(found, run_outputs(path, data=data, places=places)["out"])
