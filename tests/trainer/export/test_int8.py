"""The int8 graph: products in int8 and the rest in fp16, scales of the calibration samples, answers as before."""

from __future__ import annotations

import logging
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from contracts.errors import ModelError
from tests.trainer.export.conftest import Exported
from tests.trainer.export.graphs import describe, example_of, image_signature, inputs_of, write_fp32
from trainer.export.arrays import Array, write_batches
from trainer.export.engine import build_engine
from trainer.export.half import write_fp16
from trainer.export.int8 import QUANTIZABLE, quantize_to_int8
from trainer.export.runtime import Builder, version_of


def quantize(source: Path, folder: Path, images: Array, *, batch: int = 32) -> Path:
    folder.mkdir()
    batches = ({"images": images[start : start + batch]} for start in range(0, len(images), batch))
    calibration = write_batches(folder / "calibration", batches)
    quantize_to_int8(source, folder / "int8.onnx", calibration=calibration, threads=1, work=folder)
    # Nothing temporary is left.
    assert sorted(path.name for path in folder.iterdir()) == ["calibration", "int8.onnx"]
    return folder / "int8.onnx"


@pytest.fixture(scope="module")
def images() -> Array:
    return inputs_of(image_signature(), 64)["images"]


@pytest.fixture(scope="module")
def fp16(exported: Exported, images: Array, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, signature = tmp_path_factory.mktemp("fp16") / "fp16.onnx", image_signature()
    feed = {"images": images[:8]}
    write_fp16(deepcopy(exported.model), path, signature=signature, example=example_of(signature), feed=feed)
    return path


@pytest.fixture(scope="module")
def int8(fp16: Path, images: Array, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantize(fp16, tmp_path_factory.mktemp("int8") / "int8", images)


def test_products_are_int8_with_symmetric_scales_and_one_per_channel_of_weights(fp16: Path, int8: Path) -> None:
    assert describe(int8) == describe(fp16)
    graph = onnx.load(int8).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    source = {name: node for node in graph.node for name in node.output}
    products = [node for node in graph.node if node.op_type in QUANTIZABLE]
    assert products and all(source[name].op_type == "DequantizeLinear" for node in products for name in node.input[:2])
    quantizers = [node for node in graph.node if node.op_type == "QuantizeLinear"]
    assert all(constants[node.input[2]].dtype == np.int8 and not constants[node.input[2]].any() for node in quantizers)
    of_weights = [node for node in quantizers if node.input[0] in constants]
    assert len(of_weights) == len(products) == 7
    for node in of_weights:
        weights, scales = constants[node.input[0]], constants[node.input[1]]
        sizes = np.abs(weights.reshape(len(weights), -1)).max(axis=1)
        assert np.allclose(scales, sizes / 127, rtol=1e-2)
    assert all(constants[node.input[2]].dtype == np.float16 for node in products if len(node.input) > 2)


def test_scales_are_of_all_samples_and_nothing_is_logged(
    images: Array, fp16: Path, int8: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    larger = images.copy()
    larger[-1] *= 10
    handlers = list(logging.getLogger().handlers)
    quantized = quantize(fp16, tmp_path / "10", larger, batch=50)
    assert capfd.readouterr() == ("", "") and logging.getLogger().handlers == handlers
    for path, expected in ((int8, images), (quantized, larger)):
        assert scale_of_images(path) == pytest.approx(np.abs(expected).max() / 127, rel=1e-2)


def scale_of_images(path: Path) -> float:
    graph = onnx.load(path).graph
    (cast,) = (node.output[0] for node in graph.node if "images" in node.input)
    name = next(node.input[1] for node in graph.node if node.input[0] == cast)
    return float(next(numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name == name))


def test_activations_that_are_not_finite_are_refused(images: Array, tmp_path: Path) -> None:
    """Also where the outputs are finite, which the gates of fp32 compare."""
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.Hardtanh(), nn.Flatten(), nn.Linear(3072, 10))
    with torch.no_grad():
        for layer in model[:2]:
            layer.weight.mul_(1e25)
        assert model(torch.from_numpy(images)).isfinite().all()
    path = write_fp32(model, tmp_path / "fp32.onnx")
    with pytest.raises(ModelError, match=r"1 tensor\(s\) .* not finite in fp32"):
        quantize(path, tmp_path / "int8", images)


def test_a_builder_takes_it(int8: Path, tmp_path: Path) -> None:
    """TensorRT-RTX, which the stage does not use for int8: what TensorRT needs of a graph is the same."""
    builder = Builder("tensorrt_rtx", version_of("tensorrt_rtx"), "sm89")
    signature, engine = image_signature(), tmp_path / "engine"
    build_engine(int8, engine, builder=builder, signature=signature, batches=(8, 32), precision="int8")
    assert engine.stat().st_size > 10_000
