"""Fields that the document of an export must have, for tests that are about its other ones."""

from typing import Any

HEADLINE = {"metric": "accuracy", "direction": "max"}


def image_export(size: int = 16, classes: int = 3) -> dict[str, Any]:
    """Return task, headline and signature of a classifier of images."""
    images = {"dtype": "float32", "shape": ["batch", 3, size, size]}
    logits = {"dtype": "float32", "shape": ["batch", classes], "compare": "classes"}
    signature = {"inputs": {"images": images}, "outputs": {"logits": logits}}
    return {"task": "image_classification", "headline": HEADLINE, "signature": signature}


def served_file(name: str, sha256: str) -> dict[str, Any]:
    """Return what an export without a folder for Triton serves: a file that is its own configuration."""
    return {
        "runtime": "onnxruntime_tensorrt",
        "model": name,
        "sha256": sha256,
        "config": name,
        "config_sha256": sha256,
        "ran": "onnxruntime 1",
    }
