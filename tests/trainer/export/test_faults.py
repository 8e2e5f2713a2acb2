"""Faults planted in graphs, each found by the gate parity.

docs/export.md has the table of all ten: those of preprocessing and labels are in test_program_gate.py, and int8 that
costs accuracy in test_task.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from contracts.artifacts import Gate
from contracts.artifacts.signature import Signature
from tests.own_code.words import Network, Words
from tests.trainer.export.conftest import Exported
from tests.trainer.export.graphs import image_signature, inputs_of, write_fp32
from trainer.export.arrays import Arrays
from trainer.export.compare import ModelFile, judge_parity, make_trials
from trainer.export.engine import Runner, open_graph
from trainer.export.onnx_graph import export_graph
from trainer.export.samples import end_inputs
from trainer.export.tensors import run_torch
from trainer.model.build import example_inputs


def judge(model: torch.nn.Module, signature: Signature, run: Runner, batches: list[Arrays]) -> Gate:
    """Compare a graph with the model it was made from."""
    proof = [(batch, run_torch(model, signature, batch)) for batch in batches]
    ends = [(name, batch, run_torch(model, signature, batch)) for name, batch in end_inputs(signature, batches[0])]
    trials = make_trials(proof, ends, (8, 16))
    return judge_parity(run, trials, signature, ModelFile("fp32", "model.onnx", "onnxruntime"))


def batches_of_images() -> list[Arrays]:
    return [inputs_of(image_signature(), 8, seed) for seed in range(4)]


def edit_weights(source: Path, target: Path, name_ends: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change the weights of a graph whose name ends so."""
    graph = onnx.load(source)
    (tensor,) = (tensor for tensor in graph.graph.initializer if tensor.name.endswith(name_ends))
    changed = np.ascontiguousarray(change(numpy_helper.to_array(tensor).copy()))
    tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    onnx.save(graph, target)


def zero_a_filter(weights: np.ndarray) -> np.ndarray:
    weights[0] = 0
    return weights


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("embedder.embedder.convolution.weight", zero_a_filter),
        ("classifier.1.weight", lambda weights: weights[[1, 0, *range(2, 10)]]),
    ],
    ids=["a filter is zero", "classes are permuted"],
)
def test_changed_weights_show_in_parity(
    exported: Exported, tmp_path: Path, name: str, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    batches, signature = batches_of_images(), image_signature()
    assert judge(exported.model, signature, open_graph(exported.fp32, threads=1), batches).status == "passed"
    edit_weights(exported.fp32, tmp_path / "planted.onnx", name, change)
    gate = judge(exported.model, signature, open_graph(tmp_path / "planted.onnx", threads=1), batches)
    assert gate.status == "failed" and "batch 8: output logits differs from torch's" in gate.reason


class MixesTheBatch(torch.nn.Module):
    """A network whose logits for an image depend on the others of its batch."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(images)
        return logits + 0.01 * logits.mean(dim=0, keepdim=True)


def test_a_graph_that_mixes_the_batch_shows_in_parity(exported: Exported, tmp_path: Path) -> None:
    model = MixesTheBatch(exported.model)
    write_fp32(model, tmp_path / "planted.onnx")
    run = open_graph(tmp_path / "planted.onnx", threads=1)
    gate = judge(model, image_signature(), run, batches_of_images())
    assert gate.status == "failed" and gate.reason.startswith("batch 1: ")


class DividesBySixteen(Network):
    """The network as it would be traced if its length became a constant."""

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens, mask) * tokens.shape[1] / 16


def test_a_frozen_length_shows_at_its_ends(tmp_path: Path) -> None:
    def build(network: type[Network]) -> Network:
        torch.manual_seed(0)
        return network(64).eval()

    task: Any = Words(None)
    tokens = np.random.default_rng(0).integers(0, 256, (8, 16))
    batches = [{"tokens": tokens, "mask": np.ones_like(tokens)}]
    export_graph(
        build(DividesBySixteen), tmp_path / "planted.onnx", signature=task.signature, example=example_inputs(task, 2)
    )
    gate = judge(build(Network), task.signature, open_graph(tmp_path / "planted.onnx", threads=1), batches)
    assert gate.status == "failed"
    assert [reason.split(":")[0] for reason in gate.reason.split("; ")] == ["length 8", "length 64"]
