"""A task whose samples have a length through the export: the network and the graph at the ends of its range."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, ExportManifest, FileEntry, ShardManifest
from contracts.artifacts.signature import Signature
from contracts.config import ModelSection
from contracts.stage import run_stage
from tests.own_code.words import Network, Words
from tests.trainer.export.conftest import steps_in_this_process
from tests.trainer.texts import words_config, write_shards
from trainer.export.gates import parity
from trainer.export.gates.arrays import store_arrays
from trainer.export.gates.proof import write_ends, write_graph_outputs
from trainer.export.graph.onnx_graph import export_graph
from trainer.export.task import export
from trainer.model.build import example_inputs, parameters_sha256


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_shards(tmp_path_factory.mktemp("texts"))


def export_words(folder: Path, shards: str) -> ExportManifest:
    """Export a random network."""
    from safetensors.torch import save_file

    settings = {"max_batch": 4, "precision": "fp32", "runtime": "tensorrt_rtx", "targets": ["l4"]}
    config = words_config(arguments={}, export=settings)
    torch.manual_seed(0)
    state = Words(None).build_model().state_dict()
    (folder / "train").mkdir()
    save_file(state, folder / "train" / "model.safetensors")
    manifest = CheckpointManifest(
        order={"kind": "full"},
        fingerprint="7" * 16,
        finished=True,
        step=7,
        position=448,
        epoch=1,
        slot_size=8,
        model=ModelSection().model_dump(mode="json"),
        task=config["task"],
        classes=[],
        data={},
        shards_fingerprint=ShardManifest.load(shards).fingerprint,
        metrics={},
        best_step=7,
        parameters_sha256=parameters_sha256(state),
        environment={},
        files=[FileEntry.of(storage.normalise(folder / "train"), "model.safetensors")],
    )
    (folder / "train" / MANIFEST_NAME).write_bytes(manifest.to_json())
    given = ["--root", str(folder / "export"), "--checkpoint", str(folder / "train"), "--shards", shards]
    with steps_in_this_process():
        assert run_stage("export", export, ["--config-json", json.dumps(config), *given]) == 0
    (found,) = (folder / "export").glob(f"*/{MANIFEST_NAME}")
    return ExportManifest.load(storage.normalise(found.parent))


def test_the_graph_is_held_against_torch_at_the_ends_of_a_length(shards: str, tmp_path: Path) -> None:
    document = export_words(tmp_path, shards)
    (gate,) = (gate for gate in document.gates if gate.name == "sizes")
    assert (gate.status, gate.precision, gate.figures["samples"]) == ("passed", "fp32", 8)
    assert document.inputs == {"tokens": ["batch", "length"], "mask": ["batch", "length"]}


class DividesBySixteen(Network):
    """What a network is whose length became a constant when it was traced."""

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens, mask) * tokens.shape[1] / 16


def test_a_constant_in_the_graph_shows_at_the_ends(tmp_path: Path) -> None:
    def build(kind: type[Network]) -> Network:
        torch.manual_seed(0)
        return kind(64).eval()

    task, model = Words(None), build(Network)
    signature: Signature = task.signature
    tokens = np.random.default_rng(0).integers(0, 256, (9, 16))
    split = store_arrays(tmp_path / "split", [{"tokens": tokens, "mask": np.ones_like(tokens)}])
    ends = write_ends(model, signature, split, tmp_path)
    assert ends is not None and [part.open()["tokens"].shape for part in ends.inputs.parts] == [(4, 8), (4, 64)]
    for kind, passed in ((Network, True), (DividesBySixteen, False)):
        folder = tmp_path / kind.__name__
        folder.mkdir()
        example = example_inputs(task, 2)
        export_graph(build(kind), folder / "fp32.onnx", signature=signature, example=example, opset=20)
        run = parity.open_graph(folder / "fp32.onnx", threads=1)
        same = run(next(split.batches(4)))["scores"], model(*map(torch.from_numpy, next(split.batches(4)).values()))
        assert np.allclose(same[0], same[1].detach(), atol=1e-5)
        found = write_graph_outputs(folder / "fp32.onnx", ends.inputs, folder / "outputs", batch_size=4, threads=1)
        assert parity.compare_stored(ends.reference, found, signature, ran="", precision="fp32").passed is passed
