from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from contracts.config import ModelSection
from contracts.errors import ModelError
from tests.trainer.export.conftest import IMAGE_SIZE, Digits, write_fp32
from tests.trainer.export.graphs import compare_logits, describe, image_signature, run_onnx, store_images
from trainer.export.engines.engine import build_engine
from trainer.export.gates.arrays import StoredArrays
from trainer.export.gates.parity import judge
from trainer.export.graph.coverage import judge_coverage, measure_coverage
from trainer.export.graph.precision import convert_to_fp16
from trainer.export.graph.quantize import quantize_to_int8
from trainer.export.processes import run_step
from trainer.export.targets import TENSORRT_RTX, Builder
from trainer.tasks.classes.accuracy import allowed_drop, judge_accuracy
from trainer.tasks.images.network import build_network

# Of the gates `parity` and `top1`.
PASSED, FAILED = ["passed", "passed"], ["failed", "failed"]


def quantise(source: Path, target: Path, calibration: StoredArrays, **changed: Any) -> Path:
    work = target.with_suffix(".work")
    work.mkdir(exist_ok=True)
    settings = {"batch_size": 32, "threads": 1, **changed}
    quantize_to_int8(source, target, calibration=calibration, work=work, **settings)
    assert not list(work.iterdir())
    return target


@pytest.fixture(scope="module")
def int8(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantise(digits.fp32, tmp_path_factory.mktemp("int8") / "int8.onnx", digits.calibration)


def right_of(logits: np.ndarray, digits: Digits) -> int:
    return int((logits.argmax(axis=1) == digits.labels).sum())


def test_the_trained_digits_keep_their_answers(digits: Digits, int8: Path) -> None:
    reference, found = (run_onnx(path, digits.images) for path in (digits.fp32, int8))
    assert [gate.status for gate in judge(compare_logits(reference, found, precision="int8"), "int8")] == PASSED
    right = [right_of(logits, digits) for logits in (reference, found)]
    # Trained: otherwise the rest would say nothing.
    assert right[0] >= 0.95 * len(digits.labels)
    gate = judge_accuracy(
        precision="int8", reference_right=right[0], right=right[1], samples=len(digits.labels), ran="test"
    )
    assert gate.status == "passed", gate.reason
    # It is int8 that was measured, not fp32 again.
    assert np.abs(reference - found).max() > 1e-3


def test_every_product_is_int8(int8: Path) -> None:
    shares = measure_coverage(int8, "int8")
    assert shares == {"quantized_nodes": 1.0}
    assert judge_coverage(shares, "int8").status == "passed"


def test_an_fp32_graph_is_not_int8(digits: Digits) -> None:
    gate = judge_coverage(measure_coverage(digits.fp32, "int8"), "int8")
    assert gate.status == "failed"
    assert "0.0% of Conv, Gemm and MatMul nodes are int8" in gate.reason


def test_scales_are_signed_symmetric_and_of_weights_one_a_channel(int8: Path) -> None:
    graph = onnx.load(int8).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    quantisers = [node for node in graph.node if node.op_type == "QuantizeLinear"]
    of_weights = [node for node in quantisers if node.input[0] in constants]
    products = [node for node in graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    assert len(of_weights) == len(products) == 7
    for node in quantisers:
        zero = constants[node.input[2]]
        assert zero.dtype == np.int8 and not zero.any()
    for node in of_weights:
        weights, scales = constants[node.input[0]], constants[node.input[1]]
        assert scales.shape == (weights.shape[0],)
        sizes = np.abs(weights.reshape(len(weights), -1)).max(axis=1)
        assert np.allclose(scales, sizes / 127, rtol=1e-2)
    # Biases stay as they are, and so do the logits.
    assert all(constants[node.input[2]].dtype == np.float32 for node in products if len(node.input) > 2)
    assert graph.output[0].name in {name for node in products for name in node.output}


def test_inputs_outputs_and_the_dynamic_batch_stay(digits: Digits, int8: Path) -> None:
    assert describe(int8) == describe(digits.fp32)
    onnx.checker.check_model(onnx.load(int8), full_check=True)
    images = digits.images
    whole, first, rest = (run_onnx(int8, part) for part in (images[:33], images[:1], images[1:33]))
    assert np.allclose(np.concatenate([first, rest]), whole, atol=1e-5)


def test_equal_inputs_give_an_equal_graph_and_the_source_is_left_alone(
    digits: Digits, int8: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    before = digits.fp32.read_bytes()
    neighbours = sorted(digits.fp32.parent.iterdir())
    handlers = list(logging.getLogger().handlers)
    # Another batch size sees the same images, so it finds the same ranges.
    again = quantise(digits.fp32, tmp_path / "again.onnx", digits.calibration, batch_size=50)
    assert digest(again) == digest(int8)
    assert digits.fp32.read_bytes() == before
    assert sorted(digits.fp32.parent.iterdir()) == neighbours
    assert not onnx.load(again).metadata_props
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger().handlers == handlers


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_ranges_come_from_all_calibration_images(digits: Digits, int8: Path, tmp_path: Path) -> None:
    images = digits.calibration.read()["images"]
    images[-1] *= 10
    found = quantise(digits.fp32, tmp_path / "int8.onnx", store_images(tmp_path / "images", images))
    scales = [scale_of_images(path) for path in (int8, found)]
    assert scales[0] == pytest.approx(np.abs(digits.calibration.read()["images"]).max() / 127, rel=1e-2)
    assert scales[1] == pytest.approx(np.abs(images).max() / 127, rel=1e-2)


def scale_of_images(path: Path) -> float:
    graph = onnx.load(path).graph
    name = next(node.input[1] for node in graph.node if node.input[0] == "images")
    return float(next(numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name == name))


def test_a_model_that_int8_destroys_fails(digits: Digits, tmp_path: Path) -> None:
    fp32 = [run_onnx(path, digits.images) for path in (digits.fp32, digits.damaged_fp32)]
    # In fp32 nothing is wrong with it.
    assert np.abs(fp32[0] - fp32[1]).max() <= 1e-5 * np.ptp(fp32[0])
    int8 = quantise(digits.damaged_fp32, tmp_path / "int8.onnx", digits.calibration)
    assert measure_coverage(int8, "int8") == {"quantized_nodes": 1.0}
    found = run_onnx(int8, digits.images)
    assert [gate.status for gate in judge(compare_logits(fp32[1], found, precision="int8"), "int8")] == FAILED
    right = [right_of(logits, digits) for logits in (fp32[1], found)]
    gate = judge_accuracy(
        precision="int8", reference_right=right[0], right=right[1], samples=len(digits.labels), ran="test"
    )
    assert gate.status == "failed"
    assert "fewer than fp32's" in gate.reason


def test_weights_outside_the_file_are_read(digits: Digits, int8: Path, tmp_path: Path) -> None:
    folder = tmp_path / "outside"
    folder.mkdir()
    onnx.save(
        onnx.load(digits.fp32), folder / "m.onnx", save_as_external_data=True, location="w.data", size_threshold=0
    )
    found = quantise(folder / "m.onnx", tmp_path / "int8.onnx", digits.calibration)
    logits = [run_onnx(path, digits.images) for path in (int8, found)]
    assert np.array_equal(*logits)
    assert sorted(path.name for path in folder.iterdir()) == ["m.onnx", "w.data"]


def test_activations_that_are_not_finite_are_refused(digits: Digits, tmp_path: Path) -> None:
    graph = onnx.load(digits.fp32)
    constants = {tensor.name: tensor for tensor in graph.graph.initializer}
    first, second = [node for node in graph.graph.node if node.op_type == "Conv"][:2]
    for node in (first, second):
        # Together, the products go past the largest float32.
        huge = numpy_helper.to_array(constants[node.input[1]]) * np.float32(1e25)
        constants[node.input[1]].CopyFrom(numpy_helper.from_array(huge, node.input[1]))
    onnx.save(graph, tmp_path / "huge.onnx")
    with pytest.raises(ModelError, match=r"\d+ tensor\(s\) .* not finite in fp32: .*getitem"):
        quantise(tmp_path / "huge.onnx", tmp_path / "int8.onnx", digits.calibration)
    assert not (tmp_path / "int8.onnx").exists()


@pytest.fixture(scope="module")
def mixed(int8: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The int8 graph with fp16 for what is left."""
    target = tmp_path_factory.mktemp("mixed") / "int8-fp16.onnx"
    convert_to_fp16(int8, target)
    return target


def test_what_is_left_becomes_fp16(digits: Digits, int8: Path, mixed: Path) -> None:
    onnx.checker.check_model(onnx.load(mixed), full_check=True)
    assert describe(mixed) == describe(digits.fp32)
    assert measure_coverage(mixed, "int8") == {"quantized_nodes": 1.0}
    # Scales, and the weights that become int8, do not count; the biases are fp16.
    assert measure_coverage(int8, "fp16") == {"weight_bytes": 0.0}
    assert measure_coverage(mixed, "fp16") == {"weight_bytes": 1.0}
    reference, found = (run_onnx(path, digits.images) for path in (digits.fp32, mixed))
    assert [gate.status for gate in judge(compare_logits(reference, found, precision="int8"), "int8")] == PASSED
    assert right_of(reference, digits) - right_of(found, digits) <= allowed_drop(len(digits.labels))


@pytest.mark.parametrize("target", ["sm75", "sm89"])
def test_engines_build(mixed: Path, tmp_path: Path, target: str) -> None:
    engine = tmp_path / "engine"
    build(mixed, engine, target=target, image_size=IMAGE_SIZE)
    assert engine.stat().st_size > 10_000


def build(graph: Path, engine: Path, *, target: str, image_size: int) -> int:
    builder = Builder(TENSORRT_RTX, "installed", (target,))
    build_engine(graph, engine, builder=builder, signature=image_signature(image_size), opt_batch=8, max_batch=32)
    return engine.stat().st_size


def export_large(architecture: str, folder: Path) -> Path:
    """Export a random network of transformers' default configuration: ResNet-50 or ViT-B, 224 px."""
    model = build_network(ModelSection(architecture=architecture), num_classes=1000, image_size=224)
    write_fp32(model, folder / "fp32.onnx", size=224, classes=1000)
    return folder / "fp32.onnx"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_int8_shrinks_the_engine_of_resnet_50(tmp_path: Path) -> None:
    fp32 = export_large("resnet", tmp_path)
    images = np.random.default_rng(0).standard_normal((8, 3, 224, 224), dtype=np.float32)
    int8 = quantise(fp32, tmp_path / "int8.onnx", store_images(tmp_path / "images", images))
    assert measure_coverage(int8, "int8") == {"quantized_nodes": 1.0}
    convert_to_fp16(int8, tmp_path / "mixed.onnx")
    convert_to_fp16(fp32, tmp_path / "fp16.onnx")
    sizes = [
        build(tmp_path / f"{name}.onnx", tmp_path / "engine", target="sm89", image_size=224)
        for name in ("fp32", "fp16", "mixed")
    ]
    assert sizes[1] <= 0.55 * sizes[0]
    assert sizes[2] <= 0.40 * sizes[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_on_vit_b_is_at_most_twelve_times_the_weights(tmp_path: Path) -> None:
    fp32 = export_large("vit", tmp_path)
    images = np.random.default_rng(0).standard_normal((32, 3, 224, 224), dtype=np.float32)
    # As the export runs it: 16 images a batch, more than one batch, in a process of its own.
    _, cost = run_step(
        quantize_to_int8,
        fp32,
        tmp_path / "int8.onnx",
        calibration=store_images(tmp_path / "images", images),
        batch_size=16,
        threads=1,
        work=tmp_path,
    )
    assert 0 < cost.peak_bytes <= 12 * fp32.stat().st_size
    assert measure_coverage(tmp_path / "int8.onnx", "int8") == {"quantized_nodes": 1.0}
