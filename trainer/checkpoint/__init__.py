"""Checkpoints: data first, the manifest last; the newest valid one is what a resume finds."""

# Below the folder of a training; here, and not in manager.py, for who must not import torch.
CHECKPOINTS_FOLDER = "checkpoints"
