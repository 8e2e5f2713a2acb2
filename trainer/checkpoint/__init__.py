"""Checkpoints: data first, the manifest last; the newest valid one is what a resume finds.

manager     what the loop talks to: resume, save, wait
framing     the bytes of a safetensors file, made and read without trust
tensors     what is saved: tensors by name in groups, whole or a rank's rows
staging     host buffers, laid out as the files will be
writer      the thread that works off what was staged
commit      what it does: files of all ranks, then the manifest, then what need not stay
discovery   attempts, their records, and the newest checkpoint that counts
loading     groups of tensors back from files, whole or rows, for any number of ranks
retention   which checkpoints stay, and which is the best
interval    when one is due: Young and Daly's formula from what a checkpoint costs
progress    how far training is: what a resume needs besides tensors
"""

from __future__ import annotations

from contracts import storage

# Below the folder of a training; here, and not in manager.py, for who must not import torch.
CHECKPOINTS_FOLDER = "checkpoints"


def has_checkpoint(folder_uri: str) -> bool:
    """Whether a training folder has a checkpoint, finished or not."""
    names = storage.list_names(storage.join(folder_uri, CHECKPOINTS_FOLDER))
    return any(name.startswith("step-") for name in names)
