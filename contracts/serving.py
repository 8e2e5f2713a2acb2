"""Triton Inference Server: names in a model repository, images by version of TensorRT, settings of ONNX Runtime.

What is known of Triton's releases and of its ONNX Runtime backend is one table with its date.
"""

from __future__ import annotations

from typing import Literal

from contracts.artifacts import ExportManifest

TENSORRT: Literal["tensorrt"] = "tensorrt"
TENSORRT_RTX: Literal["tensorrt_rtx"] = "tensorrt_rtx"
ONNX: Literal["onnx"] = "onnx"
LOADED_BY = {TENSORRT: "TensorRT", TENSORRT_RTX: "TensorRT-RTX", ONNX: "ONNX Runtime with TensorRT"}
"""Name of each runtime. Triton loads no engine of TensorRT-RTX: such an export has no repository."""

REPOSITORY = "triton"
"""Folder of the model repository in an export."""
VERSION = "1"
CONFIG_NAME = "config.pbtxt"
MODEL_FILES = {TENSORRT: "model.plan", ONNX: "model.onnx"}
"""File that Triton loads, by runtime (Triton, docs/user_guide/model_repository.md)."""

# --- Known of Triton, read 2026-11-23 ---
# Releases by the TensorRT in their image, the newest first: a plan loads in the version that built it and in no other.
# Collected from public repositories that name both; NVIDIA's table is
# https://docs.nvidia.com/deeplearning/frameworks/support-matrix/index.html. Not from Triton's own
# docs/introduction/compatibility.md: its TensorRT is that of the -trtllm- images, which have no tensorrt backend.
READ_AT = "2026-11-23"
RELEASES = {
    "11.3.0": "26.09",
    "11.2.1": "26.08",
    "11.1.0": "26.07",
    "11.0.0": "26.06",
    "10.11.0": "25.06",
    "10.9.0": "25.04",
}
# `optimization.graph.level` by the name of ONNX Runtime's level: onnxruntime_backend, src/onnxruntime.cc of 2026-06-29.
# Any other number, 0 and none at all are ENABLE_ALL there.
GRAPH_LEVELS = {"ORT_ENABLE_BASIC": -1, "ORT_ENABLE_ALL": 0, "ORT_ENABLE_EXTENDED": 1, "ORT_DISABLE_ALL": 2}
# --- end of the table ---

NO_RELEASE = "no known Triton loads this"
_IMAGE = "nvcr.io/nvidia/tritonserver:{}-py3"
_CLASSIFIERS = ("image_classification", "image_multilabel", "text_classification")


def model_name(task: str) -> str:
    """Return the name of the model in the repository. It is the same in every export of a task (task.name)."""
    return "classifier" if task in _CLASSIFIERS else "model"


def graph_level(precision: str) -> str:
    """Return ONNX Runtime's optimisation level for a graph, in Triton, the gates and predict.py."""
    # ONNX Runtime's rewriting of Q/DQ was seen to change the outputs of a sound int8 model (cosine 0.83), at BASIC too.
    return "ORT_DISABLE_ALL" if precision == "int8" else "ORT_ENABLE_ALL"


def image_of(document: ExportManifest) -> str | None:
    """Return the Triton image that loads the served model of an export; of an ONNX file, the newest known one.

    Returns:
        None where no known release has the plan's version of TensorRT, or the engine is not TensorRT's.
    """
    if document.engine is None:
        return _IMAGE.format(next(iter(RELEASES.values())))
    package, _, version = document.engine.builder.partition(" ")
    release = RELEASES.get(".".join(version.split(".")[:3])) if package == TENSORRT else None
    return None if release is None else _IMAGE.format(release)
