from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from contracts.errors import ModelError
from tests.trainer.export.graphs import describe, image_signature, run_onnx
from trainer.export.graph.onnx_graph import export_graph, save_checked
from trainer.export.processes import run_step

SMALL = image_signature(8, 192)
LARGE: Any = {"signature": image_signature(), "example": [torch.zeros(2, 3, 32, 32)], "opset": 20}
SETTINGS: Any = {"signature": SMALL, "example": [torch.zeros(2, 3, 8, 8)], "opset": 20}


@pytest.mark.parametrize("batch", [1, 5, 64])
def test_the_graph_takes_any_batch(exported: Any, batch: int) -> None:
    logits = run_onnx(exported.fp32, exported.images[:batch])
    assert logits.shape == (batch, 10)
    assert logits.dtype == "float32"


def test_inputs_and_outputs_are_named_and_the_batch_is_dynamic(exported: Any) -> None:
    for path in (exported.fp32, exported.fp16):
        assert describe(path) == ({"images": ["batch", 3, 32, 32]}, {"logits": ["batch", 10]})


def test_opset_is_the_one_asked_for(exported: Any) -> None:
    assert [(item.domain, item.version) for item in onnx.load(exported.fp32).opset_import] == [("", 20)]


def test_no_path_of_this_machine_is_in_the_file(exported: Any) -> None:
    for path in (exported.fp32, exported.fp16):
        content = path.read_bytes()
        assert b".py" not in content
        assert b"site-packages" not in content


class LooksAtValues(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1) if images.sum() > 0 else -images.flatten(1)


class FixesTheBatch(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.reshape(2, -1)[:, :10]


def test_a_model_that_cannot_be_traced_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot be exported to ONNX opset 20: .*data-dependent"):
        export_graph(LooksAtValues(), tmp_path / "model.onnx", **SETTINGS)
    assert not list(tmp_path.iterdir())


def test_a_model_that_fixes_the_batch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", said.append)
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    registration.addHandler(handler)
    with pytest.raises(ModelError, match=r"logits of model\.onnx has shape"):
        export_graph(FixesTheBatch(), tmp_path / "model.onnx", **SETTINGS)
    registration.removeHandler(handler)
    assert said == []  # that torchvision is not installed is no news
    assert not registration.disabled
    assert not list(tmp_path.iterdir())


def test_a_graph_with_a_fixed_batch_is_refused(exported: Any, tmp_path: Path) -> None:
    graph = onnx.load(exported.fp32)
    graph.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(graph, tmp_path / "fixed.onnx")
    with pytest.raises(ModelError, match=r"images of fixed\.onnx has shape"):
        describe(tmp_path / "fixed.onnx")


def test_an_invalid_graph_is_not_written(exported: Any, tmp_path: Path) -> None:
    for damage in ("operator", "weight's type"):
        graph = onnx.load(exported.fp32)
        if damage == "operator":
            graph.graph.node[0].op_type = "NoSuchOperator"
        else:
            tensor = max(graph.graph.initializer, key=lambda item: len(item.raw_data))
            tensor.data_type = onnx.TensorProto.DOUBLE
        with pytest.raises(ModelError, match="not valid ONNX"):
            save_checked(graph, tmp_path / "model.onnx")
        assert not list(tmp_path.iterdir())


class OpensAutocast(torch.nn.Module):
    def __init__(self, enabled: bool) -> None:
        super().__init__()
        self.linear, self.enabled = torch.nn.Linear(3 * 8 * 8, 192), enabled

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.enabled):
            return self.linear(images.flatten(1))


def test_a_model_that_opens_autocast_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"(?s)opens torch\.autocast.*remove autocast"):
        export_graph(OpensAutocast(True), tmp_path / "model.onnx", **SETTINGS)
    assert not list(tmp_path.iterdir())
    # What closes it asks for fp32, and others may open it again.
    export_graph(OpensAutocast(False), tmp_path / "model.onnx", **SETTINGS)
    with torch.autocast("cpu"):
        pass


def test_a_graph_beyond_one_file_is_refused(exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.export.graph.onnx_graph.MAX_FILE_BYTES", 1000)
    with pytest.raises(ModelError, match="which one ONNX file can hold"):
        export_graph(exported.model, tmp_path / "model.onnx", **LARGE)
    assert not list(tmp_path.iterdir())


def test_a_file_has_all_of_its_graph(exported: Any, tmp_path: Path) -> None:
    graph = onnx.load(exported.fp32)
    graph.producer_name, graph.doc_string, graph.graph.doc_string = "a", "b", "c"
    graph.metadata_props.add(key="key", value="value")
    save_checked(graph, tmp_path / "model.onnx")
    assert onnx.load(tmp_path / "model.onnx") == graph
    assert (tmp_path / "model.onnx").stat().st_size == graph.ByteSize()


def test_a_graph_is_written_in_little_memory(tmp_path: Path) -> None:
    """To serialise it whole takes four times its size more."""
    without, with_file = (run_step(write_wide, tmp_path / "wide.onnx", save=save)[1] for save in (False, True))
    size = (tmp_path / "wide.onnx").stat().st_size
    assert size > 16 * 8e6
    assert 0 < with_file.peak_bytes < without.peak_bytes + size / 2


def write_wide(path: Path, *, save: bool) -> None:
    """Make a graph of 16 weights of 8 MB each, and write it where that is asked for."""
    weights = {f"weight{place}": np.ones((1000, 2000), np.float32) for place in range(16)}
    nodes = [helper.make_node("Add", [f"sum{place}", name], [f"sum{place + 1}"]) for place, name in enumerate(weights)]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1000, 2000]) for name in ("sum0", "sum16")]
    constants = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "wide", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    if save:
        save_checked(model, path)
