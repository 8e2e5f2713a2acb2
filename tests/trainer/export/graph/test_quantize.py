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
from tests.trainer.export.conftest import IMAGE_SIZE, Digits, write_fp32, write_half
from tests.trainer.export.graphs import compare_logits, describe, image_signature, run_onnx, store_images
from trainer.export.engines.engine import build_engine
from trainer.export.gates.arrays import StoredArrays
from trainer.export.gates.parity import judge
from trainer.export.gates.scores import MAX_LOSS
from trainer.export.graph.quantize import QUANTIZABLE, quantize_to_int8
from trainer.export.processes import run_step
from trainer.export.targets import TENSORRT_RTX, Builder
from trainer.tasks.image import build_network

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
def fp16(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fp16") / "fp16.onnx"
    write_half(digits.model, path, digits.calibration, classes=10)
    return path


@pytest.fixture(scope="module")
def int8(digits: Digits, fp16: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantise(fp16, tmp_path_factory.mktemp("int8") / "int8.onnx", digits.calibration)


def right_of(logits: np.ndarray, digits: Digits) -> int:
    return int((logits.argmax(axis=1) == digits.labels).sum())


def test_the_trained_digits_keep_their_answers(digits: Digits, int8: Path) -> None:
    reference, found = (run_onnx(path, digits.images) for path in (digits.fp32, int8))
    assert [gate.status for gate in judge(compare_logits(reference, found, precision="int8"), "int8")] == PASSED
    right = [right_of(logits, digits) for logits in (reference, found)]
    # Trained: otherwise the rest would say nothing.
    assert right[0] >= 0.95 * len(digits.labels)
    assert right[0] - right[1] <= MAX_LOSS * len(digits.labels)
    # It is int8 that was measured, not fp32 again.
    assert np.abs(reference - found).max() > 1e-3


def test_every_product_is_int8_the_rest_fp16_scales_symmetric_and_of_weights_one_a_channel(int8: Path) -> None:
    graph = onnx.load(int8).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    source = {name: node for node in graph.node for name in node.output}
    products = [node for node in graph.node if node.op_type in QUANTIZABLE]
    assert products and all(source[name].op_type == "DequantizeLinear" for node in products for name in node.input[:2])
    quantisers = [node for node in graph.node if node.op_type == "QuantizeLinear"]
    of_weights = [node for node in quantisers if node.input[0] in constants]
    assert len(of_weights) == len(products) == 7
    for node in quantisers:
        zero = constants[node.input[2]]
        assert zero.dtype == np.int8 and not zero.any()
    for node in of_weights:
        weights, scales = constants[node.input[0]], constants[node.input[1]]
        assert scales.shape == (weights.shape[0],)
        sizes = np.abs(weights.reshape(len(weights), -1)).max(axis=1)
        assert np.allclose(scales, sizes / 127, rtol=1e-2)
    assert all(constants[node.input[2]].dtype == np.float16 for node in products if len(node.input) > 2)


def test_inputs_outputs_and_the_dynamic_batch_stay(digits: Digits, int8: Path) -> None:
    assert describe(int8) == describe(digits.fp32)
    onnx.checker.check_model(onnx.load(int8), full_check=True)
    images = digits.images
    whole, first, rest = (run_onnx(int8, part) for part in (images[:33], images[:1], images[1:33]))
    assert np.allclose(np.concatenate([first, rest]), whole, atol=1e-2)


def test_equal_inputs_give_an_equal_graph_and_the_source_is_left_alone(
    digits: Digits,
    fp16: Path,
    int8: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    before, handlers = fp16.read_bytes(), list(logging.getLogger().handlers)
    # Another batch size sees the same images, so it finds the same ranges.
    again = quantise(fp16, tmp_path / "again.onnx", digits.calibration, batch_size=50)
    assert digest(again) == digest(int8)
    assert fp16.read_bytes() == before and sorted(fp16.parent.iterdir()) == [fp16]
    assert not onnx.load(again).metadata_props
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger().handlers == handlers


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_ranges_come_from_all_calibration_images(digits: Digits, fp16: Path, int8: Path, tmp_path: Path) -> None:
    images = digits.calibration.read()["images"]
    images[-1] *= 10
    found = quantise(fp16, tmp_path / "int8.onnx", store_images(tmp_path / "images", images))
    scales = [scale_of_images(path) for path in (int8, found)]
    assert scales[0] == pytest.approx(np.abs(digits.calibration.read()["images"]).max() / 127, rel=1e-2)
    assert scales[1] == pytest.approx(np.abs(images).max() / 127, rel=1e-2)


def scale_of_images(path: Path) -> float:
    graph = onnx.load(path).graph
    (cast,) = (node.output[0] for node in graph.node if "images" in node.input)
    name = next(node.input[1] for node in graph.node if node.input[0] == cast)
    return float(next(numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name == name))


def test_a_model_that_int8_destroys_fails(digits: Digits, tmp_path: Path) -> None:
    fp32 = run_onnx(digits.damaged_fp32, digits.images)
    # In fp32 nothing is wrong with it.
    assert right_of(fp32, digits) >= 0.95 * len(digits.labels)
    int8 = quantise(digits.damaged_fp32, tmp_path / "int8.onnx", digits.calibration)
    found = run_onnx(int8, digits.images)
    assert [gate.status for gate in judge(compare_logits(fp32, found, precision="int8"), "int8")] == FAILED
    assert right_of(fp32, digits) - right_of(found, digits) > MAX_LOSS * len(digits.labels)


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


@pytest.mark.parametrize("target", ["sm75", "sm89"])
def test_engines_build(int8: Path, tmp_path: Path, target: str) -> None:
    engine = tmp_path / "engine"
    build(int8, engine, target=target, image_size=IMAGE_SIZE)
    assert engine.stat().st_size > 10_000


def build(graph: Path, engine: Path, *, target: str, image_size: int) -> int:
    builder = Builder(TENSORRT_RTX, "installed", (target,))
    build_engine(graph, engine, builder=builder, signature=image_signature(image_size), opt_batch=8, max_batch=32)
    return engine.stat().st_size


def export_large(architecture: str, folder: Path, images: np.ndarray) -> Path:
    """Export a random network of transformers' default configuration: ResNet-50 or ViT-B, 224 px. Return its fp16."""
    model = build_network(ModelSection(architecture=architecture), num_classes=1000, image_size=224)
    write_fp32(model, folder / "fp32.onnx", size=224, classes=1000)
    write_half(model, folder / "fp16.onnx", store_images(folder / "samples", images[:8]), size=224, classes=1000)
    return folder / "fp16.onnx"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_int8_shrinks_the_engine_of_resnet_50(tmp_path: Path) -> None:
    images = np.random.default_rng(0).standard_normal((8, 3, 224, 224), dtype=np.float32)
    fp16 = export_large("resnet", tmp_path, images)
    quantise(fp16, tmp_path / "int8.onnx", store_images(tmp_path / "images", images))
    sizes = [
        build(tmp_path / f"{name}.onnx", tmp_path / "engine", target="sm89", image_size=224)
        for name in ("fp32", "fp16", "int8")
    ]
    assert sizes[1] <= 0.55 * sizes[0]
    assert sizes[2] <= 0.40 * sizes[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_on_vit_b_is_at_most_twelve_times_the_weights(tmp_path: Path) -> None:
    images = np.random.default_rng(0).standard_normal((32, 3, 224, 224), dtype=np.float32)
    fp16 = export_large("vit", tmp_path, images)
    # As the export runs it: 16 images a batch, more than one batch, in a process of its own.
    _, cost = run_step(
        quantize_to_int8,
        fp16,
        tmp_path / "int8.onnx",
        calibration=store_images(tmp_path / "images", images),
        batch_size=16,
        threads=1,
        work=tmp_path,
    )
    assert 0 < cost.peak_bytes <= 24 * fp16.stat().st_size
