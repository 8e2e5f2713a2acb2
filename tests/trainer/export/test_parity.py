from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from contracts.artifacts import Parity
from contracts.errors import CheckFailed, DataError
from trainer.export.parity import accuracy, collect_logits, compare, name_of_onnx, open_graph, require, run_torch


def prove(exported: Any, graph: Path, precision: str) -> Parity:
    reference = run_torch(exported.model)(exported.images)
    return compare(
        reference, open_graph(graph, threads=1)(exported.images), ran=name_of_onnx(precision), precision=precision
    )


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_sound_graphs_pass(exported: Any, precision: str) -> None:
    found = prove(exported, getattr(exported, precision), precision)
    assert found.passed, found
    assert found.samples == 64
    assert found.relative_error is not None and found.relative_error < {"fp32": 1e-5, "fp16": 5e-3}[precision]
    require({"onnx": {precision: found}})


def test_fp16_is_told_from_fp32(exported: Any) -> None:
    assert prove(exported, exported.fp16, "fp32").passed is False


def test_the_proof_says_what_it_does_not_prove() -> None:
    assert "graph optimisation off" in name_of_onnx("fp32")
    assert "weights' rounding only" in name_of_onnx("fp16")


def test_graph_optimisation_is_off_and_threads_are_set(exported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    session = onnxruntime.InferenceSession

    def watch(path: Path, options: Any, **settings: Any) -> Any:
        seen.append((options.graph_optimization_level, options.intra_op_num_threads, settings["providers"]))
        return session(path, options, **settings)

    monkeypatch.setattr(onnxruntime, "InferenceSession", watch)
    open_graph(exported.fp32, threads=1)
    assert seen == [(onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL, 1, ["CPUExecutionProvider"])]


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
    with pytest.raises(CheckFailed, match=f"onnx {precision} on 64 samples .*relative error"):
        require({"onnx": {precision: found}})


def test_what_did_not_run_is_no_failure() -> None:
    require({"engine": {"fp16": Parity(ran="not run: no GPU")}})


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_graph_that_gives_no_number_fails(value: float) -> None:
    reference = np.array([[1.0, 2.0], [3.0, 1.0]], np.float32)
    broken = reference.copy()
    broken[0, 0] = value
    with np.errstate(invalid="ignore"):
        assert compare(reference, broken, ran="test", precision="fp16").passed is False


@pytest.mark.parametrize(("value", "message"), [(np.nan, "not finite"), (1.0, "all equal")])
def test_a_reference_that_cannot_be_compared_with_is_refused(value: float, message: str) -> None:
    reference = np.full((2, 3), value, np.float32)
    with pytest.raises(DataError, match=message):
        compare(reference, reference, ran="test", precision="fp16")


def test_each_limit_is_held_on_its_own() -> None:
    reference = np.tile(np.array([[100.0, 0.0, 0.1]], np.float32), (4, 1))
    wrong_class = reference.copy()
    reference[0] = (0.0, 0.1, 0.1001)
    wrong_class[0] = (0.0, 0.1001, 0.1)
    found = compare(reference, wrong_class, ran="test", precision="fp16")
    assert found.relative_error is not None and found.relative_error < 1e-5
    assert found.top1_agreement == 0.75
    assert found.passed is False
    turned = reference.copy()
    turned[0] = (0.09, 0.0, 0.1001)
    found = compare(reference, turned, ran="test", precision="fp16")
    assert found.relative_error is not None and found.relative_error < 5e-3
    assert found.top1_agreement == 1.0
    assert found.min_cosine is not None and found.min_cosine < 0.9999
    assert found.passed is False


def test_all_runners_see_every_batch_in_order() -> None:
    images = torch.arange(10, dtype=torch.float32).reshape(5, 2)
    batches = [(images[:2], torch.tensor([0, 1])), (images[2:], torch.tensor([1, 0, 1]))]
    logits, labels = collect_logits(batches, {"same": lambda batch: batch, "twice": lambda batch: 2 * batch})
    assert labels.tolist() == [0, 1, 1, 0, 1]
    assert np.array_equal(logits["same"], images.numpy())
    assert np.array_equal(logits["twice"], 2 * images.numpy())


def test_accuracy_is_the_share_of_right_answers() -> None:
    logits = np.array([[1, 2], [3, 1], [0, 1], [1, 0]], np.float32)
    assert accuracy(logits, np.array([1, 0, 0, 0])) == 0.75
