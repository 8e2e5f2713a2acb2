"""A digits model with random weights, its graphs, and a line's folders made by hand: all exported once a session."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, FileEntry, ShardEntry, ShardManifest, SplitEntry
from contracts.config import ModelSection
from records.index import INDEX_NAME, RECORD, write_index
from trainer.export.onnx_graph import export_graph, join_graph
from trainer.export.precision import convert_to_fp16
from trainer.model import build_model, parameters_sha256

IMAGE_SIZE = 32
CLASSES = [str(digit) for digit in range(10)]
MODEL = {
    "architecture": "resnet",
    "arguments": {"layer_type": "basic", "embedding_size": 32, "hidden_sizes": [32, 64], "depths": [1, 1]},
}


@dataclass(frozen=True)
class Exported:
    model: torch.nn.Module
    fp32: Path
    fp16: Path
    images: np.ndarray


@dataclass(frozen=True)
class Line:
    """What the stages before left, and the export's configuration."""

    folder: Path
    config: dict[str, Any]

    def arguments(self, **sections: dict[str, Any]) -> list[str]:
        config = {name: {**self.config.get(name, {}), **sections.get(name, {})} for name in (*self.config, *sections)}
        return [
            *("--config-json", json.dumps(config)),
            *("--root", str(self.folder / "export")),
            *("--checkpoint", str(self.folder / "train")),
            *("--shards", str(self.folder / "shards")),
        ]

    @property
    def manifests(self) -> list[Path]:
        return sorted((self.folder / "export").glob(f"*/{MANIFEST_NAME}"))


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = tmp_path_factory.mktemp("exported")
    torch.manual_seed(0)
    model = build_model(ModelSection.model_validate(MODEL), num_classes=len(CLASSES), image_size=IMAGE_SIZE)
    fp32, fp16 = folder / "model.fp32.onnx", folder / "model.fp16.onnx"
    export_graph(model, folder / "traced.onnx", image_size=IMAGE_SIZE, opset=20)
    join_graph(folder / "traced.onnx", fp32)
    convert_to_fp16(fp32, fp16)
    images = np.random.default_rng(0).standard_normal((64, 3, IMAGE_SIZE, IMAGE_SIZE), dtype=np.float32)
    return Exported(model, fp32, fp16, images)


@pytest.fixture
def line(tmp_path: Path, exported: Exported) -> Line:
    shards = write_shards(tmp_path / "shards", samples=24)
    write_checkpoint(tmp_path / "train", exported.model, shards)
    # Name and place of a line are in no fingerprint; they are left to their defaults.
    config = {"data": {"image_size": IMAGE_SIZE}, "model": MODEL, "export": {"opt_batch": 4, "max_batch": 10}}
    return Line(tmp_path, config)


def write_shards(folder: Path, *, samples: int) -> ShardManifest:
    """Write a test split of random PNG files: readers go by the index, so one after the other will do."""
    folder.mkdir()
    random = np.random.default_rng(1)
    records, content = np.zeros(samples, RECORD), b""
    for place in range(samples):
        stream = io.BytesIO()
        # Blocks of colour: images that differ, as noise of one kind does not.
        pixels = random.integers(0, 256, (4, 4, 3), dtype=np.uint8).repeat(10, axis=0).repeat(10, axis=1)
        Image.fromarray(pixels).save(stream, "PNG")
        payload = stream.getvalue()
        key = place.to_bytes(16, "big")
        records[place] = (0, place % 10, len(content), len(payload), int(storage.crc32c(payload), 16), key)
        content += payload
    (folder / "test-0.bin").write_bytes(content)
    write_index(folder / INDEX_NAME, records)
    uri = storage.normalise(folder)
    by_class = [len(range(label, samples, 10)) for label in range(10)]
    empty = SplitEntry(first=0, samples=0, source_bytes=0, samples_by_class=[0] * 10)
    test = SplitEntry(first=0, samples=samples, source_bytes=len(content), samples_by_class=by_class)
    entry = FileEntry.of(uri, "test-0.bin").model_dump()
    manifest = ShardManifest(
        fingerprint="5" * 16,
        format="webdataset",
        seed=0,
        classes=CLASSES,
        splits={"train": empty, "validation": empty, "test": test},
        shards=[ShardEntry(**entry, split="test", first=0, samples=samples)],
        index=FileEntry.of(uri, INDEX_NAME),
        rejected=[],
        mean=[0.5] * 3,
        std=[0.25] * 3,
    )
    (folder / MANIFEST_NAME).write_bytes(manifest.to_json())
    return manifest


def write_checkpoint(folder: Path, model: torch.nn.Module, shards: ShardManifest) -> None:
    from safetensors.torch import save_file

    weights = folder / "checkpoints" / "step-00000007.a"
    weights.mkdir(parents=True)
    state = model.state_dict()
    save_file(state, weights / "model.safetensors")
    manifest = CheckpointManifest(
        fingerprint="7" * 16,
        finished=True,
        step=7,
        position=448,
        epoch=1,
        slot_size=8,
        model=MODEL,
        classes=shards.classes,
        data={"image_size": IMAGE_SIZE, "mean": shards.mean, "std": shards.std},
        shards_fingerprint=shards.fingerprint,
        metrics={},
        best_step=7,
        best_validation_accuracy=0.5,
        parameters_sha256=parameters_sha256(state),
        environment={},
        files=[FileEntry.of(storage.normalise(folder), "checkpoints/step-00000007.a/model.safetensors")],
    )
    (folder / MANIFEST_NAME).write_bytes(manifest.to_json())
