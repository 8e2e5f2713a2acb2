"""What whoever makes a Triton repository and whoever serves it must agree on: names, the image, the command.

All that is known of Triton's versions and of its ONNX Runtime backend stands in one table here, with its date: Triton's
message takes any graph level and any parameter, so that only a table can be wrong about them.
"""

from __future__ import annotations

from typing import Literal

from contracts.artifacts import ExportManifest

TENSORRT: Literal["tensorrt"] = "tensorrt"
TENSORRT_RTX: Literal["tensorrt_rtx"] = "tensorrt_rtx"
ONNXRUNTIME_TENSORRT: Literal["onnxruntime_tensorrt"] = "onnxruntime_tensorrt"

REPOSITORY = "triton"
"""Folder of the model repository in an export."""
VERSION = "1"
CONFIG_NAME = "config.pbtxt"
MODEL_FILES = {TENSORRT: "model.plan", ONNXRUNTIME_TENSORRT: "model.onnx", TENSORRT_RTX: "model.onnx"}
"""File that Triton looks for, by runtime (Triton, docs/user_guide/model_repository.md)."""
LOADED_BY = {TENSORRT: "TensorRT", ONNXRUNTIME_TENSORRT: "ONNX Runtime with TensorRT", TENSORRT_RTX: "ONNX Runtime"}
"""What runs that file in Triton, by runtime: Triton loads none of TensorRT-RTX's engines, which lie beside it."""

# --- What is known of Triton, read 2026-11-23 ---
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
# Of its accelerator `tensorrt`, in the same file, which refuses what it does not know. Accelerators act on instances of
# KIND_GPU alone (KIND_AUTO becomes one where there is a GPU). No precision_mode: TensorRT 11 takes it from the graph.
CACHE_KEYS = ("trt_engine_cache_enable", "trt_engine_cache_path")
PROFILE_KEYS = ("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes")
# --- end of the table ---

_IMAGE = "nvcr.io/nvidia/tritonserver:{}-py3"
NO_RELEASE = "no known Triton loads this"

# By the tool's own tasks. It is the same in every export of a task: a name with a hash in it would make a new version
# of a model a new model for its clients.
_MODEL_NAMES = {
    "image_classification": "classifier",
    "image_multilabel": "classifier",
    "text_classification": "classifier",
}


def model_name(task: str) -> str:
    """Return the name of the model in the repository, and so of its folder.

    Args:
        task: task.name.
    """
    return _MODEL_NAMES.get(task, "model")


def graph_level(precision: str) -> str:
    """Return ONNX Runtime's optimisation level for a graph: what Triton is told, the gates and predict.py run.

    Q/DQ graphs are left alone: ONNX Runtime's rewriting was seen to change what a sound int8 model computes (cosine
    0.83 instead of 0.999), at BASIC too. All others have Triton's default: on a CPU ResNet-50 takes two thirds of the
    time that EXTENDED takes, and on a GPU the two are the same.
    """
    return "ORT_DISABLE_ALL" if precision == "int8" else "ORT_ENABLE_ALL"


def image_for(builder: str) -> str | None:
    """Return the Triton image that loads a plan; of an ONNX file, the newest that is known.

    Args:
        builder: Package and version that built the plan; of an ONNX file anything else, or nothing.

    Returns:
        None where no known release has this version of TensorRT.
    """
    package, _, version = builder.partition(" ")
    if package != TENSORRT:
        return _IMAGE.format(next(iter(RELEASES.values())))
    release = RELEASES.get(".".join(version.split(".")[:3]))
    return None if release is None else _IMAGE.format(release)


def image_of(document: ExportManifest) -> str | None:
    """Return the Triton image that loads what an export serves; None: no known one does."""
    return image_for(document.engines[0].builder if document.engines else "")
