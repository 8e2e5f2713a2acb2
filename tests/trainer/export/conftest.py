"""A classifier of digits with random weights, its graph, and the folders of a line, made by hand."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, FileEntry, ShardManifest
from contracts.config import ModelSection
from contracts.process import thread_environment
from records.sample import Sample
from tests import shards
from tests.export_fields import make_checkpoint
from tests.trainer.export.graphs import write_fp32
from trainer.export import making, onnx_graph, task, verify
from trainer.export.processes import Cost
from trainer.model.build import parameters_sha256
from trainer.tasks.image import build_network

IMAGE_SIZE = 32
CLASSES = [str(digit) for digit in range(10)]
MODEL = {
    "architecture": "resnet",
    "arguments": {"layer_type": "basic", "embedding_size": 32, "hidden_sizes": [32, 64], "depths": [1, 1]},
}
# Of a line; its name and place are in no fingerprint, and left to their defaults.
CONFIG = {"data": {"image_size": IMAGE_SIZE}, "model": MODEL, "export": {"max_batch": 10}}


@dataclass(frozen=True)
class Exported:
    model: torch.nn.Module
    fp32: Path


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


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a step one thread, and tests that come later what this process had: workers of pytest share the cores."""
    for name, value in thread_environment(1).items():
        monkeypatch.setenv(name, value)
    for stage in (task, verify):
        monkeypatch.setattr(stage, "threads_per_rank", lambda ranks: 1)


@contextmanager
def steps_in_this_process() -> Iterator[None]:
    """Call steps here: where a step is changed for a test, or starting processes is not what the test is about."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (making, verify):
            patch.setattr(
                module, "run_step", lambda function, *given, **named: (function(*given, **named), Cost(1.0, 1))
            )
        yield


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = tmp_path_factory.mktemp("exported")
    torch.manual_seed(0)
    model = build_network(ModelSection.model_validate(MODEL), num_classes=len(CLASSES), image_size=IMAGE_SIZE)
    write_fp32(model, folder / "model.fp32.onnx")
    return Exported(model, folder / "model.fp32.onnx")


@pytest.fixture
def in_this_process() -> Iterator[None]:
    with steps_in_this_process():
        yield


@pytest.fixture
def graph_at_hand(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the session's graph, which is of the same weights, instead of tracing it again."""

    def copy(model: torch.nn.Module, path: Path, **settings: Any) -> None:
        path.write_bytes(exported.fp32.read_bytes())

    monkeypatch.setattr(onnx_graph, "export_graph", copy)


@pytest.fixture
def line(tmp_path: Path, exported: Exported) -> Line:
    write_checkpoint(tmp_path / "train", exported.model, write_shards(tmp_path / "shards", samples=64))
    return Line(tmp_path, CONFIG)


def write_shards(
    folder: Path, *, samples: int, train: int = 160, splits: dict[str, list[tuple[bytes, int]]] | None = None
) -> ShardManifest:
    """Write a split as a shard each.

    Args:
        samples: Test images, random ones.
        train: Training images, random ones.
        splits: Image files and labels by split, instead of random ones.
    """
    random = np.random.default_rng(1)
    given = splits or {"train": random_pictures(random, train), "test": random_pictures(random, samples)}

    def write(split: str, place: int, picture: tuple[bytes, int]) -> Sample:
        name = CLASSES[picture[1]]
        return shards.picture_sample(f"{name}/{split}-{place}.png", picture[0], picture[1], name)

    written = {
        split: [[write(split, place, picture) for place, picture in enumerate(pictures)]] if pictures else []
        for split, pictures in given.items()
    }
    fields = {"fingerprint": "5" * 16, "classes": CLASSES, "mean": [0.5] * 3, "std": [0.25] * 3}
    return shards.write_shards(folder, written, **fields)


def random_pictures(random: np.random.Generator, number: int) -> list[tuple[bytes, int]]:
    """Return PNG files of colour blocks, which differ as noise of one kind does not, and labels in turn."""
    found = []
    for place in range(number):
        stream = io.BytesIO()
        pixels = random.integers(0, 256, (4, 4, 3), dtype=np.uint8).repeat(10, axis=0).repeat(10, axis=1)
        Image.fromarray(pixels).save(stream, "PNG")
        found.append((stream.getvalue(), place % 10))
    return found


def write_checkpoint(folder: Path, model: torch.nn.Module, shards: ShardManifest, /, **changes: Any) -> None:
    """Write a finished training; `changes` are of its manifest."""
    from safetensors.torch import save_file

    name, state = "checkpoints/step-00000007.a/model.safetensors", model.state_dict()
    (folder / name).parent.mkdir(parents=True)
    save_file(state, folder / name)
    values: dict[str, Any] = {
        "model": MODEL,
        "classes": shards.classes,
        "data": {"image_size": IMAGE_SIZE, "mean": shards.mean, "std": shards.std},
        "shards_fingerprint": shards.fingerprint,
        "parameters_sha256": parameters_sha256(state),
        "files": [FileEntry.of(storage.normalise(folder), name)],
    }
    (folder / MANIFEST_NAME).write_bytes(make_checkpoint(**{**values, **changes}).to_json())
