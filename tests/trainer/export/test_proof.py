from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from trainer.export import proof
from trainer.export.arrays import write_array
from trainer.export.proof import measure_batches
from trainer.tasks.image_classification.transforms import EvaluationTransform

MEAN, STD = (0.4, 0.5, 0.6), (0.21, 0.22, 0.23)


@pytest.fixture
def images(tmp_path: Path) -> proof.TestImages:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    write_array(tmp_path / "pixels.npy", pixels)
    write_array(tmp_path / "labels.npy", np.zeros(20, np.int64))
    return proof.TestImages(tmp_path / "pixels.npy", tmp_path / "labels.npy", MEAN, STD)


def test_pixels_are_normalised_as_evaluation_does_it_to_the_bit(images: proof.TestImages) -> None:
    expected = EvaluationTransform(32, MEAN, STD).normalise(np.load(images.pixels))
    found = np.concatenate(list(images.batches(7)))
    assert torch.equal(torch.from_numpy(found), expected)
    assert len(np.concatenate(list(images.batches(7, most=9)))) == 9


def test_batches_of_a_sound_graph_are_their_images(exported: Any, images: proof.TestImages) -> None:
    found = measure_batches(exported.fp32, images, [1, 8, 48], threads=1)
    assert set(found) == {1, 8, 48}
    assert max(found.values()) < 1e-5


def test_a_graph_that_gives_no_number_is_as_far_as_can_be(
    exported: Any, images: proof.TestImages, tmp_path: Path
) -> None:
    graph = onnx.load(exported.fp32)
    (output,) = graph.graph.output
    last = next(node for node in graph.graph.node if output.name in node.output)
    last.output[0] = "sound"
    graph.graph.node.append(onnx.helper.make_node("Sub", ["sound", "sound"], ["zero"]))
    graph.graph.node.append(onnx.helper.make_node("Div", ["sound", "zero"], ["infinite"]))
    graph.graph.node.append(onnx.helper.make_node("Sub", ["infinite", "infinite"], [output.name]))
    onnx.save(graph, tmp_path / "nan.onnx")
    with np.errstate(invalid="ignore"):
        found = measure_batches(tmp_path / "nan.onnx", images, [1, 4], threads=1)
    assert min(found.values()) > 1e300
