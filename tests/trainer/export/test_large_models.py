"""ResNet-50 and ViT-B with random weights through the whole stage: every step a process, on noise in colour."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, ExportManifest, find_damage
from contracts.config import ModelSection
from tests.trainer.export.conftest import CLASSES, write_checkpoint, write_shards
from trainer.export.verify import main as verify
from trainer.tasks.image import build_network

REPOSITORY = Path(__file__).parents[3]
IMAGE_SIZE = 224
# The steps that make what ships, without the gates.
MAKING = {"fp16": ("trace", "fp16", "engine sm89"), "int8": ("trace", "int8", "fp16")}


def export_random(folder: Path, architecture: str, precision: str) -> ExportManifest:
    shards = write_shards(folder / "shards", samples=64, train=128)
    torch.manual_seed(0)
    section = ModelSection.model_validate({"architecture": architecture})
    model = build_network(section, num_classes=len(CLASSES), image_size=IMAGE_SIZE)
    write_checkpoint(folder / "train", model, shards)
    changes: dict[str, Any] = {"model": section.model_dump(mode="json")}
    manifest = json.loads((folder / "train" / MANIFEST_NAME).read_text())
    manifest["data"]["image_size"] = IMAGE_SIZE
    (folder / "train" / MANIFEST_NAME).write_text(json.dumps({**manifest, **changes}))
    config = {
        "data": {"image_size": IMAGE_SIZE},
        "model": {"architecture": architecture},
        "export": {
            "precision": precision,
            # TensorRT-RTX has no int8.
            **({"runtime": "tensorrt_rtx", "targets": ["l4"]} if precision != "int8" else {}),
            "max_batch": 16,
        },
    }
    command = [sys.executable, "-m", "trainer.export.task", "--config-json", json.dumps(config)]
    command += ["--output", str(folder / "exported"), "--checkpoint", str(folder / "train")]
    done = subprocess.run(
        [*command, "--shards", str(folder / "shards")], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    uri = storage.normalise(folder / "exported")
    found = ExportManifest.load(uri)
    assert find_damage(uri, found.owned_files()) is None
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("architecture", ["resnet", "vit"])
def test_fp16_goes_through_every_step_in_bounded_memory(tmp_path: Path, architecture: str) -> None:
    found = export_random(tmp_path, architecture, "fp16")
    assert found.precision == "fp16"
    status = {(gate.precision, gate.name): gate.status for gate in found.gates}
    assert status["fp16", "parity"] == "passed", found.gates
    weights = next(entry for entry in found.files if entry.name == "model.safetensors").bytes
    peak = max(found.steps[name]["peak_bytes"] for name in MAKING["fp16"])
    assert peak <= 3 * weights + (1 << 30)
    assert verify([str(tmp_path / "exported"), "--shards", str(tmp_path / "shards")]) == 3


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("architecture", ["resnet", "vit"])
def test_int8_falls_back_and_stays_in_bounded_memory(tmp_path: Path, architecture: str) -> None:
    """64 images cannot judge accuracy, so fp16 ships; int8 was made, and judged, all the same."""
    found = export_random(tmp_path, architecture, "int8")
    assert [(attempt.precision, attempt.outcome) for attempt in found.tried] == [
        ("fp32", "kept"),
        ("int8", "failed"),
        ("fp16", "kept"),
    ]
    assert "accuracy" in found.tried[1].reason
    weights = next(entry for entry in found.files if entry.name == "model.safetensors").bytes
    assert max(found.steps[name]["peak_bytes"] for name in MAKING["int8"]) <= 12 * weights + (1 << 30)
