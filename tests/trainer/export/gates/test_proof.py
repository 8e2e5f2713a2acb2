from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.trainer.export.graphs import store_images, write_graph
from trainer.export.gates.arrays import StoredArrays
from trainer.export.gates.proof import measure_batches


@pytest.fixture
def images(tmp_path: Path) -> StoredArrays:
    return store_images(tmp_path / "images", np.random.default_rng(0).random((20, 3, 32, 32), dtype=np.float32))


def test_batches_of_a_sound_graph_are_their_images(exported: Any, images: StoredArrays) -> None:
    found = measure_batches(exported.fp32, images, [1, 8, 48], threads=1)
    assert set(found) == {1, 8, 48}
    assert max(found.values()) < 1e-5


def test_samples_that_see_each_other_are_found_at_each_batch_size(images: StoredArrays, tmp_path: Path) -> None:
    nodes = [
        onnx.helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
        onnx.helper.make_node("Flatten", ["pooled"], ["flat"]),
        onnx.helper.make_node("ReduceMean", ["flat", "axes"], ["mean"], keepdims=1),
        onnx.helper.make_node("Sub", ["flat", "mean"], ["logits"]),
    ]
    graph = write_graph(tmp_path / "leak.onnx", nodes, {"axes": np.array([0])}, image=(3, 32, 32), classes=3)
    found = measure_batches(graph, images, [1, 2, 48], threads=1)
    assert found[1] == 0 and min(found[2], found[48]) > 1e-5


def test_a_graph_that_gives_no_number_is_as_far_as_can_be(exported: Any, images: StoredArrays, tmp_path: Path) -> None:
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
