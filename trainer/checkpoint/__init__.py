"""Checkpoints: data first, the manifest last; the newest valid one is what a resume finds."""
