from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from contracts.artifacts import Gate
from contracts.config import ModelSection
from tests.trainer.export.conftest import Digits, write_fp32
from tests.trainer.export.graphs import (
    compare_logits,
    convolutions,
    image_signature,
    judge_logits,
    plant,
    plant_between,
    run_onnx,
    store_images,
    write_graph,
)
from trainer.export.engines.engine import build_engine
from trainer.export.gates import parity
from trainer.export.graph.coverage import judge_coverage, measure_coverage
from trainer.export.graph.precision import Conversion, convert_to_fp16
from trainer.export.graph.ranges import NodeRange, measure_ranges
from trainer.export.graph.rounds import Search, find_fp16, next_kept
from trainer.export.processes import run_step
from trainer.export.targets import TENSORRT_RTX, Builder
from trainer.tasks.images.network import build_network


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
            measure_errors=lambda graph: errors,
            convert=self.convert,
        )


def test_a_graph_that_passes_is_tried_once() -> None:
    judge = Judge()
    found = judge.search()
    assert found.found
    assert [(attempt.kept_fp32, attempt.outcome, attempt.reason) for attempt in found.attempts] == [([], "kept", "")]
    assert [item.name for item in found.gates] == ["range", "other", "parity"]


def test_the_rounds_add_norms_then_largest_errors() -> None:
    light = {name: NodeRange(item.op_type, item.written, item.read, 0) for name, item in RANGES.items()}
    judge = Judge("conv3")
    found = judge.search(light, conv2=0.4, conv3=0.3, conv4=0.1, gelu=0.9, norm=0.7)
    assert judge.kept == [
        [],
        ["norm", "softmax"],
        ["conv2", "norm", "softmax", "gelu"],
        ["conv2", "conv3", "conv4", "norm", "softmax", "gelu"],  # two more: the worst two are there already
    ]
    assert [attempt.outcome for attempt in found.attempts] == ["failed", "failed", "failed", "kept"]
    assert found.attempts[0].reason == "parity failed: relative_error 0.02 (limit 0.005)"
    assert found.attempts[1].reason == (
        "2 node(s) in fp32 (norms and softmax): norm, softmax; parity failed: relative_error 0.02 (limit 0.005)"
    )
    assert found.attempts[3].reason == (
        "6 node(s) in fp32 (norms and softmax + largest errors): conv2, conv3, conv4, norm, softmax, ..."
    )


def test_where_no_error_is_known_the_largest_values_are_kept() -> None:
    light = {name: NodeRange(item.op_type, item.written, item.read, 0) for name, item in RANGES.items()}
    judge = Judge("conv14")
    assert "(norms and softmax + largest values)" in judge.search(light).attempts[3].reason
    assert judge.kept[2:] == [
        ["conv16", "norm", "softmax", "gelu"],
        ["conv14", "conv15", "conv16", "norm", "softmax", "gelu"],
    ]


def test_after_three_rounds_it_has_failed() -> None:
    light = {name: NodeRange(item.op_type, item.written, item.read, 0) for name, item in RANGES.items()}
    found = Judge("no such node").search(light)
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
    def kept(ranges: dict[str, NodeRange], *before: str) -> set[str]:
        return next_kept(2, ranges, before, Path("fp16"), lambda graph: {})[0]

    # 17 x 100 bytes: a 39th of them is less than one convolution has, so only what has no weights is kept.
    assert kept(RANGES) == {"gelu", "norm"}
    more = RANGES | {f"more{number}": NodeRange("Conv", 20.0 - number, 0.1, 100) for number in range(22)}
    assert kept(more) == {"more0", "gelu", "norm", "softmax"}
    assert kept(more, "conv0") == {"gelu", "norm", "softmax"}


def test_the_first_try_keeps_what_reads_or_writes_large_values() -> None:
    ranges = RANGES | {"conv1": NodeRange("Conv", 4e4, 1.0, 100), "conv2": NodeRange("Conv", 1.0, 4e4, 100)}
    found = Judge().search(ranges)
    assert found.attempts[0].kept_fp32 == ["conv1", "conv2"]
    assert found.attempts[0].reason == "2 node(s) in fp32 (by range or input): conv1, conv2"


# --- real models ----------------------------------------------------------------------------------------------------


def search(source: Path, target: Path, sound: Path, images: np.ndarray, *, with_coverage: bool = True) -> Search:
    """Look for fp16 with the real parts; parity is against the logits of the sound model."""
    calibration = store_images(target.with_suffix(".images"), images)
    expected = run_onnx(sound, images)
    # What was planted changes nothing in float32.
    assert np.array_equal(run_onnx(source, images), expected)

    def judge(graph: Path) -> list[Gate]:
        found = compare_logits(expected, run_onnx(graph, images), ran="", precision="fp16")
        gates = [*parity.judge(found, "fp16"), judge_logits(graph, images[:8], expected[:8])]
        return [*gates, judge_coverage(measure_coverage(graph, "fp16"), "fp16")] if with_coverage else gates

    return find_fp16(source, target, ranges=measure_ranges(source, calibration), judge=judge)


def test_the_trained_digits_are_fp16_at_once(tmp_path: Path, digits: Digits) -> None:
    found = search(digits.fp32, tmp_path / "fp16.onnx", digits.fp32, digits.images)
    assert found.found, found.gates
    assert [attempt.kept_fp32 for attempt in found.attempts] == [[]]
    assert {item.name: item.status for item in found.gates} == dict.fromkeys(
        ("range", "parity", "top1", "arithmetic", "coverage"), "passed"
    )
    assert measure_coverage(tmp_path / "fp16.onnx", "fp16") == {"weight_bytes": 1.0}
    right = [
        int((run_onnx(path, digits.images).argmax(axis=1) == digits.labels).sum())
        for path in (digits.fp32, tmp_path / "fp16.onnx")
    ]
    assert abs(right[0] - right[1]) <= 0.005 * len(digits.labels)


def test_two_bad_layers_end_in_fp32_and_no_other(tmp_path: Path, digits: Digits) -> None:
    layers = convolutions(digits.fp32)
    bad = [layers[1], layers[3]]
    source = plant(digits.fp32, tmp_path / "planted.onnx", dict.fromkeys(bad, 2.0**15))
    # A convolution of this model has more than the twentieth of the weights that fp16 may lack.
    found = search(source, tmp_path / "fp16.onnx", digits.fp32, digits.images[:8], with_coverage=False)
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
    assert by_name["range"].figures["largest_fp16"] < 1000
    assert by_name["arithmetic"].status == "passed"
    # Without them, or without one that reads what they write, the same graph is infinite.
    logits = run_onnx(digits.fp32, digits.images[:2])
    for kept in (bad, attempt.kept_fp32[:3], attempt.kept_fp32[1:]):
        convert_to_fp16(source, tmp_path / "broken.onnx", keep_fp32=kept)
        assert judge_logits(tmp_path / "broken.onnx", digits.images[:2], logits).status == "failed", kept


def test_two_bad_layers_of_a_wide_model_leave_an_engine_of_fp16(tmp_path: Path) -> None:
    narrow_first = {"layer_type": "basic", "embedding_size": 8, "hidden_sizes": [8, 128], "depths": [2, 1]}
    section = ModelSection.model_validate({"architecture": "resnet", "arguments": narrow_first})
    torch.manual_seed(0)
    sound, graph = tmp_path / "sound.onnx", tmp_path / "fp16.onnx"
    write_fp32(build_network(section, num_classes=10, image_size=32), sound)
    images = np.random.default_rng(0).standard_normal((8, 3, 32, 32), dtype=np.float32)
    layers = convolutions(sound)
    pairs = {layers[1]: layers[2], layers[3]: layers[4]}
    source = plant_between(sound, tmp_path / "planted.onnx", pairs, 2.0**17)
    found = search(source, graph, sound, images)
    assert found.found, found.gates
    kept = found.attempts[0].kept_fp32
    # Each layer, the Relu behind it, and the layer that makes its values small again.
    assert [name for name in kept if name in layers] == layers[1:5]
    assert len(kept) == 6
    if importlib.util.find_spec(TENSORRT_RTX) is not None:
        builder = Builder(TENSORRT_RTX, "", ("sm80",))
        engine = tmp_path / "engine"
        build_engine(graph, engine, builder=builder, signature=image_signature(32), opt_batch=2, max_batch=4)
        assert engine.stat().st_size


def test_what_calibration_missed_is_mended_in_the_rounds(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weights = {
        "first": random.standard_normal((64, 64), dtype=np.float32) / 8,
        "factor": np.float32(2.0**15),
        "inverse": np.float32(2.0**-15),
        "second": random.standard_normal((64, 10), dtype=np.float32) / 8,
    }
    nodes = [
        helper.make_node("MatMul", ["images", "first"], ["hidden"], name="hidden"),
        helper.make_node("Mul", ["hidden", "factor"], ["large"], name="large"),
        helper.make_node("Mul", ["large", "inverse"], ["same"], name="same"),
        helper.make_node("MatMul", ["same", "second"], ["logits"], name="logits"),
    ]
    # fp16 holds 2^-15 only as one of its small numbers, yet exactly.
    source = write_graph(tmp_path / "fp32.onnx", nodes, weights, image=(64,), classes=10)
    images = random.standard_normal((8, 64), dtype=np.float32)
    ranges = {  # as if calibration had seen faint images only
        name: NodeRange(op_type, written, read, 4 * 64 * 64 if op_type == "MatMul" else 4)
        for name, op_type, written, read in (
            ("hidden", "MatMul", 0.01, 0.01),
            ("large", "Mul", 600.0, 0.01),
            ("same", "Mul", 0.01, 600.0),
            ("logits", "MatMul", 0.01, 0.01),
        )
    }
    expected = run_onnx(source, images)
    found = find_fp16(
        source,
        tmp_path / "fp16.onnx",
        ranges=ranges,
        judge=lambda graph: [judge_logits(graph, images, expected)],
    )
    # There are no norms. One node a round: those with the largest values, in the graph's order.
    assert [attempt.kept_fp32 for attempt in found.attempts] == [[], ["large"], ["large", "same"]]
    assert [attempt.outcome for attempt in found.attempts] == ["failed", "failed", "kept"]
    assert "arithmetic failed: large" in found.attempts[0].reason


# --- large models, with random weights --------------------------------------------------------------------------------


def export_random(architecture: str, folder: Path) -> Path:
    section = ModelSection.model_validate({"architecture": architecture, "arguments": {}})
    torch.manual_seed(0)
    model = build_network(section, num_classes=1000, image_size=224)
    write_fp32(model, folder / "fp32.onnx", size=224, classes=1000)
    return folder / "fp32.onnx"


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["resnet", "vit"])
def test_large_models_are_fp16_at_once_in_bounded_memory(tmp_path: Path, architecture: str) -> None:
    source, target = export_random(architecture, tmp_path), tmp_path / "fp16.onnx"
    images = np.random.default_rng(0).standard_normal((8, 3, 224, 224), dtype=np.float32)
    ranges, of_ranges = run_step(measure_ranges, source, store_images(tmp_path / "calibration", images))
    costs = []

    def convert(source: Path, target: Path, *, keep_fp32: Sequence[str]) -> Conversion:
        conversion, cost = run_step(convert_to_fp16, source, target, keep_fp32=keep_fp32)
        costs.append(cost)
        return conversion

    expected = run_onnx(source, images[:4])

    def judge(graph: Path) -> list[Gate]:
        found = compare_logits(expected, run_onnx(graph, images[:4]), ran="", precision="fp16")
        return [*parity.judge(found, "fp16"), judge_coverage(measure_coverage(graph, "fp16"), "fp16")]

    found = find_fp16(source, target, ranges=ranges, judge=judge, convert=convert)
    assert found.found, found.gates
    assert found.attempts[0].kept_fp32 == []
    statuses = {item.name: item.status for item in found.gates}
    # A random network predicts one class.
    assert statuses == {
        "range": "passed",
        "parity": "passed",
        "top1": "not decidable",
        "coverage": "passed",
    }
    weights_bytes = source.stat().st_size
    assert 0 < of_ranges.peak_bytes < 3 * weights_bytes + 1e9
    assert 0 < max(cost.peak_bytes for cost in costs) < 3 * weights_bytes + 1e9
    print(architecture, "MB:", of_ranges.peak_bytes / 1e6, [cost.peak_bytes / 1e6 for cost in costs])
