from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.trainer.export.graphs import store_images, write_graph
from trainer.export.gates.arrays import StoredArrays
from trainer.export.graph.ranges import NodeRange, judge_ranges, measure_ranges, nodes_beyond, nodes_to_keep

NODES = [
    helper.make_node("Mul", ["images", "factor"], ["scaled"], name="scale"),
    helper.make_node("Shape", ["scaled"], ["shape"], name="shape"),
    helper.make_node("Add", ["scaled", "large"], ["sum"], name="add"),
    helper.make_node("ReduceMean", ["sum", "axes"], ["logits"], name="mean", keepdims=0),
    helper.make_node("Gather", ["shape", "zero"], ["batch_size"], name="integers"),
]
WEIGHTS = {
    "factor": np.full((3, 1, 100), 4, np.float32),
    "large": np.float32(1e6),
    "axes": np.array([2, 3]),
    "zero": np.int64(0),
}


def write(folder: Path, *, nodes: list[onnx.NodeProto] = NODES) -> Path:
    return write_graph(folder / "model.onnx", nodes, WEIGHTS, image=(3, 4, 100), classes=3)


def save(folder: Path, images: np.ndarray) -> StoredArrays:
    return store_images(folder / "calibration", images)


def some_images(count: int = 5) -> np.ndarray:
    images = np.zeros((count, 3, 4, 100), np.float32)
    images[count - 1, 2, 3, 1] = -7.0
    images[0, 0, 0, 0] = 3.0
    return images


@pytest.mark.parametrize("batch_size", [1, 2, 5, 64])
def test_the_largest_size_is_over_all_images_whatever_the_batches(tmp_path: Path, batch_size: int) -> None:
    found = measure_ranges(write(tmp_path), save(tmp_path, some_images()), batch_size=batch_size)
    assert list(found) == ["scale", "shape", "add", "mean"]  # not what touches integers only
    assert found["scale"] == NodeRange("Mul", written=28.0, read=7.0, weight_bytes=1200, prepares=True)
    assert found["shape"] == NodeRange("Shape", written=0.0, read=28.0, weight_bytes=0)
    # A large weight is no value that a node hands on: precision.py keeps its node for it.
    assert found["add"] == NodeRange("Add", written=1_000_012.0, read=28.0, weight_bytes=4, prepares=True)
    assert found["mean"].read == 1_000_012.0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_prepares_inputs_stays_in_fp32(tmp_path: Path) -> None:
    """Number by number on the graph's inputs, up to the first sum; then no more."""
    nodes = [
        *NODES[:3],
        helper.make_node("ReduceMean", ["sum", "axes"], ["means"], name="mean", keepdims=0),
        helper.make_node("Mul", ["means", "large"], ["logits"], name="behind"),
    ]
    found = measure_ranges(write(tmp_path, nodes=nodes), save(tmp_path, some_images() / 1e6), batch_size=2)
    found = {name: replace(one, written=1.0, read=1.0) for name, one in found.items()}
    assert nodes_to_keep(found) == ["scale", "add"] and nodes_beyond(found) == []


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 100, 399])
def test_what_is_not_finite_counts_as_infinite(tmp_path: Path, value: float, place: int) -> None:
    images = some_images()
    images[2, 1].ravel()[place] = value
    found = measure_ranges(write(tmp_path), save(tmp_path, images), batch_size=2)
    assert found["scale"].read == np.inf
    gate = judge_ranges(found, [])
    assert gate.status == "failed"
    json.dumps(gate.model_dump(mode="json"), allow_nan=False)  # an infinity would be no JSON


def test_weights_outside_of_the_file_are_found(tmp_path: Path) -> None:
    model = onnx.load(write(tmp_path))
    onnx.save(model, tmp_path / "outside.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    calibration = save(tmp_path, some_images())
    found = measure_ranges(tmp_path / "outside.onnx", calibration)
    assert found == measure_ranges(tmp_path / "model.onnx", calibration)


def test_what_subgraphs_read_counts(tmp_path: Path) -> None:
    then = helper.make_graph(
        [helper.make_node("Neg", ["scaled"], ["negative"])],
        "then",
        [],
        [helper.make_tensor_value_info("negative", TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["images"], ["same"])],
        "else",
        [],
        [helper.make_tensor_value_info("same", TensorProto.FLOAT, None)],
    )
    nodes = [
        NODES[0],
        helper.make_node("If", ["truth"], ["chosen"], name="if", then_branch=then, else_branch=other),
        helper.make_node("ReduceMean", ["chosen", "axes"], ["logits"], name="mean", keepdims=0),
    ]
    weights = {**WEIGHTS, "truth": np.bool_(True)}
    graph = write_graph(tmp_path / "model.onnx", nodes, weights, image=(3, 4, 100), classes=3)
    assert measure_ranges(graph, save(tmp_path, some_images()))["if"].read == 28.0


def ranges_of(**sizes: tuple[float, float]) -> dict[str, NodeRange]:
    return {name: NodeRange("Mul", written, read, 0) for name, (written, read) in sizes.items()}


def test_half_of_the_largest_number_is_kept_and_the_whole_fails() -> None:
    ranges = ranges_of(small=(32_752.0, 1.0), near=(32_753.0, 1.0), most=(65_504.0, 1.0), over=(65_505.0, 1.0))
    assert nodes_beyond(ranges) == ["near", "most", "over"]
    gate = judge_ranges(ranges, [])
    assert (gate.status, gate.figures["above_half"]) == ("failed", 3)
    assert gate.reason == "fp16 cannot hold values of 1 node(s): over (writes 65505.0)"
    assert judge_ranges(ranges, ["over"]).status == "passed"
    assert (gate.precision, judge_ranges(ranges, [], precision="int8").precision) == ("fp16", "int8")


def test_a_reader_in_fp16_of_a_large_value_fails_too() -> None:
    ranges = ranges_of(large=(1e5, 1.0), reader=(2.0, 1e5))
    gate = judge_ranges(ranges, ["large"])
    assert gate.status == "failed"
    assert gate.reason == "fp16 cannot hold values of 1 node(s): reader (reads 100000.0)"
    gate = judge_ranges(ranges, ["large", "reader"])
    assert gate.status == "passed"
    assert gate.figures == {
        "nodes": 2,
        "kept_fp32": 2,
        "above_half": 2,
        "largest": 1e5,
        "largest_node": "large",
        "largest_fp16": 0.0,
        "not_seen_inside_of": "",
    }


def test_the_gate_names_operators_that_it_cannot_look_into() -> None:
    """Squares inside of a norm may overflow where what it reads and writes is small."""
    ranges = {name: NodeRange(name.capitalize(), 300.0, 300.0, 0) for name in ("softmax", "gelu", "mul")}
    gate = judge_ranges(ranges, ["gelu"])
    assert (gate.status, gate.figures["not_seen_inside_of"]) == ("passed", "Softmax")
    assert gate.reason == "values inside of Softmax are not seen: only a GPU shows these in fp16"
    assert judge_ranges(ranges, ["gelu", "softmax"]).reason == ""
