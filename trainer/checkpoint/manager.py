"""Writes and finds checkpoints: `checkpoints/step-N.ATTEMPT/` with two safetensors files and, last, a manifest.

Tensors live in safetensors, everything else in the JSON manifest: nothing is pickled, so nothing can run on loading.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from contracts import storage
from contracts.artifacts import MANIFEST_NAME, CheckpointManifest, FileEntry, find_damage
from contracts.errors import DataError
from trainer.checkpoint import CHECKPOINTS_FOLDER

MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"


class CheckpointManager:
    """The checkpoints of one training folder."""

    def __init__(self, folder_uri: str, *, attempt: str, keep_last: int) -> None:
        self.folder_uri = storage.join(folder_uri, CHECKPOINTS_FOLDER)
        self._attempt = attempt
        self._keep_last = keep_last

    def save(
        self, manifest: CheckpointManifest, model: dict[str, torch.Tensor], optimizer: dict[str, torch.Tensor]
    ) -> CheckpointManifest:
        """Write data, then the manifest, then delete what retention lets go; return the manifest as published.

        Args:
            manifest: The manifest without its files.
            model: Parameters and buffers by name.
            optimizer: The optimizer's tensors by name (trainer/optim.py, named_state).
        """
        # The attempt in the name: a damaged checkpoint of the same step stays where it is and is passed over.
        uri = storage.join(self.folder_uri, f"step-{manifest.step:08d}.{self._attempt}")
        folder = storage.local_path(uri)
        folder.mkdir(parents=True, exist_ok=True)
        files = []
        for name, tensors in ((MODEL_FILE, model), (OPTIMIZER_FILE, optimizer)):
            _write_tensors(folder / name, tensors)
            files.append(FileEntry.of(uri, name))
        manifest = manifest.model_copy(update={"files": files})
        storage.publish(storage.join(uri, MANIFEST_NAME), manifest.to_json())
        self._retain(manifest)
        return manifest

    def newest_valid(self) -> tuple[str, CheckpointManifest, list[str]] | None:
        """Return (URI, manifest, what was skipped and why) of the newest checkpoint whose files are whole."""
        skipped: list[str] = []
        for uri in self._finished():
            try:
                manifest = CheckpointManifest.load(uri)
            except DataError as error:
                skipped.append(error.given)
                continue
            damage = find_damage(uri, manifest.files)
            if damage is None:
                return uri, manifest, skipped
            skipped.append(f"{storage.display(uri)}: {damage}")
        return None

    def find(self, step: int) -> tuple[str, CheckpointManifest] | None:
        """Return the valid checkpoint of a step, or None."""
        for uri in self._finished():
            if _step_of(uri) == step:
                manifest = CheckpointManifest.load(uri)
                if find_damage(uri, manifest.files) is None:
                    return uri, manifest
        return None

    def _finished(self) -> list[str]:
        """Return the folders with a manifest, newest step first (of one step, the newest attempt first)."""
        folders = [storage.join(self.folder_uri, name) for name in storage.list_names(self.folder_uri)]
        return [uri for uri in reversed(folders) if storage.exists(storage.join(uri, MANIFEST_NAME))]

    def _retain(self, newest: CheckpointManifest) -> None:
        """Keep the newest checkpoints and the best one; manifests go first.

        Only what is whole counts, and only up to the step just saved: after a resume from an older checkpoint, damaged
        newer ones must not push out the good ones that are written now. They are left as they are.
        """
        kept = 0
        for uri in self._finished():
            if _step_of(uri) > newest.step or not _looks_whole(uri):
                continue
            kept += 1
            if kept > self._keep_last and _step_of(uri) != newest.best_step:
                storage.delete_tree(uri, manifest_name=MANIFEST_NAME)


def write_weights(folder_uri: str, state: dict[str, torch.Tensor]) -> FileEntry:
    """Write weights beside the document that will speak for them; whatever was there is no document's yet."""
    _write_tensors(storage.local_path(folder_uri) / MODEL_FILE, state)
    return FileEntry.of(folder_uri, MODEL_FILE)


def load_model_state(folder_uri: str, manifest: CheckpointManifest) -> dict[str, torch.Tensor]:
    """Return parameters and buffers of a checkpoint, or of a finished training folder.

    Raises:
        DataError: A file is missing or damaged.
    """
    return _load(folder_uri, manifest, MODEL_FILE)


def load_optimizer_state(folder_uri: str, manifest: CheckpointManifest) -> dict[str, torch.Tensor]:
    """Return the optimizer's tensors of a checkpoint.

    Raises:
        DataError: A file is missing or damaged.
    """
    return _load(folder_uri, manifest, OPTIMIZER_FILE)


def _looks_whole(uri: str) -> bool:
    """Whether the manifest can be read and all files have their size (reading them for each save would cost more)."""
    try:
        return find_damage(uri, CheckpointManifest.load(uri).files, checksums=False) is None
    except DataError:
        return False


def _load(folder_uri: str, manifest: CheckpointManifest, name: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    entries = [entry for entry in manifest.files if entry.name.rpartition("/")[2] == name]
    damage = find_damage(folder_uri, entries) if entries else f"{name} is not in its manifest"
    if damage is not None:
        raise DataError(
            f"checkpoint {storage.display(folder_uri)}: {damage}",
            allowed="a checkpoint whose files agree with its manifest",
            todo="take another checkpoint, or train again with --fresh",
        )
    tensors: dict[str, torch.Tensor] = load_file(
        storage.local_path(storage.join(folder_uri, *entries[0].name.split("/")))
    )
    return tensors


def _write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    # Clones: safetensors refuses tensors that share memory, such as tied weights.
    contiguous: dict[str, Any] = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _step_of(uri: str) -> int:
    return int(uri.rpartition("/")[2].removeprefix("step-").partition(".")[0])
