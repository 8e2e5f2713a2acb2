"""Checkpoints. The create-only manifest is written last; a resume uses the newest valid one. Imports no torch."""

from __future__ import annotations

from contracts import storage

CHECKPOINTS_FOLDER = "checkpoints"
"""Subfolder of a training folder."""


def has_checkpoint(folder_uri: str) -> bool:
    """Whether a training folder has a checkpoint, finished or not."""
    names = storage.list_names(storage.join(folder_uri, CHECKPOINTS_FOLDER))
    return any(name.startswith("step-") for name in names)
