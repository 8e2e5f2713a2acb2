from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime.quantization
import pytest
from onnx import TensorProto, helper

from contracts.artifacts import Gate
from contracts.config import ExportSection
from contracts.errors import ModelError
from tests.trainer.export.graphs import store_images, write_graph
from trainer.export import choosing
from trainer.export.graph.quantize import quantize_to_int8
from trainer.export.inputs import Inputs
from trainer.export.targets import TENSORRT_RTX, Builder
from trainer.export.workshop import Workshop

pytestmark = pytest.mark.usefixtures("in_this_process")


def open_workshop(folder: Path, precision: str) -> Workshop:
    builder = Builder(TENSORRT_RTX, "1", ("sm89",))
    inputs = Inputs("", None, "", None, builder, None)  # type: ignore[arg-type]
    settings = ExportSection.model_validate({"precision": precision})
    work = Workshop(inputs, settings, seed=0, folder=folder, threads=1, tell=lambda line: None)
    work.calibration_inputs = store_images(folder / "calibration", np.full((2, 3, 2, 2), 1e20, np.float32))
    return work


def write_product(path: Path, *, cast_to: int = TensorProto.FLOAT) -> Path:
    """Write a graph with one product, of values that get infinite with images as large as the workshop's."""
    nodes = [
        helper.make_node("Flatten", ["images"], ["flat"], name="flat"),
        helper.make_node("Cast", ["flat"], ["narrow"], name="narrow", to=cast_to),
        helper.make_node("Cast", ["narrow"], ["same"], name="same", to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["same", "weight"], ["logits"], name="product"),
    ]
    return write_graph(path, nodes, {"weight": np.full((12, 2), 1e20, np.float32)}, image=(3, 2, 2), classes=2)


def test_graphs_that_cannot_be_made_fall_back_and_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = open_workshop(tmp_path, "int8")
    written: list[tuple[str, bool]] = []

    def refuse(inputs: Inputs, path: Path, *given: object, cautious: bool, **named: object) -> None:
        written.append((path.name, cautious))
        raise ModelError("values beyond 32752", allowed="less", todo="fp32")

    monkeypatch.setattr(choosing, "_write_half", refuse)
    choosing.choose_precision(work)
    assert work.precision == "fp32"
    assert [(attempt.precision, attempt.outcome) for attempt in work.tried] == [
        ("int8", "failed"),
        ("fp16", "failed"),
        ("fp16", "failed"),
        ("fp32", "kept"),
    ]
    assert all("values beyond 32752" in attempt.reason for attempt in work.tried[:3])
    assert written == [("model.int8-base.onnx", False), ("model.fp16.onnx", False), ("model.fp16.onnx", True)]
    assert work.gates == []


def test_what_the_quantiser_raises_is_an_error_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise ValueError("Quantization parameters are not specified for param same.")

    monkeypatch.setattr(onnxruntime.quantization, "quantize_static", refuse)
    graph = write_product(tmp_path / "fp32.onnx")
    with pytest.raises(ModelError, match=r"quantiser refuses fp32\.onnx: ValueError: Quantization parameters"):
        quantize_to_int8(
            graph,
            tmp_path / "int8.onnx",
            calibration=store_images(tmp_path / "calibration", np.ones((2, 3, 2, 2), np.float32)),
            batch_size=2,
            threads=1,
            work=tmp_path,
        )


_INT8_GATES = ("parity", "metric", "engine sm89", "speed")


@pytest.mark.parametrize("failing", [*_INT8_GATES, None])
def test_each_gate_of_int8_keeps_it_from_shipping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str | None
) -> None:
    work = open_workshop(tmp_path, "int8")
    work.scores = {"fp32": {}, "int8": {}}  # type: ignore[dict-item]
    asked: list[str] = []

    def gate(name: str, *, listed: bool = False) -> Any:
        def judge(*given: object, **named: object) -> Any:
            asked.append(name)
            found = Gate(name=name, precision="int8", status="failed" if name == failing else "passed", ran="here")
            return [found] if listed else found

        return judge

    def write(inputs: Inputs, path: Path, *given: object, **named: object) -> list[str]:
        path.touch()
        return []

    monkeypatch.setattr(choosing, "_write_half", write)
    monkeypatch.setattr(choosing.quantize, "quantize_to_int8", lambda *given, **named: None)
    monkeypatch.setattr(Workshop, "judge_graph", gate("parity", listed=True))
    monkeypatch.setattr(choosing, "judge_candidate", gate("engine sm89", listed=True))
    monkeypatch.setattr(choosing, "judge_speed", gate("speed"))
    monkeypatch.setattr(choosing, "judge_scores", gate("metric"))
    work.split = SimpleNamespace(samples=1)  # type: ignore[assignment]
    monkeypatch.setattr(Workshop, "_describe_graph", lambda *given: None)
    assert choosing._try_int8(work) is (failing is None)
    (attempt,) = work.tried
    assert attempt.outcome == ("kept" if failing is None else "failed")
    assert (failing or "") in attempt.reason
    # What decides on a GPU is asked only of a graph that has passed here.
    assert asked == list(_INT8_GATES[: 2 if failing in _INT8_GATES[:2] else 3 if failing == _INT8_GATES[2] else 4])
