from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from contracts.artifacts import Gate
from tests.trainer.export.graphs import convolutions, plant, plant_between
from trainer.export import parity
from trainer.export.precision import Conversion, convert_to_fp16
from trainer.export.ranges import NodeRange, measure_ranges
from trainer.export.reference import judge_reference
from trainer.export.rounds import Search, find_fp16, next_kept


def gate(status: str, name: str = "parity") -> Gate:
    figures = {"relative_error": 0.02}
    return Gate(
        name=name, precision="fp16", status=status, ran="a test", figures=figures, limits={"relative_error": 0.005}
    )


# Twenty nodes, so that a round adds two; 100 bytes of weights each.
RANGES = {f"conv{number}": NodeRange("Conv", float(number), 1.0, 100) for number in range(17)} | {
    "norm": NodeRange("LayerNormalization", 1.0, 1.0, 0),
    "softmax": NodeRange("Softmax", 1.0, 1.0, 0),
    "gelu": NodeRange("Gelu", 16.5, 1.0, 0),
}


class Judge:
    """Passes a graph that has all of the wanted nodes in fp32."""

    def __init__(self, *wanted: str, name: str = "parity") -> None:
        self.wanted, self.name = set(wanted), name
        self.kept: list[list[str]] = []

    def convert(self, source: Path, target: Path, *, keep_fp32: Sequence[str]) -> Conversion:
        self.kept.append(list(keep_fp32))
        return Conversion(list(keep_fp32), {}, [])

    def judge(self, graph: Path) -> list[Gate]:
        return [gate("passed", "other"), gate("passed" if self.wanted <= set(self.kept[-1]) else "failed", self.name)]

    def search(self, ranges: dict[str, NodeRange] = RANGES, **errors: float) -> Search:
        return find_fp16(
            Path("fp32"),
            Path("fp16"),
            ranges=ranges,
            judge=self.judge,
            measure_errors=lambda: errors,
            convert=self.convert,
        )


def test_a_graph_that_passes_is_tried_once() -> None:
    judge = Judge()
    found = judge.search()
    assert found.found
    assert [(attempt.kept_fp32, attempt.outcome, attempt.reason) for attempt in found.attempts] == [([], "kept", "")]
    assert [item.name for item in found.gates] == ["range", "other", "parity"]


def test_the_rounds_add_norms_then_values_then_errors() -> None:
    light = {name: NodeRange(item.op_type, item.written, item.read, 0) for name, item in RANGES.items()}
    judge = Judge("conv3")
    found = judge.search(light, conv2=0.4, conv3=0.5, conv4=0.1, gelu=0.9, norm=0.7)
    assert judge.kept == [
        [],
        ["norm", "softmax"],
        ["conv16", "norm", "softmax", "gelu"],
        ["conv2", "conv3", "conv16", "norm", "softmax", "gelu"],  # two more: the worst two are there already
    ]
    assert [attempt.outcome for attempt in found.attempts] == ["failed", "failed", "failed", "kept"]
    assert found.attempts[0].reason == "parity failed: relative_error 0.02 (limit 0.005)"
    assert found.attempts[1].reason == (
        "2 node(s) in fp32 (norms and softmax): norm, softmax; parity failed: relative_error 0.02 (limit 0.005)"
    )
    assert found.attempts[3].reason == (
        "6 node(s) in fp32 (norms and softmax + largest values + largest errors): "
        "conv2, conv3, conv16, norm, softmax, ..."
    )


def test_after_three_rounds_it_has_failed() -> None:
    light = {name: NodeRange(item.op_type, item.written, item.read, 0) for name, item in RANGES.items()}
    found = Judge("no such node").search(light, conv2=0.4)
    assert not found.found
    assert len(found.attempts) == 4
    assert all(attempt.outcome == "failed" for attempt in found.attempts)


def test_a_round_with_nothing_to_add_is_left_out() -> None:
    plain = {"conv": NodeRange("Conv", 0.0, 0.0, 100)}
    found = Judge("no such node").search(plain)
    assert [attempt.kept_fp32 for attempt in found.attempts] == [[]]
    assert not found.found


def test_too_few_weights_in_fp16_end_the_search() -> None:
    found = Judge("no such node", name="coverage").search(conv2=0.4)
    assert len(found.attempts) == 1


def test_a_round_keeps_no_more_weights_than_coverage_allows() -> None:
    # 17 x 100 bytes: a 39th of them is less than one convolution has, so only what has no weights is kept.
    assert next_kept(2, RANGES, set(), dict) == {"gelu", "norm"}
    more = RANGES | {f"more{number}": NodeRange("Conv", 20.0 - number, 0.1, 100) for number in range(22)}
    assert next_kept(2, more, set(), dict) == {"more0", "gelu", "norm", "softmax"}
    assert next_kept(2, more, {"conv0"}, dict) == {"gelu", "norm", "softmax"}


def test_the_first_try_keeps_what_reads_or_writes_large_values() -> None:
    ranges = RANGES | {"conv1": NodeRange("Conv", 4e4, 1.0, 100), "conv2": NodeRange("Conv", 1.0, 4e4, 100)}
    found = Judge().search(ranges)
    assert found.attempts[0].kept_fp32 == ["conv1", "conv2"]
    assert found.attempts[0].reason == "2 node(s) in fp32 (by range): conv1, conv2"


# --- a real model ---------------------------------------------------------------------------------------------------


def search(source: Path, target: Path, exported: Any) -> Search:
    """Look for fp16 with the real parts; parity is against the sound model's logits."""
    images = exported.images[:8]
    calibration = target.with_suffix(".npy")
    np.save(calibration, images)
    expected = parity.open_graph(exported.fp32, threads=1)(images)
    # What was planted changes nothing in float32.
    assert np.array_equal(parity.open_graph(source, threads=1)(images), expected)

    def judge(graph: Path) -> list[Gate]:
        found = parity.compare(expected, parity.open_graph(graph, threads=1)(images), ran="", precision="fp16")
        return [*parity.judge(found, "fp16"), judge_reference(graph, images, expected)]

    return find_fp16(source, target, ranges=measure_ranges(source, calibration), judge=judge)


def test_two_bad_layers_end_in_fp32_and_no_other(tmp_path: Path, exported: Any) -> None:
    layers = convolutions(exported.fp32)
    bad = [layers[1], layers[3]]
    source = plant(exported.fp32, tmp_path / "planted.onnx", dict.fromkeys(bad, 2.0**16))
    found = search(source, tmp_path / "fp16.onnx", exported)
    assert found.found, found.gates
    (attempt,) = found.attempts
    # The layers, and the nodes that divide their values: these read what fp16 cannot hold, so they read it in fp32.
    assert attempt.kept_fp32 == [bad[0], f"{bad[0]}_back", bad[1], f"{bad[1]}_back"]
    assert [name for name in attempt.kept_fp32 if name in layers] == bad
    weights = {node.input[1] for node in onnx.load(source).graph.node if node.name in bad}
    types = {item.name: item.data_type for item in onnx.load(tmp_path / "fp16.onnx").graph.initializer}
    assert weights <= {name for name, kind in types.items() if kind == onnx.TensorProto.FLOAT}
    by_name = {item.name: item for item in found.gates}
    assert by_name["range"].figures["largest"] > 65504
    assert by_name["range"].figures["largest_fp16"] < 100
    assert by_name["reference"].figures["non_finite_values"] == 0
    # Without them the same graph is infinite.
    convert_to_fp16(source, tmp_path / "broken.onnx", keep_fp32=bad)
    images = exported.images[:8]
    logits = parity.open_graph(exported.fp32, threads=1)(images)
    assert judge_reference(tmp_path / "broken.onnx", images, logits).status == "failed"


def test_large_values_are_followed_to_the_layer_that_makes_them_small(tmp_path: Path, exported: Any) -> None:
    layers = convolutions(exported.fp32)
    source = plant_between(exported.fp32, tmp_path / "planted.onnx", {layers[1]: layers[2]}, 2.0**16)
    found = search(source, tmp_path / "fp16.onnx", exported)
    assert found.found, found.gates
    assert found.attempts[0].kept_fp32 == [layers[1], "node_relu_1", layers[2]]


def test_what_calibration_missed_is_mended_in_a_round(tmp_path: Path, exported: Any) -> None:
    # The shortcut: it has few enough weights to be kept.
    bad = convolutions(exported.fp32)[5]
    source = plant(exported.fp32, tmp_path / "planted.onnx", {bad: 2.0**16})
    images = exported.images[:8]
    calibration = tmp_path / "calibration.npy"
    np.save(calibration, images * np.float32(1e-3))
    expected = parity.open_graph(exported.fp32, threads=1)(images)
    found = find_fp16(
        source,
        tmp_path / "fp16.onnx",
        ranges=measure_ranges(source, calibration),
        judge=lambda graph: [judge_reference(graph, images, expected)],
    )
    assert found.attempts[0].kept_fp32 == []
    assert "reference failed" in found.attempts[0].reason
    assert found.found
    assert {bad, f"{bad}_back"} <= set(found.attempts[-1].kept_fp32)
