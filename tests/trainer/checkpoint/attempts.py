"""Checkpoints of a made-up training: small tensors, a real folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest
from contracts.config import CheckpointSection
from trainer.checkpoint.discovery import FoundCheckpoint, find_newest, list_checkpoints
from trainer.checkpoint.manager import CheckpointManager


def manifest(step: int, **fields: Any) -> CheckpointManifest:
    """The manifest of a step, as the loop hands it over."""
    values: dict[str, Any] = {
        "fingerprint": "f",
        "step": step,
        "position": step * 16,
        "epoch": 0,
        "slot_size": 4,
        "order": {"kind": "full"},
        "model": {},
        "task": {"name": "image_classification", "arguments": {}},
        "classes": ["a", "b"],
        "data": {},
        "shards_fingerprint": "s",
        "metrics": {},
        "best_step": 0,
        "parameters_sha256": "",
        "environment": {},
        "files": [],
    }
    return CheckpointManifest(**{**values, **fields})


def groups(step: float) -> dict[str, dict[str, torch.Tensor]]:
    """Tensors from which the step can be told."""
    return {"model": {"w": torch.full((3,), float(step))}, "optimizer": {"w/exp_avg": torch.full((3,), step + 0.5)}}


class Attempt:
    """One attempt at a training, which has looked for a checkpoint to resume from."""

    def __init__(self, folder: Path | str, alive: Callable[[], None] = lambda: None, **rules: Any) -> None:
        self.said: list[str] = []
        self.committed: list[int] = []
        self.folder = folder
        self.manager = CheckpointManager(
            storage.normalise(folder),
            attempt="a",
            rules=CheckpointSection(**rules),
            log=self.said.append,
            alive=alive,
            committed=lambda step, seconds: self.committed.append(step),
        )
        found = self.manager.resume()
        self.resumed_at = None if found.manifest is None else found.manifest.step

    def save(self, *steps: int, **fields: Any) -> None:
        """Save some steps, each durable when this returns."""
        for step in steps:
            assert self.manager.save(manifest(step, **fields), groups(step), required=True)
            self.manager.wait()


def newest_valid(manager: CheckpointManager) -> FoundCheckpoint:
    """The newest checkpoint that counts and is whole."""
    return find_newest(manager.folder_uri, list_checkpoints(manager.folder_uri))


def committed(folder: Path) -> list[int]:
    """Steps with a manifest."""
    return sorted(int(path.parent.name[5:13]) for path in folder.rglob(MANIFEST_NAME))


def file_of(folder: Path, step: int, name: str) -> Path:
    """A file of the checkpoint of a step."""
    return next(folder.glob(f"checkpoints/step-{step:08d}.*/{name}"))
