"""Engines: builds by tensorrt_rtx, which need no GPU; opening and running them, where there is one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from contracts.artifacts.signature import OutputSpec, Signature, TensorSpec
from contracts.errors import CheckFailed, ConfigError, ModelError
from trainer.export import engine
from trainer.export.engine import build_engine, make_config, open_engine, open_graph
from trainer.export.runtime import RTX_TARGETS, Builder, gpu_target, version_of

RTX = Builder("tensorrt_rtx", version_of("tensorrt_rtx"), "sm89")
BATCHES = (4, 16)
SIGNATURE = Signature(
    inputs={"images": TensorSpec(dtype="float32", shape=["batch", 3, 16, 16])},
    outputs={"features": OutputSpec(dtype="float32", shape=["batch", 8, 16, 16])},
)


def write_graph(path: Path, precision: str) -> Path:
    """Write a convolution of images [batch, 3, 16, 16] whose inputs and outputs are float32."""
    dtype, kind = (np.float16, TensorProto.FLOAT16) if precision == "fp16" else (np.float32, TensorProto.FLOAT)
    weight = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(dtype)
    nodes = [
        helper.make_node("Cast", ["images"], ["x"], to=kind),
        helper.make_node("Conv", ["x", "weight"], ["y"], pads=[1, 1, 1, 1]),
        helper.make_node("Cast", ["y"], ["features"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 16, 16])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", 8, 16, 16])],
        [numpy_helper.from_array(weight, "weight")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def build(graph: Path, path: Path, **changes: Any) -> None:
    settings = {"builder": RTX, "signature": SIGNATURE, "batches": BATCHES, "precision": "fp16"}
    build_engine(graph, path, **(settings | changes))


def test_a_build_prints_nothing_and_a_refused_graph_shows_the_builder_s_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    build(write_graph(tmp_path / "graph.onnx", "fp32"), tmp_path / "built", precision="fp32")
    assert (tmp_path / "built").stat().st_size > 1000 and capfd.readouterr() == ("", "")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no graph")
    with pytest.raises(ModelError, match=r"(?s)builds no engine from broken\.onnx for sm89:.*ERROR"):
        build(broken, tmp_path / "engine")
    assert not (tmp_path / "engine").exists() and capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("precision", "has_tf32"), [("fp32", False), ("fp16", True)])
def test_an_engine_is_for_its_target_and_of_fp32_without_tf32(precision: str, has_tf32: bool) -> None:
    import tensorrt_rtx

    factory = tensorrt_rtx.Builder(tensorrt_rtx.Logger())
    config = make_config(tensorrt_rtx, factory, RTX, precision)
    assert config.get_flag(tensorrt_rtx.BuilderFlag.TF32) is has_tf32
    assert config.get_compute_capability(0) == tensorrt_rtx.ComputeCapability.SM89
    members = tensorrt_rtx.ComputeCapability.__members__
    assert set(RTX_TARGETS) == {name.lower() for name in members if name.startswith("SM")}


# --- engines on a GPU -------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("module", ["tensorrt", "tensorrt_rtx"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_engine_computes_what_the_graph_does(tmp_path: Path, module: Any, precision: str) -> None:
    pytest.importorskip(module)
    target = gpu_target()
    if module == "tensorrt_rtx" and target not in RTX_TARGETS:
        pytest.skip(f"tensorrt_rtx builds no engine for {target}")
    builder = Builder(module, version_of(module), target)
    graph, path = write_graph(tmp_path / "graph.onnx", precision), tmp_path / "engine"
    build(graph, path, builder=builder, precision=precision)
    run, expected = open_engine(path, builder, SIGNATURE), open_graph(graph, threads=1)
    for size in (1, *BATCHES):
        batch = {"images": np.random.default_rng(0).standard_normal((size, 3, 16, 16), dtype=np.float32)}
        assert np.abs(run(batch)["features"] - expected(batch)["features"]).max() < (
            1e-4 if precision == "fp32" else 0.1
        )
    with pytest.raises(CheckFailed, match="does not take"):
        run({"images": np.zeros((BATCHES[1] + 1, 3, 16, 16), np.float32)})


@pytest.mark.parametrize(
    ("builder", "words"),
    [
        (replace(RTX, version="1.2"), "built by tensorrt_rtx 1.2, installed is tensorrt_rtx"),
        (replace(RTX, target="sm75"), "for a GPU of sm75 (t4); this machine has a GPU of sm89 (l4"),
    ],
)
def test_an_engine_that_cannot_be_opened_says_why(
    tmp_path: Path, builder: Builder, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU is planted; opening an engine on one is for the test above."""
    monkeypatch.setattr(engine, "gpu_target", lambda: "sm89")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match=re.escape(words)):
        open_engine(tmp_path / "model.engine", builder, SIGNATURE)
