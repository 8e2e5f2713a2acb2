"""The fp32 graph: names, types and dynamic dimensions of the signature, the model's outputs, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
import torch
from torch import nn

from contracts.artifacts.signature import Dimension, OutputSpec, Signature, TensorSpec
from contracts.errors import ModelError
from tests.trainer.export.conftest import Exported
from tests.trainer.export.graphs import describe, image_signature, inputs_of, run_outputs, write_fp32
from trainer.export.onnx_graph import save_graph
from trainer.export.tensors import container_of, restore_outputs, run_torch
from trainer.model.signature import name_outputs

SIGNATURE = Signature(
    inputs={
        "tokens": TensorSpec(dtype="int64", shape=["batch", "length"]),
        "table": TensorSpec(dtype="float32", shape=["batch", 4]),
    },
    outputs={
        "scores": OutputSpec(dtype="float32", shape=["batch", 7], compare="classes"),
        "price": OutputSpec(dtype="float32", shape=["batch"]),
        "states": OutputSpec(dtype="float32", shape=["batch", "length", 8]),
    },
    dimensions={"length": Dimension(min=8, opt=16, max=64, multiple=8)},
)


class Reader(nn.Module):
    """Text and a table in; scores, a number and a vector for each token out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.mix = nn.Embedding(100, 8), nn.Linear(8, 8)
        self.score, self.price = nn.Linear(12, 7), nn.Linear(12, 1)

    def forward(self, tokens: torch.Tensor, table: torch.Tensor) -> Any:
        states = torch.relu(self.mix(self.words(tokens)))
        joined = torch.cat([states.mean(dim=1), table], dim=1)
        scores, price = self.score(joined), self.price(joined)[:, 0]
        # In another order than the signature's.
        return {"states": states, "price": price, "scores": scores}


def test_the_graph_computes_the_model_at_all_sizes_of_a_dimension(tmp_path: Path) -> None:
    model = Reader().eval()
    path = write_fp32(model, tmp_path / "fp32.onnx", SIGNATURE)
    assert describe(path) == (
        {"tokens": ["batch", "length"], "table": ["batch", 4]},
        {"scores": ["batch", 7], "price": ["batch"], "states": ["batch", "length", 8]},
    )
    for samples, length in ((1, 8), (3, 16), (5, 64)):
        inputs = inputs_of(SIGNATURE, samples, length)
        actual, expected = run_outputs(path, **inputs), run_torch(model, SIGNATURE, inputs)
        assert list(expected) == list(SIGNATURE.outputs)
        assert all(np.allclose(actual[name], array, atol=1e-5) for name, array in expected.items())
    outputs = model(*map(torch.from_numpy, inputs.values()))
    restored = restore_outputs(expected, container_of(outputs))
    assert type(restored) is type(outputs) and name_outputs(restored, SIGNATURE).keys() == expected.keys()


class LooksAtValues(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1) if images.sum() > 0 else -images.flatten(1)


class FixesTheBatch(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.reshape(2, -1)[:, :10]


class OpensAutocast(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return images.flatten(1)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (LooksAtValues(), r"cannot be exported to ONNX opset 20: .*data-dependent"),
        (FixesTheBatch(), r"logits of model\.onnx is float32 \[2, 10\], the task's signature says float32 \['batch',"),
        (OpensAutocast(), r"(?s)opens torch\.autocast.*remove autocast"),
    ],
    ids=["values", "batch", "autocast"],
)
def test_a_model_that_cannot_be_a_graph_is_refused(model: nn.Module, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        write_fp32(model, tmp_path / "model.onnx", image_signature(8))
    assert not list(tmp_path.iterdir())
    with torch.autocast("cpu"):
        pass


@pytest.mark.parametrize("damage", ["operator", "weight's type", "size"])
def test_an_invalid_or_too_large_graph_is_not_written(
    damage: str, exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = onnx.load(exported.fp32)
    if damage == "operator":
        graph.graph.node[0].op_type = "NoSuchOperator"
    elif damage == "weight's type":
        tensor = max(graph.graph.initializer, key=lambda item: len(item.raw_data))
        tensor.data_type, tensor.dims[0] = onnx.TensorProto.FLOAT16, 2 * tensor.dims[0]
    else:
        monkeypatch.setattr("trainer.export.onnx_graph.MAX_FILE_BYTES", 1000)
    with pytest.raises(ModelError, match="which one ONNX file can hold" if damage == "size" else "not valid ONNX"):
        save_graph(onnx_ir.from_proto(graph), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_file_is_the_message_that_onnx_would_write(exported: Exported, tmp_path: Path) -> None:
    graph = onnx.load(exported.fp32)
    assert exported.fp32.stat().st_size == graph.ByteSize()
    content = exported.fp32.read_bytes()
    assert b"torch" not in content.replace(b"pytorch", b"") and b"site-packages" not in content
    save_graph(onnx_ir.from_proto(graph), tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == content
