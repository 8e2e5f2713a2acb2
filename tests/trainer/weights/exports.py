"""Folders of exports as far as weights are read from them: a manifest, model.safetensors, and what the bundle has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, Attempt, ExportManifest
from contracts.artifacts.export import ShippedFile
from tests.export_fields import image_export, served_file
from trainer.tasks.task import Task
from trainer.weights.save import save_weights
from trainer.weights.source import WEIGHTS_NAME


def write_export(
    folder: Path, network: nn.Module, task: Task, classes: list[str], names: list[str], **more: Any
) -> None:
    """Write weights and manifest beside the files `names`."""
    save_weights(network, classes, folder)
    uri = storage.normalise(folder)
    document = ExportManifest(
        fingerprint="9" * 16,
        **{**image_export(), "signature": task.signature},
        served=served_file(WEIGHTS_NAME, "0" * 64),
        precision="fp32",
        asked_precision="fp32",
        tried=[Attempt(precision="fp32", outcome="kept")],
        verdict="unproven",
        opset=20,
        inputs={},
        outputs={},
        graphs=[],
        engines=[],
        gates=[],
        parity={},
        test_samples=1,
        checkpoint_sha256="0" * 64,
        shards_fingerprint="5" * 16,
        made_with={},
        files=[ShippedFile.of(uri, name) for name in [*names, WEIGHTS_NAME]],
        **more,
    ).sealed()
    (folder / MANIFEST_NAME).write_bytes(document.to_json())
