from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from contracts.artifacts import Parity
from contracts.artifacts.signature import OutputSpec
from contracts.errors import DataError
from tests.trainer.export.graphs import compare_logits, image_signature, run_onnx
from trainer.export.gates.parity import compare, judge, name_of_onnx, open_graph
from trainer.export.gates.tensors import run_torch


def prove(exported: Any, graph: Path, precision: str) -> Parity:
    reference = run_torch(exported.model, image_signature(), {"images": exported.images})["logits"]
    return compare_logits(reference, run_onnx(graph, exported.images), ran=name_of_onnx(precision), precision=precision)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_sound_graphs_pass(exported: Any, precision: str) -> None:
    found = prove(exported, getattr(exported, precision), precision)
    assert found.passed, found
    assert found.samples == 64
    assert found.relative_error is not None and found.relative_error < {"fp32": 1e-5, "fp16": 5e-3}[precision]
    assert {gate.status for gate in judge(found, precision)} <= {"passed", "not decidable"}


def test_fp16_is_told_from_fp32(exported: Any) -> None:
    assert prove(exported, exported.fp16, "fp32").passed is False


def test_the_proof_says_what_it_does_not_prove() -> None:
    assert "ORT_ENABLE_ALL" in name_of_onnx("fp32")
    assert "ORT_DISABLE_ALL" in name_of_onnx("int8")
    assert "weights' rounding only" in name_of_onnx("fp16")


def test_graphs_run_at_the_level_that_triton_is_told(exported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    session = onnxruntime.InferenceSession

    def watch(path: Path, options: Any, **settings: Any) -> Any:
        seen.append((options.graph_optimization_level, options.intra_op_num_threads, settings["providers"]))
        return session(path, options, **settings)

    monkeypatch.setattr(onnxruntime, "InferenceSession", watch)
    levels = onnxruntime.GraphOptimizationLevel
    for precision, level in (("fp32", levels.ORT_ENABLE_ALL), ("int8", levels.ORT_DISABLE_ALL)):
        open_graph(exported.fp32, threads=1, precision=precision)
        assert seen.pop() == (level, 1, ["CPUExecutionProvider"])


def zero_a_filter(weights: np.ndarray) -> None:
    weights[0] = 0


def flip_a_sign(weights: np.ndarray) -> None:
    weights.flat[np.abs(weights).argmax()] *= -1


def scale_by_a_tenth(weights: np.ndarray) -> None:
    weights *= 1.1


def lose_precision(weights: np.ndarray) -> None:
    weights[:] = np.round(weights * 32) / 32


@pytest.mark.parametrize("damage", [zero_a_filter, flip_a_sign, scale_by_a_tenth, lose_precision])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_damaged_weights_fail(
    exported: Any, tmp_path: Path, precision: str, damage: Callable[[np.ndarray], None]
) -> None:
    graph = onnx.load(getattr(exported, precision))
    tensor = next(
        item for item in graph.graph.initializer if item.name.endswith("stages.1.layers.0.layer.1.convolution.weight")
    )
    weights = onnx.numpy_helper.to_array(tensor).copy()
    damage(weights)
    tensor.CopyFrom(onnx.numpy_helper.from_array(weights, tensor.name))
    onnx.save(graph, tmp_path / "damaged.onnx")
    found = prove(exported, tmp_path / "damaged.onnx", precision)
    assert found.passed is False, found
    assert "failed" in {gate.status for gate in judge(found, precision)}


def test_what_did_not_run_is_no_failure() -> None:
    gates = judge(Parity(ran="not run: no GPU"), "fp16")
    assert {(gate.name, gate.status) for gate in gates} == {("parity", "not run"), ("top1", "not run")}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_graph_that_gives_no_number_fails(value: float) -> None:
    reference = np.array([[1.0, 2.0], [3.0, 1.0]], np.float32)
    broken = reference.copy()
    broken[0, 0] = value
    with np.errstate(invalid="ignore"):
        assert compare_logits(reference, broken, ran="test", precision="fp16").passed is False


@pytest.mark.parametrize(("value", "message"), [(np.nan, "not finite"), (1.0, "all equal")])
def test_a_reference_that_cannot_be_compared_with_is_refused(value: float, message: str) -> None:
    reference = np.full((2, 3), value, np.float32)
    with pytest.raises(DataError, match=message):
        compare_logits(reference, reference, ran="test", precision="fp16")


@pytest.mark.parametrize("shape", [[2], [2, 3]])
@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize(("value", "found", "passes"), [(1, 1, True), (0, 0, True), (0, 1, False), (1, 0, False)])
def test_a_constant_is_held_against_itself(
    shape: list[int], precision: str, value: int, found: int, passes: bool
) -> None:
    outputs = {"valid": OutputSpec(dtype="bool", shape=["batch", *shape[1:]])}
    reference, candidate = np.full(shape, value, np.bool_), np.full(shape, found, np.bool_)
    batches = [{"valid": reference}], [{"valid": candidate}]
    assert compare(*batches, outputs=outputs, ran="test", precision=precision).passed is passes


def answers(classes: int) -> np.ndarray:
    """Logits of which the sample at place n is of class n modulo `classes`, and sure of it."""
    return np.eye(classes, dtype=np.float32)[np.arange(60) % classes] * 10


def of_two(samples: int, others: int) -> tuple[np.ndarray, np.ndarray]:
    """Return logits of two classes, `others` of the second one, and the same of which one answer flips by a hair."""
    reference = np.tile(np.array([[10.0, 0.0]], np.float32), (samples, 1))
    reference[:others] = [0.0, 10.0]
    reference[0], found = [8.0, 8.0001], reference.copy()
    found[0] = [8.0001, 8.0]
    return reference, found


@pytest.mark.parametrize(
    ("samples", "others", "precision", "status"),
    [
        (60, 20, "fp16", "failed"),
        (60, 19, "fp16", "not decidable"),  # chance
        (60, 1, "fp16", "not decidable"),
        (4000, 21, "fp32", "failed"),
        (4000, 21, "fp16", "passed"),
        (4000, 20, "fp16", "not decidable"),  # 99.5 % is what a graph has that says the first class to everything
    ],
)
def test_two_classes_decide_where_the_rarer_one_has_answers(
    samples: int, others: int, precision: str, status: str
) -> None:
    found = compare_logits(*of_two(samples, others), precision=precision)
    logits, top1 = judge(found, precision)
    # Relative error and cosine see nothing of it.
    assert logits.status == "passed"
    assert top1.figures == {"agreement": 1 - 1 / samples, "reference_classes": 2, "other_answers": others}
    assert (top1.status, "most frequent one" in top1.reason) == (status, status == "not decidable")
    assert found.has_few_answers == (others < 20)


def test_a_graph_that_always_says_the_first_class_fails() -> None:
    reference, _ = of_two(512, 30)
    constant = np.tile(reference[-1], (512, 1))
    _, top1 = judge(compare_logits(reference, constant, precision="int8"), "int8")
    assert top1.status == "failed"


def test_each_limit_is_held_on_its_own() -> None:
    reference = answers(5)
    far = reference.copy()
    far[0, 0] += 0.1
    logits, top1 = judge(compare_logits(reference, far, ran="test", precision="fp16"), "fp16")
    assert (logits.status, top1.status) == ("failed", "passed")
    assert logits.figures["min_cosine"] == pytest.approx(1.0)
    turned = reference.copy()
    reference[0] = turned[0] = 0.001
    reference[0, 0], turned[0, 0], turned[0, 1] = 0.02, 0.02, 0.01
    logits, top1 = judge(compare_logits(reference, turned, ran="test", precision="fp16"), "fp16")
    assert isinstance(logits.figures["relative_error"], float) and logits.figures["relative_error"] < 5e-3
    assert (logits.status, top1.status) == ("failed", "passed")


@pytest.mark.parametrize(("numbers", "kept"), [(2, True), (4, True), (5, False)])
def test_few_numbers_have_no_direction_of_their_own(numbers: int, kept: bool) -> None:
    """Two classes that are nearly as likely: any rounding turns so short a vector."""
    reference = np.tile(np.linspace(-5.0, 5.0, numbers, dtype=np.float32), (64, 1))
    reference[0] = 1e-4
    found = reference + np.float32(1e-4) * (-1) ** np.arange(numbers)
    parity = compare_logits(reference, found.astype(np.float32), precision="fp16")
    assert parity.relative_error is not None and parity.min_cosine is not None
    assert parity.relative_error < 1e-4 and (parity.min_cosine > 0.9999) == kept
    worse = reference.copy()
    worse[:, 0] *= -1
    assert compare_logits(reference, worse, precision="fp16").passed is False


def test_int8_is_held_to_cosine_and_answers_not_to_the_largest_difference() -> None:
    reference = answers(5)
    far = reference + np.float32(0.5) * (reference > 0)
    logits, _ = judge(compare_logits(reference, far, ran="test", precision="int8"), "int8")
    assert logits.status == "passed"
    assert "relative_error" not in logits.limits
