"""Folders of exports as far as weights are read from them: a manifest, model.safetensors, and what the bundle has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from contracts import storage
from contracts.artifacts import MANIFEST_NAME
from contracts.artifacts.export import ShippedFile
from tests.export_fields import make_manifest
from trainer.tasks.task import Task
from trainer.weights.save import save_weights
from trainer.weights.source import WEIGHTS_NAME


def write_export(
    folder: Path, network: nn.Module, task: Task, classes: list[str], names: list[str], **more: Any
) -> None:
    """Write weights and manifest beside the files `names`."""
    save_weights(network, classes, folder)
    uri = storage.normalise(folder)
    document = make_manifest(
        signature=task.signature, files=[ShippedFile.of(uri, name) for name in [*names, WEIGHTS_NAME]], **more
    )
    (folder / MANIFEST_NAME).write_bytes(document.to_json())
